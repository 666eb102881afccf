"""A sandbox has ids that nobody else has, unless it shares its source's."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sandboxes.runtimes.oci.uid_ranges import FIRST_ID, IDS, RANGES, UidRanges

NAMES = "abcdef"
STEP = st.one_of(
    st.tuples(st.just("new"), st.sampled_from(NAMES)),
    st.tuples(st.just("fork"), st.sampled_from(NAMES), st.sampled_from(NAMES)),
    st.tuples(st.just("adopt"), st.sampled_from(NAMES), st.integers(0, RANGES - 1)),
    st.tuples(st.just("drop"), st.sampled_from(NAMES)),
)


@given(st.lists(STEP, max_size=40))
def test_free_range_is_unused(steps: list[tuple[str, str, str | int]]) -> None:
    ranges, held = UidRanges(), dict[str, int]()
    for kind, name, *told in steps:
        match kind, told:
            case "new", []:
                first_id = ranges.free()
                assert first_id not in held.values()
                assert (first_id - FIRST_ID) % IDS == 0
                held[name] = first_id
                ranges.hold(name, first_id)
            case "fork", [str() as source] if source in held:
                held[name] = held[source]
                ranges.hold(name, ranges.of(source))
            case "adopt", [int() as number]:
                held[name] = FIRST_ID + number * IDS
                ranges.hold(name, held[name])
            case "drop", []:
                held.pop(name, None)
                ranges.drop(name)
        assert {known: ranges.of(known) for known in held} == held


@settings(max_examples=10)
@given(st.sets(st.integers(0, RANGES - 1), min_size=1, max_size=5))
def test_last_free_ranges_are_found(free: set[int]) -> None:
    ranges = UidRanges()
    for number in range(RANGES):
        for name in (f"{number}", f"{number}", f"fork of {number}"):
            ranges.hold(name, FIRST_ID + number * IDS)
    for number in range(RANGES):
        ranges.drop(f"{number}")
        if number in free:
            ranges.drop(f"fork of {number}")
    found = [ranges.free() for _ in range(len(free) + 1)]
    assert {(first_id - FIRST_ID) // IDS for first_id in found} == free
