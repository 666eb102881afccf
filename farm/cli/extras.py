"""The extras of the distribution: which of them brings a package that a command lacks."""

DISTRIBUTION = "rollout-farm"
EXTRAS = {
    "docker": "node",
    "fastapi": "node",
    "h11": "node",
    "httpx2": "node",
    "iniconfig": "node",
    "libcst": "generate",
    "msgspec": "node",
    "numpy": "node",
    "packaging": "node",
    "pathspec": "node",
    "prometheus_client": "node",
    "psutil": "node",
    "pyarrow": "parquet",
    "pyseccomp": "node",
    "ray": "node",
    "re2": "node",
    "redis": "node",
    "rich": "node",
    "ruff": "node",
    "starlette": "node",
    "tomlkit": "generate",
    "tree_sitter": "node",
    "typer": "node",
    "unearth": "node",
    "uvicorn": "node",
    "yaml": "node",
}
"""The extra of each package, by the name that is imported."""


def missing_extra(error: BaseException) -> str | None:
    """Return the message for an import that failed because an extra is not installed; None for another error."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    package = error.name.partition(".")[0]
    if package not in EXTRAS:
        return None
    return f"this command needs {package}, which is not installed; pip install '{DISTRIBUTION}[{EXTRAS[package]}]'"
