"""Derive from Harbor's tables what a sandbox needs: compose settings, healthcheck, users and disk."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from farm.core.task import MIN_STORAGE_MIB, GradingMode, Healthcheck, ReportFormat
from farm.tasks.bundle import BundleFile
from farm.tasks.errors import TaskError
from farm.tasks.files import MANIFEST
from farm.tasks.schema import compose
from farm.tasks.schema.compose import ComposeSettings
from farm.tasks.schema.manifest import EnvironmentTable, HealthcheckTable, Manifest
from sandboxes.images.dockerfile import instructions


def read_compose(path: Path, environment: Mapping[str, BundleFile]) -> ComposeSettings:
    """Return the settings of the compose file, if there is one."""
    if compose.NAME not in environment:
        return ComposeSettings()
    return compose.parse_compose(path / "environment" / compose.NAME, environment[compose.NAME].content)


def healthcheck_of(table: HealthcheckTable | None) -> Healthcheck | None:
    """Return the healthcheck of a table."""
    if table is None:
        return None
    return Healthcheck(table.command, table.interval_sec, table.timeout_sec, table.start_period_sec, table.retries)


@dataclass(frozen=True, slots=True)
class Users:
    """The users of the policy and of the tests. Empty: the user of the image."""

    policy: str
    tests: str


def users_of(file: Path, manifest: Manifest, environment: Mapping[str, BundleFile], report: ReportFormat) -> Users:
    """Return the users of the policy and of the tests; by default the tests have the policy's.

    Root in a sandbox cannot write to another user's files. Raises TaskError for a combination that cannot be graded.
    """
    agent, verifier = manifest.agent.user, manifest.verifier.user
    dockerfile_user = _named_user(environment)
    root = ("root", "0")

    def user_of(user: str | None) -> str:
        if user is None or (user in root and dockerfile_user in (None, *root) and "Dockerfile" in environment):
            return ""
        # A reward file needs Harbor's directories, which a user other than root cannot create.
        return "" if user == dockerfile_user and report is not ReportFormat.REWARD_FILE else user

    if manifest.separate:
        if verifier not in (None, *root):
            raise TaskError(file, "a separate verifier runs as its image's user", "remove the key", key="verifier.user")
        return Users(user_of(agent or dockerfile_user), "")
    users = Users(user_of(agent or dockerfile_user), user_of(verifier or agent or dockerfile_user))
    mode = manifest.metadata.farm.grading
    if users.policy != users.tests and mode is not GradingMode.PATCH:
        raise TaskError(
            file,
            f"with grading by {mode.value} the tests run as the policy's user",
            "remove the key, or choose another metadata.farm.grading",
            key="verifier.user",
        )
    return users


def _named_user(environment: Mapping[str, BundleFile]) -> str | None:
    """Return the last USER of the Dockerfile."""
    text = environment["Dockerfile"].content.decode(errors="replace") if "Dockerfile" in environment else ""
    lines = text.split("\n")
    users = [lines[item.first].split(None, 1)[-1].strip() for item in instructions(text) if item.name == "USER"]
    return users[-1] if users else None


def storage_of(path: Path, manifest: Manifest, table: EnvironmentTable, table_name: str) -> int:
    """Return the disk to grant in MiB: a Harbor task that declares less than grading needs gets what grading needs.

    Raises TaskError if a task of the farm's own declares less.
    """
    if table.storage_mb < MIN_STORAGE_MIB and manifest.own:
        raise TaskError(
            path / MANIFEST,
            f"{table.storage_mb} MiB of disk are too few for grading",
            f"grant at least {MIN_STORAGE_MIB}",
            key=f"{table_name}.storage_mb",
        )
    return max(table.storage_mb, MIN_STORAGE_MIB)
