"""``task.toml``: Harbor's schema 1.x, and ``[metadata.farm]`` for what Harbor cannot express."""

import difflib
import posixpath
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from farm.core.task import GradingMode, ReportFormat
from farm.tasks.errors import TaskError
from sandboxes.egress import AllowList
from sandboxes.errors import SpecError

DAY_S = 86_400
_SIZES = {"": 1, "M": 1, "MB": 1, "MI": 1, "MIB": 1, "G": 1024, "GB": 1024, "GI": 1024, "GIB": 1024}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_SUMMARY = re.compile(r"^Value error, ")
OF_CHANGES = frozenset(
    {"grading", "fail_to_pass", "pass_to_pass", "test_command", "report", "protected", "network", "max_turns", "source"}
)
"""Keys that say how a change is made and judged."""


def _relative_path(value: str) -> str:
    """A normalised relative POSIX path that stays where it starts."""
    if not value or value.startswith("/") or "\0" in value or posixpath.normpath(value) != value:
        raise ValueError(f"{value!r} is not a plain relative path")
    if value.split("/")[0] in ("..", "."):
        raise ValueError(f"{value!r} leaves the directory it starts in")
    return value


def _absolute_path(value: str) -> str:
    if not value.startswith("/") or value.startswith("//") or "\0" in value or posixpath.normpath(value) != value:
        raise ValueError(f"{value!r} is not a plain absolute path")
    if value == "/":
        raise ValueError("the root of the image cannot be a workspace")
    return value


def _test_id(value: str) -> str:
    path, colons, name = value.partition("::")
    if not colons or not name or not path.endswith(".py"):
        raise ValueError(f"{value!r} is not a pytest id such as tests/test_a.py::test_b")
    _relative_path(path)
    return value


def _size_mib(value: Any) -> Any:
    """``2048`` (MiB), ``"2G"`` or ``"512M"``, as Harbor writes them, in MiB."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    factor = _SIZES.get(match[2].upper()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{value!r} is not a size such as 2G or 512M")
    return int(float(match[1]) * factor)


def _none_is_no_host(value: Any) -> Any:
    if value == "none":
        return ()
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is neither 'none' nor a list of hosts")
    return value


def _one_or_more(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


def _hosts(value: tuple[str, ...]) -> tuple[str, ...]:
    try:
        AllowList.parse(value)
    except SpecError as error:
        raise ValueError(str(error)) from None
    return value


def _line_range(value: tuple[int, int]) -> tuple[int, int]:
    if not 1 <= value[0] <= value[1]:
        raise ValueError(f"[{value[0]}, {value[1]}] is no range of lines, from 1, both ends included")
    return value


RelativePath = Annotated[str, AfterValidator(_relative_path)]
AbsolutePath = Annotated[str, AfterValidator(_absolute_path)]
TestId = Annotated[str, AfterValidator(_test_id)]
Seconds = Annotated[float, Field(gt=0, le=DAY_S, allow_inf_nan=False)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Hosts = Annotated[tuple[str, ...], AfterValidator(_hosts)]
NetworkMode = Literal["public", "no-network", "allowlist"]
LineRange = Annotated[tuple[int, int], AfterValidator(_line_range)]
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+!-]*$")]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Harbor(BaseModel):
    """Harbor's own tables: keys that we do not know are passed over, as Harbor does."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Release(_Strict):
    """A release pair: ``old`` is the repository, ``new`` brings the verifier's tests and the gold change.

    The digests are those of the two source distributions.
    """

    package: Word
    old: Word
    new: Word
    old_sha256: Sha256
    new_sha256: Sha256


class ExpectedFile(_Strict):
    path: RelativePath
    lines: tuple[LineRange, ...]


