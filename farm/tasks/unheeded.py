"""What a task of Harbor's asks for and does not get."""

from pathlib import Path

from farm.tasks.errors import TaskError
from farm.tasks.files import MANIFEST
from farm.tasks.manifest import Manifest, parse_manifest


def unheeded(directory: Path) -> tuple[str, ...]:
    """What Harbor would grant the task there and no sandbox here has, each in one line with its key and the remedy.

    Raises TaskError.
    """
    path = directory / MANIFEST
    try:
        manifest = parse_manifest(path, path.read_bytes())
    except OSError as error:
        raise TaskError(path, f"cannot be read ({error.strerror})", "make it readable") from None
    collect = {"verifier": manifest.verifier.collect}
    collect |= {f"steps.{step.name}.verifier": step.verifier.collect for step in manifest.steps}
    gathered = [f"{key}.collect" for key, hooks in collect.items() if hooks and not manifest.separate]
    return (*_network(manifest), *(f"{key} {_GATHERED}" for key in gathered))


_GATHERED = (
    "is not heeded: what it gathers goes to a verifier of its own, and this one works where the policy did; let "
    'tests/test.sh do it, or set verifier.environment_mode to "separate"'
)


def _network(manifest: Manifest) -> tuple[str, ...]:
    if manifest.metadata.farm.network is not None:
        return ()
    keys = (
        ("agent.network_mode", manifest.agent.network_mode == "public"),
        ("environment.network_mode", manifest.environment.network_mode == "public"),
        (
            "environment.allow_internet",
            manifest.environment.network_mode is None and manifest.environment.allow_internet,
        ),
    )
    return tuple(
        f"{key} is not heeded: policies reach the hosts that [metadata.farm] network names, and tests reach nothing; "
        "install what these need in environment/Dockerfile"
        for key, said in keys
        if said
    )
