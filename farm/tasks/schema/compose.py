"""``environment/docker-compose.yaml`` with one service ``main``: read what a sandbox can honour, refuse the rest."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from farm.core.nesting_limit import MAX_DEPTH, TooDeep, check_depth
from farm.tasks.errors import TaskError
from farm.tasks.schema.manifest_types import image_reference, workspace_path

NAME = "docker-compose.yaml"
"""The only name that Harbor reads. A ``docker-compose.yml`` is an ordinary file of the task."""
MAX_BYTES = 64 * 1024
MAX_NODES = 2_000
"""Limit for values, because the loader takes about a hundred steps for each. Real files have about 50."""
MAX_ALIASES = 16
MAX_SCALAR_CHARS = 64
"""Limit for a value that is no text, such as a number: its digits take quadratic time."""

_IGNORED_KEYS = frozenset(
    {"container_name", "deploy", "hostname", "init", "platform", "pull_policy", "stdin_open", "tty"}
)
"""Keys of the service that have no effect: names, and limits that Harbor sets from ``task.toml``."""
_IDLE_COMMANDS = frozenset({"sleep infinity", "tail -f /dev/null", "sh -c sleep infinity", "bash -c sleep infinity"})
_HARBOR_NAMES = (
    "MAIN_IMAGE_NAME|PREBUILT_IMAGE_NAME|CONTEXT_DIR|TEST_DIR|CPUS|MEMORY"
    "|(HOST|ENV)_(VERIFIER_LOGS|AGENT_LOGS|ARTIFACTS)_PATH"
)
_HARBOR_VARIABLE = re.compile(rf"\$(({_HARBOR_NAMES})(?![A-Za-z0-9_])|\{{({_HARBOR_NAMES})(:?-[^}}$]*)?\}})")
"""A variable that Harbor fills in and that has no effect here. Any other would be a variable of the host."""
_VARIABLE = re.compile(r"\$(\{[^}]*\}?|\w*)")


@dataclass(frozen=True, slots=True)
class ComposeSettings:
    """The settings of a compose file. ``image`` is set if it names one instead of a build; ``workdir`` is absolute."""

    image: str | None = None
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)


def parse_compose(path: Path, content: bytes) -> ComposeSettings:
    """Return the settings. Raises TaskError, by its key, for what a sandbox cannot honour."""
    try:
        document = _load(content)
    except _LOADER_ERRORS as error:
        raise TaskError(path, f"not YAML ({str(error)[:200]})", "correct the syntax there, or write less") from None
    service = _only_service(path, document)
    for key in service:
        is_known = key in _HONOURED_KEYS or key in _IGNORED_KEYS or str(key).startswith("x-")
        if not is_known:
            raise _refusal(path, f"services.main.{key}", "cannot be honoured", "remove it, or set it in the Dockerfile")
    _refuse_variables(path, service)
    _refuse_commands(path, service)
    _refuse_volumes(path, service)
    if service.get("network_mode", "none") != "none":
        raise _refusal(path, "services.main.network_mode", "sandboxes have no network", "name hosts in task.toml")
    built = _builds_dockerfile(path, service)
    return ComposeSettings(_image(path, service, built), _workdir(path, service), _environment(path, service))


_HONOURED_KEYS = frozenset(
    {"build", "command", "entrypoint", "environment", "image", "network_mode", "volumes", "working_dir"}
)


def _load(content: bytes) -> Any:
    if len(content) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES >> 10} KiB")
    document = yaml.load(content, _BoundedLoader)
    check_depth(document)  # an alias may make it deeper than the file
    return document


_LOADER_ERRORS = (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError)
"""The errors of the loader. For a wrong number or date it raises whatever the conversion raises."""


class _BoundedLoader(yaml.SafeLoader):
    """A YAML loader that raises ValueError for more than ``MAX_NODES`` values, and for what takes quadratic time.

    An alias inside a value with an anchor is refused, because each level of them doubles what the file stands for.
    """

    nodes = 0
    aliases = 0
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise ValueError(f"more than {MAX_NODES} values")
        is_alias = self.check_event(yaml.AliasEvent)
        is_anchored = not is_alias and self.peek_event().anchor is not None  # type: ignore[no-untyped-call]  # PyYAML has no types
        if is_alias:
            self.aliases += 1
            if self.aliases > MAX_ALIASES:
                raise ValueError(f"more than {MAX_ALIASES} aliases")
        self.depth += 1
        if self.depth > MAX_DEPTH + 1:  # a plain value inside MAX_DEPTH lists is a node too
            raise TooDeep
        aliases = self.aliases
        node = super().compose_node(parent, index)
        if is_anchored and self.aliases > aliases:
            raise ValueError("an alias inside a value with an anchor; write the value out")
        self.depth -= 1
        return node

    def compose_scalar_node(self, anchor: Any) -> yaml.ScalarNode:
        node = super().compose_scalar_node(anchor)
        if node.tag != _TEXT_TAG and len(node.value) > MAX_SCALAR_CHARS:
            raise ValueError(f"a value of more than {MAX_SCALAR_CHARS} characters that is no text")
        node.value.encode()  # raises UnicodeEncodeError for half a surrogate pair
        return node

    def fetch_flow_collection_start(self, token: type[yaml.Token]) -> None:
        """Bound the depth before the scanner, which looks 1,024 brackets ahead, compares each with all others."""
        if self.flow_level > MAX_DEPTH:
            raise TooDeep
        super().fetch_flow_collection_start(token)


_TEXT_TAG = "tag:yaml.org,2002:str"


def _only_service(path: Path, document: Any) -> Mapping[Any, Any]:
    if not isinstance(document, dict):
        raise _refusal(path, "services", "missing", "name the service main")
    for key in document:
        if key not in ("services", "version", "name") and not str(key).startswith("x-"):
            raise _refusal(path, str(key), "cannot be honoured", "remove it")
    services = document.get("services")
    if not isinstance(services, dict) or "main" not in services:
        raise _refusal(path, "services.main", "missing", "name the service that the policy works in main")
    others = sorted(str(name) for name in services if name != "main")
    if others:
        raise _refusal(
            path, f"services.{others[0]}", "a sandbox is one container", "put what it serves into the image of main"
        )
    service = services["main"]
    if service is not None and not isinstance(service, dict):
        raise _refusal(path, "services.main", "not a service", "write its keys below it")
    return service or {}


def _refuse_variables(path: Path, service: Mapping[Any, Any]) -> None:
    """Refuse variables, which Compose takes from the host's environment or from a file; ``$$`` is a dollar."""
    for key in sorted(_HONOURED_KEYS & service.keys()):
        variable = _VARIABLE.search(_HARBOR_VARIABLE.sub("", str(service[key]).replace("$$", "")))
        if variable:
            fault = f"{variable[0][:100]!a} is a variable of the host, which no sandbox has"
            raise _refusal(path, f"services.main.{key}", fault, "write its value")


