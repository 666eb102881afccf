"""What Harbor says of a task's environment, read as what a sandbox can be."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from farm.core.task import MIN_STORAGE_MIB, GradingMode, Healthcheck, ReportFormat
from farm.tasks.bundle import BundleFile
from farm.tasks.errors import TaskError
from farm.tasks.files import MANIFEST
from farm.tasks.schema import compose
from farm.tasks.schema.compose import Composed
from farm.tasks.schema.manifest import EnvironmentTable, HealthcheckTable, Manifest
from sandboxes.images.dockerfile import instructions


def composed_of(path: Path, environment: Mapping[str, BundleFile]) -> Composed:
    if compose.NAME not in environment:
        return Composed()
    return compose.parse_compose(path / "environment" / compose.NAME, environment[compose.NAME].content)


def healthcheck_of(table: HealthcheckTable | None) -> Healthcheck | None:
    if table is None:
        return None
    return Healthcheck(table.command, table.interval_sec, table.timeout_sec, table.start_period_sec, table.retries)


@dataclass(frozen=True, slots=True)
class Users:
    """Who the policy is in its sandbox, and as whom the tests run; empty: whoever the image says."""

    policy: str
    tests: str


def users_of(file: Path, manifest: Manifest, environment: Mapping[str, BundleFile], report: ReportFormat) -> Users:
    """The tests' is the policy's where nothing is said: no sandbox has a root that could write to another's files.

    Raises TaskError for what cannot be graded so.
    """
    agent, verifier = manifest.agent.user, manifest.verifier.user
    named = _named_user(environment)
    root = ("root", "0")

    def made(user: str | None) -> str:
        if user is None or (user in root and named in (None, *root) and "Dockerfile" in environment):
            return ""
        # Whoever is not root cannot make Harbor's places by himself.
        return "" if user == named and report is not ReportFormat.REWARD_FILE else user

    if manifest.separate:
        if verifier not in (None, *root):
            raise TaskError(
                file, "a verifier of its own runs as its image's user", "remove the key", key="verifier.user"
            )
        return Users(made(agent or named), "")
    users = Users(made(agent or named), made(verifier or agent or named))
    mode = manifest.metadata.farm.grading
    if users.policy != users.tests and mode is not GradingMode.PATCH:
        raise TaskError(
            file,
            f"what is graded by {mode.value} is judged as the user who worked there",
            "remove the key, or choose another metadata.farm.grading",
            key="verifier.user",
        )
    return users


def _named_user(environment: Mapping[str, BundleFile]) -> str | None:
    text = environment["Dockerfile"].content.decode(errors="replace") if "Dockerfile" in environment else ""
    lines = text.split("\n")
    named = [lines[item.first].split(None, 1)[-1].strip() for item in instructions(text) if item.name == "USER"]
    return named[-1] if named else None


def storage_of(path: Path, manifest: Manifest, table: EnvironmentTable, place: str) -> int:
    """Return the disk to grant: a task of Harbor's that declares less gets what grading needs.

    Raises TaskError if a task of the farm's own declares less.
    """
    if table.storage_mb < MIN_STORAGE_MIB and manifest.own:
        raise TaskError(
            path / MANIFEST,
            f"{table.storage_mb} MiB of disk are too few to grade in",
            f"grant at least {MIN_STORAGE_MIB}",
            key=f"{place}.storage_mb",
        )
    return max(table.storage_mb, MIN_STORAGE_MIB)
