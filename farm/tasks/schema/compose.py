"""``environment/docker-compose.yaml`` with the one service ``main``: what of it is taken, and what refused."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from farm.core.nesting_limit import MAX_DEPTH, TooDeep, check_depth
from farm.tasks.errors import TaskError
from farm.tasks.schema.manifest_types import image_reference

NAME = "docker-compose.yaml"
"""The one name that Harbor reads. A ``docker-compose.yml`` is material of the task, like every other file there."""
MAX_BYTES = 64 * 1024
MAX_ALIASES = 16
"""An alias of aliases doubles what it stands for: so many can make a file some hundred times as large, no more."""

_PASSED_OVER = frozenset(
    {"container_name", "deploy", "hostname", "init", "platform", "pull_policy", "stdin_open", "tty"}
)
"""Of the service: names, and limits that Harbor sets from ``task.toml``."""
_IDLE = frozenset({"sleep infinity", "tail -f /dev/null", "sh -c sleep infinity", "bash -c sleep infinity"})
_FILLED_IN = (
    "MAIN_IMAGE_NAME|PREBUILT_IMAGE_NAME|CONTEXT_DIR|TEST_DIR|CPUS|MEMORY"
    "|(HOST|ENV)_(VERIFIER_LOGS|AGENT_LOGS|ARTIFACTS)_PATH"
)
_HARBORS = re.compile(rf"\$(({_FILLED_IN})(?![A-Za-z0-9_])|\{{({_FILLED_IN})(:?-[^}}$]*)?\}})")
"""What Harbor itself fills in, which means nothing here; any other variable would be one of the host's."""
_ASKED = re.compile(r"\$(\{[^}]*\}?|\w*)")


@dataclass(frozen=True, slots=True)
class Composed:
    """What a compose file adds. ``image`` where it names one in place of a build; ``workdir`` is absolute."""

    image: str | None = None
    workdir: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)


def parse_compose(path: Path, content: bytes) -> Composed:
    """Raises TaskError by the key that a sandbox cannot honour."""
    try:
        document = _load(content)
    except (yaml.YAMLError, ValueError, TypeError, AttributeError) as error:
        raise TaskError(path, f"not YAML ({str(error)[:200]})", "correct the syntax there") from None
    service = _only_service(path, document)
    for key in service:
        known = key in _READ or key in _PASSED_OVER or str(key).startswith("x-")
        if not known:
            raise _refusal(path, f"services.main.{key}", "cannot be honoured", "remove it, or say it in the Dockerfile")
    _refuse_variables(path, service)
    _refuse_program(path, service)
    _refuse_volumes(path, service)
    if service.get("network_mode", "none") != "none":
        raise _refusal(path, "services.main.network_mode", "sandboxes have no network", "name hosts in task.toml")
    built = _builds(path, service)
    return Composed(_image(path, service, built), _workdir(path, service), _environment(path, service))


_READ = frozenset({"build", "command", "entrypoint", "environment", "image", "network_mode", "volumes", "working_dir"})


def _load(content: bytes) -> Any:
    if len(content) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES >> 10} KiB")
    document = yaml.load(content, _BoundedLoader)
    check_depth(document)  # aliases nest it deeper than the file is
    return document


class _BoundedLoader(yaml.SafeLoader):
    """Raise ValueError while reading: for more than ``MAX_ALIASES`` aliases, or a file that is nested too deeply."""

    aliases = 0
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            self.aliases += 1
            if self.aliases > MAX_ALIASES:
                raise ValueError(f"more than {MAX_ALIASES} aliases")
        self.depth += 1
        if self.depth > MAX_DEPTH + 1:  # a plain value inside MAX_DEPTH lists is a node too
            raise TooDeep
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


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
    """Compose would take them from the environment of whoever runs it, or from a file beside; ``$$`` is a dollar."""
    for key in sorted(_READ & service.keys()):
        asked = _ASKED.search(_HARBORS.sub("", str(service[key]).replace("$$", "")))
        if asked:
            what = f"{asked[0][:100]!a} asks for a variable of the host's, which no sandbox sees"
            raise _refusal(path, f"services.main.{key}", what, "write its value")


def _refuse_program(path: Path, service: Mapping[Any, Any]) -> None:
    """A sandbox runs the tool server and what it is asked to; what only keeps a container alive is not needed."""
    for key in ("command", "entrypoint"):
        value = service.get(key)
        words = value if isinstance(value, list) else [value]
        if value is not None and " ".join(str(word) for word in words) not in _IDLE:
            raise _refusal(
                path, f"services.main.{key}", "is not run in a sandbox", "let the tests or the task start it"
            )


def _refuse_volumes(path: Path, service: Mapping[Any, Any]) -> None:
    volumes = service.get("volumes") or []
    if not isinstance(volumes, list) or not all(
        isinstance(item, str) and item.startswith("${HOST_") for item in volumes
    ):
        raise _refusal(path, "services.main.volumes", "nothing of the host is mounted", "copy it in the Dockerfile")


def _builds(path: Path, service: Mapping[Any, Any]) -> bool:
    """Whether the image is that of ``environment/Dockerfile``."""
    build = service.get("build")
    if build is None:
        return False
    if isinstance(build, str):
        build = {"context": build}
    plain = isinstance(build, dict) and build.keys() <= {"context", "dockerfile"}
    here = plain and str(build.get("context", ".")) in (".", "./", "${CONTEXT_DIR}")
    if not here or build.get("dockerfile", "Dockerfile") != "Dockerfile":
        raise _refusal(
            path, "services.main.build", "only environment/Dockerfile is built, without arguments", "write build: ."
        )
    return True


def _image(path: Path, service: Mapping[Any, Any], built: bool) -> str | None:
    image = service.get("image")
    if image is None or built or (isinstance(image, str) and _HARBORS.fullmatch(image)):
        return None
    try:
        return image_reference(str(image))
    except ValueError as error:
        raise _refusal(path, "services.main.image", str(error), "write its name") from None


def _workdir(path: Path, service: Mapping[Any, Any]) -> str | None:
    workdir = service.get("working_dir")
    if workdir is not None and (not isinstance(workdir, str) or not workdir.startswith("/") or "$" in workdir):
        raise _refusal(path, "services.main.working_dir", "not an absolute path", "write it out")
    return workdir


def _environment(path: Path, service: Mapping[Any, Any]) -> Mapping[str, str]:
    """Variables that Harbor itself fills in mean nothing here."""
    value = service.get("environment") or {}
    if isinstance(value, list):
        pairs = [str(item).partition("=") for item in value]
        value = {name: text if equals else None for name, equals, text in pairs}
    if not isinstance(value, dict):
        raise _refusal(path, "services.main.environment", "not a list of variables", "write NAME: value")
    kept: dict[str, str] = {}
    for name, content in value.items():
        key, text = f"services.main.environment.{str(name)[:50]}", str(content)
        if content is None:
            raise _refusal(path, key, "has no value, and the host's is not seen by any sandbox", "write its value")
        if _HARBORS.fullmatch(text):
            continue
        variable = isinstance(name, str) and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
        if not variable or isinstance(content, (list, dict)) or "$" in text.replace("$$", "") or "\0" in text:
            raise _refusal(path, key, "not a plain variable", "write its value")
        kept[name] = text.replace("$$", "$")
    return kept


def _refusal(path: Path, key: str, what: str, remedy: str) -> TaskError:
    return TaskError(path, what, remedy, key=key)
