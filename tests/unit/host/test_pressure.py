"""What the kernel tells of pressure is read as it is written."""

from pathlib import Path

import pytest

from sandboxes.host.pressure import Pressure, Stall, read_pressure

SOME = "some avg10=12.50 avg60=3.17 avg300=1.02 total=64984594\n"
FULL = "full avg10=1.55 avg60=0.59 avg300=2.26 total=37888564\n"
MEMINFO = (
    "MemTotal:       24640184 kB\nMemFree:          441884 kB\nMemAvailable:    6160046 kB\nHugePages_Total:       0\n"
)


def test_pressure_files_are_parsed(tmp_path: Path) -> None:
    (tmp_path / "pressure").mkdir()
    (tmp_path / "pressure" / "cpu").write_text(SOME)
    (tmp_path / "pressure" / "memory").write_text(SOME + FULL)
    (tmp_path / "meminfo").write_text(MEMINFO)
    read = read_pressure(tmp_path)
    assert read == Pressure(cpu=Stall(0.125), memory=Stall(0.125, 0.0155), memory_left=0.25)


def test_kernel_without_psi_has_no_pressure(tmp_path: Path) -> None:
    assert read_pressure(tmp_path / "none") == Pressure()


def test_host_pressure_can_be_read() -> None:
    assert 0 < read_pressure().memory_left <= 1


@pytest.mark.parametrize(
    ("left", "stall", "short"),
    [
        (0.9, 0.0, False),
        (0.9, 1.0, False),  # a sandbox at its own limit
        (0.2, 0.05, False),
        (0.2, 0.5, True),
        (0.04, 0.0, True),
    ],
)
def test_memory_is_short_if_scarce_and_stalled(left: float, stall: float, short: bool) -> None:
    assert Pressure(memory=Stall(stall), memory_left=left).short_of_memory is short
