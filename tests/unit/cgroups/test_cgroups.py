"""Which control groups a machine has, as its mounts tell."""

from dataclasses import replace
from pathlib import Path

import pytest

from sandboxes.cgroups.cgroups import NEEDED_CONTROLLERS, UNIFIED_BESIDE_V1, find_hierarchies
from sandboxes.ownership.owner import Identity, group_of

ROOT = Path("/sys/fs/cgroup")
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "".join(
    f"{number} 29 0:{number} / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}\n"
    for number, name in enumerate(("cpu,cpuacct", "cpuset", "memory", "devices", "freezer", "pids", "blkio"), 31)
)
NAMED = "40 29 0:40 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
HYBRID = "41 29 0:41 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
OTHER = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"


def test_cgroup_v2_has_one_hierarchy() -> None:
    found = find_hierarchies(OTHER + V2)
    assert found.unified
    assert found.mounts == {"": ROOT}


@pytest.mark.parametrize("unified", [False, True], ids=["legacy", "hybrid"])
def test_cgroup_v1_has_hierarchy_for_each_controller(unified: bool) -> None:
    found = find_hierarchies(OTHER + V1 + NAMED + (HYBRID if unified else ""))
    assert not found.unified
    assert set(found.needed().mounts) == set(NEEDED_CONTROLLERS)
    assert set(found.mounts) - set(NEEDED_CONTROLLERS) == {"cpuacct", "cpuset", "blkio", "name=systemd"} | (
        {UNIFIED_BESIDE_V1} if unified else set()
    )
    assert found.mounts["cpu"] == ROOT / "cpu,cpuacct"


def test_host_without_cgroups_has_no_hierarchy() -> None:
    assert find_hierarchies(OTHER).mounts == {}


def test_cgroup_name_depends_on_state_dir() -> None:
    one = Identity(Path("/a"), "one", "seal")
    others = (replace(one, state_dir=Path("/b")), replace(one, name="other"), replace(one, seal="of another machine"))
    assert group_of(one) not in map(group_of, others)
    assert group_of(one).startswith("farm-one-")