class RetrievalTable(_Strict):
    """``[metadata.farm.retrieval]``: the code is to be found, not changed."""

    calls_per_turn: Annotated[int, Field(ge=1, le=64)] = 8
    max_turns: Annotated[int, Field(ge=1, le=100)] = 4
    beta: Annotated[float, Field(ge=0.01, le=100, allow_inf_nan=False)] = 0.5
    expected: tuple[ExpectedFile, ...]

    @model_validator(mode="after")
    def _names_a_line(self) -> Self:
        if not any(file.lines for file in self.expected):
            raise ValueError("no line is expected")
        return self


class FarmTable(_Strict):
    """``[metadata.farm]``. The two id lists may each be a file of the task, one id a line."""

    workspace: AbsolutePath | None = None
    grading: GradingMode = GradingMode.PATCH
    fail_to_pass: tuple[TestId, ...] | RelativePath = ()
    pass_to_pass: tuple[TestId, ...] | RelativePath = ()
    test_command: str | None = None
    report: ReportFormat | None = None
    protected: tuple[str, ...] = ()
    tools: Annotated[tuple[str, ...], BeforeValidator(_one_or_more)] = ()
    network: Annotated[Hosts, BeforeValidator(_none_is_no_host)] | None = None
    max_turns: Annotated[int, Field(ge=1, le=10_000)] = 100
    source: Release | None = None
    retrieval: RetrievalTable | None = None


class Metadata(_Harbor):
    farm: FarmTable = FarmTable()


class TaskTable(_Harbor):
    name: str | None = None


class _Networked(_Harbor):
    """Harbor's own way to say what may be reached; of its modes only ``allowlist`` grants something here."""

    network_mode: NetworkMode | None = None
    allowed_hosts: Hosts = ()


class VerifierTable(_Networked):
    timeout_sec: Seconds = 600.0
    env: Mapping[str, str] = {}
    user: str | int | None = None


class AgentTable(_Networked):
    timeout_sec: Seconds = 600.0
    user: str | int | None = None


class EnvironmentTable(_Networked):
    build_timeout_sec: Seconds = 600.0
    docker_image: str | None = None
    cpus: Annotated[float, Field(gt=0, le=1024)] = 1.0
    memory_mb: Annotated[int, BeforeValidator(_size_mib), Field(ge=64, le=4 << 20)] = 2048
    storage_mb: Annotated[int, BeforeValidator(_size_mib), Field(ge=64, le=64 << 20)] = 10_240
    gpus: int = 0
    env: Mapping[str, str] = {}

    @model_validator(mode="before")
    @classmethod
    def _older_spellings(cls, value: Any) -> Any:
        if isinstance(value, dict):
            renamed = {"memory": "memory_mb", "storage": "storage_mb"}
            return {renamed.get(key, key): content for key, content in value.items()}
        return value


class Manifest(_Harbor):
    """One ``task.toml``."""

    schema_version: str = "1.0"
    task: TaskTable = TaskTable()
    metadata: Metadata = Metadata()
    verifier: VerifierTable = VerifierTable()
    agent: AgentTable = AgentTable()
    environment: EnvironmentTable = EnvironmentTable()
    steps: tuple[Any, ...] = ()

    @property
    def network(self) -> tuple[str, ...]:
        """The hosts that a policy may reach: the farm's own key, else what Harbor's tables allow the agent."""
        if self.metadata.farm.network is not None:
            return self.metadata.farm.network
        table = self.agent if self.agent.network_mode is not None else self.environment
        return table.allowed_hosts if table.network_mode == "allowlist" else ()

    @model_validator(mode="before")
    @classmethod
    def _older_version(cls, value: Any) -> Any:
        if isinstance(value, dict) and "version" in value:
            return {"schema_version": value["version"], **value}
        return value


