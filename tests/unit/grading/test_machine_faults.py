"""Tests that host faults raise instead of giving a verdict."""

import errno

import pytest

from farm.core.task import ReportFormat
from farm.core.test_frameworks import owned_files
from farm.grading.errors import raise_if_host_fault
from sandboxes.errors import PathError, RuntimeUnavailable
from tests.support.farm.grading_values import make_verifier


@pytest.mark.parametrize(
    ("number", "in_a_used_one", "in_a_fresh_one"),
    [
        (errno.EIO, True, True),
        (errno.ENFILE, True, True),
        (errno.ENOSPC, False, True),
        (errno.EDQUOT, False, True),
        (errno.EMFILE, False, True),
        (errno.ENOTDIR, False, False),
        (errno.ENOENT, False, False),
    ],
)
def test_host_faults_are_raised_as_such(number: int, in_a_used_one: bool, in_a_fresh_one: bool) -> None:
    for fresh, blamed in ((False, in_a_used_one), (True, in_a_fresh_one)):
        error = PathError(number, "/tmp/report", "it failed")
        if blamed:
            with pytest.raises(RuntimeUnavailable, match="look at its disk"):
                raise_if_host_fault(error, fresh=fresh)
        else:
            raise_if_host_fault(error, fresh=fresh)


@pytest.mark.parametrize(
    ("report", "path", "owned"),
    [
        (ReportFormat.PYTEST, "pkg/module.py", False),
        (ReportFormat.PYTEST, "pkg/tests.py", True),
        (ReportFormat.PYTEST, "pkg/test_module.py", True),
        (ReportFormat.PYTEST, "pkg/module_test.py", True),
        (ReportFormat.PYTEST, "pkg/tests/module.py", True),
        (ReportFormat.PYTEST, "pkg/contest.py", False),
        (ReportFormat.PYTEST, "pkg/latest.py", False),
        (ReportFormat.CARGO, "src/lib.rs", False),
        (ReportFormat.CARGO, "tests/api.rs", True),
        (ReportFormat.JEST, "src/sum.test.js", True),
        (ReportFormat.JEST, "src/__tests__/sum.js", True),
        (ReportFormat.JEST, "src/sum.js", False),
    ],
)
def test_module_with_doctests_belongs_to_policy(report: ReportFormat, path: str, owned: bool) -> None:
    kept = make_verifier(report=report, fail_to_pass=(), pass_to_pass=(f"{path}::a",))
    assert (path in owned_files(kept)) is owned
    broken = make_verifier(report=report, fail_to_pass=(f"{path}::a",), pass_to_pass=())
    assert path in owned_files(broken)
