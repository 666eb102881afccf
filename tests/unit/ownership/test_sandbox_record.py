"""What is written down of a sandbox is read back as it was, or not at all."""

import json
from pathlib import Path

import pytest

from sandboxes import SandboxLimits, SandboxSpec
from sandboxes.ownership.owner import Owner
from sandboxes.ownership.sandbox_record import SandboxRecord

SPEC = SandboxSpec(
    "farm-task-x:1",
    workdir="/repo",
    env={"A": "b\n\udcff", "EMPTY": ""},
    limits=SandboxLimits(memory_mib=128, cpus=0.5, disk_mib=64),
    labels={"run": "r", "rollout": "é"},
    egress=("pypi.org", "*.pythonhosted.org:443"),
)
RECORD = SandboxRecord(SPEC, "sha256:1", "/repo", shut=True)


def test_record_round_trip() -> None:
    assert SandboxRecord.parse(RECORD.dump()) == RECORD


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"spec": 1}', RECORD.dump()[:-20]])
def test_invalid_record_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"record|Expecting|Unterminated"):
        SandboxRecord.parse(text)


@pytest.mark.parametrize("change", [{"novel": 1}, {"image": "../x"}, {"limits": {"novel": 1}}, {"egress": ["*"]}])
def test_record_of_another_version_is_refused(change: dict[str, object]) -> None:
    found = json.loads(RECORD.dump())
    found["spec"] |= change
    with pytest.raises(ValueError, match="is invalid"):
        SandboxRecord.parse(json.dumps(found))


def test_last_record_line_counts(tmp_path: Path) -> None:
    owner = Owner.claim(tmp_path)
    for text in ("first", "second"):
        owner.keep_record("one", text)
        assert owner.record("one") == text
    owner.forget_record("one")
    owner.forget_record("one")
    with pytest.raises(FileNotFoundError):
        owner.record("one")
    owner.release()