def parse_manifest(path: Path, content: bytes) -> Manifest:
    """Read a ``task.toml``. Raises TaskError."""
    try:
        document = tomllib.loads(content.decode())
    except ValueError as error:  # also a number of thousands of digits, which Python does not read
        raise TaskError(path, f"not TOML: {str(error).split(';')[0]}", "correct the syntax there") from None
    except RecursionError:
        raise TaskError(path, "nested too deeply", "write it flatter") from None
    try:
        manifest = Manifest.model_validate(document)
    except ValidationError as error:
        raise _first(path, error) from None
    _refuse_what_cannot_be_honoured(path, manifest)
    return manifest


def parse_ids(path: Path, key: str, lines: Sequence[str]) -> tuple[str, ...]:
    """Test ids from a file, one a line; blank lines are passed over. Raises TaskError."""
    try:
        return tuple(_test_id(line) for line in lines if line)
    except ValueError as error:
        raise TaskError(path, str(error), "write one pytest id a line", key=key) from None


def _first(path: Path, error: ValidationError) -> TaskError:
    """The first complaint as a TaskError; for an unknown key, the nearest right one is the remedy."""
    found = error.errors(include_url=False)
    unknown = [item for item in found if item["type"] == "extra_forbidden"]
    # Of a value that may be of two types, the complaint about its content says more than the one about its type.
    telling = [item for item in found if item["type"] not in ("tuple_type", "string_type")]
    first = [*unknown, *telling, *found][0]
    key = ".".join(str(part) for part in first["loc"] if not str(part).startswith(("tuple[", "function-", "str")))
    if first["type"] == "extra_forbidden":
        known = _keys_at(first["loc"][:-1])
        near = difflib.get_close_matches(str(first["loc"][-1]), known, n=1, cutoff=0.0)
        return TaskError(path, "unknown key", f"the nearest one is {near[0]!r}", key=key)
    if first["type"] == "missing":
        return TaskError(path, "missing", "add it", key=key)
    what = _SUMMARY.sub("", str(first["msg"]))
    return TaskError(path, what[0].lower() + what[1:], "correct the value", key=key)


def _keys_at(location: Sequence[int | str]) -> list[str]:
    model: type[BaseModel] = Manifest
    for part in location:
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        model = next(kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type))
    return list(model.model_fields)


def _refuse_what_cannot_be_honoured(path: Path, manifest: Manifest) -> None:
    """What would silently mean something else here is an error."""
    environment = manifest.environment
    if manifest.metadata.farm.retrieval is not None:
        for key in sorted(OF_CHANGES & manifest.metadata.farm.model_fields_set):
            raise TaskError(path, "means nothing where code is to be found", "remove it", key=f"metadata.farm.{key}")
    for wrong, key, what, remedy in (
        (
            not manifest.schema_version.startswith("1."),
            "schema_version",
            f"schema {manifest.schema_version} is not known",
            "write a task of Harbor's schema 1.x",
        ),
        (
            manifest.metadata.farm.grading is not GradingMode.PATCH,
            "metadata.farm.grading",
            f"grading mode {manifest.metadata.farm.grading.value} is not available",
            'write grading = "patch"',
        ),
        (bool(manifest.steps), "steps", "tasks of several steps cannot be run", "make one task of each step"),
        (environment.gpus > 0, "environment.gpus", "sandboxes have no GPU", "take a task that needs none"),
        (
            bool(environment.env),
            "environment.env",
            "cannot be honoured",
            "write ENV lines into environment/Dockerfile",
        ),
        (bool(manifest.verifier.env), "verifier.env", "cannot be honoured", "export the variables in tests/test.sh"),
        (
            manifest.verifier.network_mode in ("public", "allowlist"),
            "verifier.network_mode",
            "tests never have a network",
            "install what they need in environment/Dockerfile, and remove the key",
        ),
        (
            manifest.agent.user not in (None, "root", 0),
            "agent.user",
            "commands in a sandbox run as root",
            "remove the key",
        ),
        (
            manifest.verifier.user not in (None, "root", 0),
            "verifier.user",
            "commands in a sandbox run as root",
            "remove the key",
        ),
    ):
        if wrong:
            raise TaskError(path, what, remedy, key=key)
