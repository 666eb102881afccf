"""When an estimate of what a sandbox holds is a reason to end it."""

from pathlib import Path

import pytest

from sandboxes.runtimes.uncounted_memory import measure
from sandboxes.runtimes.uncounted_memory.measure import UncountedMemory
from sandboxes.runtimes.uncounted_memory.watch import UncountedMemoryWatch

MANY = UncountedMemory(in_flight=100)
FEW = UncountedMemory(in_flight=1)


def ends(hoarders: UncountedMemoryWatch, held: UncountedMemory) -> bool:
    return "it" in hoarders._select_above_limit({"it": held}, scarce=False)


def test_descriptors_in_flight_count_at_third_survey() -> None:
    hoarders = UncountedMemoryWatch()
    assert [ends(hoarders, MANY) for _ in range(3)] == [False, False, True]


def test_received_descriptors_do_not_count() -> None:
    hoarders = UncountedMemoryWatch()
    assert [ends(hoarders, held) for held in (MANY, MANY, FEW, MANY, MANY)] == [False] * 5


def test_measured_memory_counts_at_once() -> None:
    assert ends(UncountedMemoryWatch(), UncountedMemory(directories=20_000))
    assert ends(UncountedMemoryWatch(), UncountedMemory(directories=20_000, in_flight=1))
    assert not ends(UncountedMemoryWatch(), UncountedMemory(directories=20_000, sampled=True))
    assert ends(UncountedMemoryWatch(), UncountedMemory(locks=10_001, sampled=True))


@pytest.mark.parametrize(("kind", "corked", "unaccepted"), [("none", 0, 0), ("UDP", 4096, 0), ("TCP", 0, 1)])
def test_only_tables_of_counted_sockets_are_read(
    kind: str, corked: int, unaccepted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = tmp_path / "7" / "net"
    net.mkdir(parents=True)
    counts = {name: int(name == kind) for name in ("TCP", "UDP")}
    (net / "sockstat").write_text("".join(f"{name}: inuse {number} mem 0\n" for name, number in counts.items()))
    (net / "udp").write_text("head\n 1: 0100007F:1F90 0100007F:1F91 01 00001000:00000000 00:0 0 0 0 9\n")
    (net / "tcp").write_text("head\n 0: 0100007F:1F90 0100007F:1F91 01 00000000:00000010 00:0 0 0 0 0\n")
    monkeypatch.setattr(measure, "PROC", tmp_path)
    held = UncountedMemory()
    measure._add_network(held, [7])
    assert (held.corked_bytes, held.unaccepted) == (corked, unaccepted)
