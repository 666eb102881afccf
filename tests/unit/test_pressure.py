"""What the kernel tells of pressure is read as it is written."""

from pathlib import Path

from sandboxes.pressure import Pressure, Stall, read_pressure

SOME = "some avg10=12.50 avg60=3.17 avg300=1.02 total=64984594\n"
FULL = "full avg10=1.55 avg60=0.59 avg300=2.26 total=37888564\n"


def test_shares_of_the_last_ten_seconds(tmp_path: Path) -> None:
    (tmp_path / "cpu").write_text(SOME)
    (tmp_path / "memory").write_text(SOME + FULL)
    read = read_pressure(tmp_path)
    assert read == Pressure(cpu=Stall(0.125), memory=Stall(0.125, 0.0155))


def test_a_kernel_that_does_not_tell_is_not_pressed(tmp_path: Path) -> None:
    assert read_pressure(tmp_path / "none") == Pressure()
