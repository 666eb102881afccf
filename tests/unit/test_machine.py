"""What a node says of itself."""

from pathlib import Path

from farm.cluster.machine import default_slots, read_machine, read_pressure
from farm.core.events import Pressure

SOME = "some avg10={} avg60=1.00 avg300=2.00 total=379203932\n"
FULL = "full avg10={} avg60=3.00 avg300=4.00 total=12\n"


def test_pressure_is_that_of_the_last_ten_seconds(tmp_path: Path) -> None:
    (tmp_path / "cpu").write_text(SOME.format("94.22") + FULL.format("0.00"))
    (tmp_path / "memory").write_text(SOME.format("0.21") + FULL.format("0.10"))
    (tmp_path / "io").write_text(SOME.format("3.50") + FULL.format("1.00"))
    assert read_pressure(tmp_path) == Pressure(0.9422, 0.0021, 0.001, 0.035, 0.01)


def test_a_kernel_without_a_line_for_all_tasks_is_understood(tmp_path: Path) -> None:
    for kind in ("cpu", "memory", "io"):
        (tmp_path / kind).write_text(SOME.format("50.00"))
    assert read_pressure(tmp_path) == Pressure(0.5, 0.5, 0.0, 0.5, 0.0)


def test_a_kernel_that_does_not_tell_is_no_pressure_of_zero(tmp_path: Path) -> None:
    assert read_pressure(tmp_path) is None


def test_this_machine_is_read(tmp_path: Path) -> None:
    reading = read_machine(tmp_path)
    assert reading.image_disk_free_mib is None
    assert reading.memory_available_mib > 0
    assert 0 < reading.load.disk < 1
    assert read_machine(tmp_path, tmp_path).image_disk_free_mib is not None
    assert default_slots() >= 1