def _refuse_commands(path: Path, service: Mapping[Any, Any]) -> None:
    """Refuse a command unless it only keeps a container alive, because a sandbox runs the tool server."""
    for key in ("command", "entrypoint"):
        value = service.get(key)
        words = value if isinstance(value, list) else [value]
        if value is not None and " ".join(str(word) for word in words) not in _IDLE_COMMANDS:
            raise _refusal(
                path, f"services.main.{key}", "is not run in a sandbox", "let the tests or the task start it"
            )


def _refuse_volumes(path: Path, service: Mapping[Any, Any]) -> None:
    volumes = service.get("volumes") or []
    if not isinstance(volumes, list) or not all(
        isinstance(item, str) and item.startswith("${HOST_") for item in volumes
    ):
        raise _refusal(path, "services.main.volumes", "nothing of the host is mounted", "copy it in the Dockerfile")


def _builds_dockerfile(path: Path, service: Mapping[Any, Any]) -> bool:
    """Return whether the image is that of ``environment/Dockerfile``. Raises TaskError for any other build."""
    build = service.get("build")
    if build is None:
        return False
    if isinstance(build, str):
        build = {"context": build}
    known_keys = isinstance(build, dict) and build.keys() <= {"context", "dockerfile"}
    in_context = known_keys and str(build.get("context", ".")) in (".", "./", "${CONTEXT_DIR}")
    if not in_context or build.get("dockerfile", "Dockerfile") != "Dockerfile":
        raise _refusal(
            path, "services.main.build", "only environment/Dockerfile is built, without arguments", "write build: ."
        )
    return True


def _image(path: Path, service: Mapping[Any, Any], built: bool) -> str | None:
    image = service.get("image")
    if image is None or built or (isinstance(image, str) and _HARBOR_VARIABLE.fullmatch(image)):
        return None
    try:
        return image_reference(str(image))
    except ValueError as error:
        raise _refusal(path, "services.main.image", str(error), "write its name") from None


def _workdir(path: Path, service: Mapping[Any, Any]) -> str | None:
    workdir = service.get("working_dir")
    if workdir is None:
        return None
    try:
        return workspace_path(workdir if isinstance(workdir, str) and "$" not in workdir else "")
    except ValueError as error:
        raise _refusal(path, "services.main.working_dir", str(error), "write it out") from None


def _environment(path: Path, service: Mapping[Any, Any]) -> Mapping[str, str]:
    """Return the variables without those that Harbor fills in."""
    value = service.get("environment") or {}
    if isinstance(value, list):
        pairs = [str(item).partition("=") for item in value]
        value = {name: text if equals else None for name, equals, text in pairs}
    if not isinstance(value, dict):
        raise _refusal(path, "services.main.environment", "not a list of variables", "write NAME: value")
    variables: dict[str, str] = {}
    for name, content in value.items():
        key, text = f"services.main.environment.{str(name)[:50]}", str(content)
        if content is None:
            raise _refusal(path, key, "has no value, and no sandbox has the host's", "write its value")
        if _HARBOR_VARIABLE.fullmatch(text):
            continue
        variable = isinstance(name, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
        if not variable or isinstance(content, (list, dict)) or "$" in text.replace("$$", "") or "\0" in text:
            raise _refusal(path, key, "not a plain variable", "write its value")
        variables[name] = text.replace("$$", "$")
    return variables


def _refusal(path: Path, key: str, fault: str, remedy: str) -> TaskError:
    return TaskError(path, fault, remedy, key=key)
