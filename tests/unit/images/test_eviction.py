"""Which images go when room is needed, and in which order."""

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from sandboxes.images.eviction import DiskUsage, Holdings, bases, departures
from sandboxes.images.last_used import ImageUse
from sandboxes.images.store import ImageInfo

BASE = ("0",)


def image(name: str, *own: str, on: tuple[str, ...] = BASE, tagged_at: float = 0.0) -> ImageInfo:
    return ImageInfo(name, f"id of {name}", {}, "/", 1, {}, (*on, *own), tagged_at)


def holdings(*images: ImageInfo, occupied: Collection[str] = (), **used_at: float) -> Holdings:
    uses = {name.replace("_", "-"): ImageUse(at, pulled=name.startswith("pulled")) for name, at in used_at.items()}
    return Holdings(images, uses, occupied)


def order(held: Holdings, prefix: str = "farm-task-") -> list[str]:
    return [gone.name for gone in departures(held, held.free_to_go(prefix))]


def test_least_recently_used_image_is_evicted_first() -> None:
    held = holdings(
        image("farm-task-new", "1", tagged_at=50),
        image("farm-task-old", "2", tagged_at=10),
        image("farm-task-used", "3", tagged_at=5),
        farm_task_used=90,
    )
    assert order(held) == ["farm-task-old", "farm-task-new", "farm-task-used"]


def test_foreign_images_stay_and_pulled_images_are_evicted() -> None:
    held = holdings(image("farm-base", on=BASE), image("debian", "1"), image("pulled-x", "2"), pulled_x=1, debian=1)
    assert order(held) == ["pulled-x"]


def test_own_bytes_exclude_base_layers() -> None:
    base = ImageInfo("farm-task-base", "id of base", {}, "/", 100, {}, ("0", "1"))
    upper = ImageInfo("farm-task-upper", "id of upper", {}, "/", 130, {}, ("0", "1", "2"))
    twin = ImageInfo("farm-task-twin", "id of upper", {}, "/", 130, {}, ("0", "1", "2"))
    held = holdings(base, upper, twin)
    assert held.own_bytes([upper, twin]) == 30
    assert held.own_bytes([upper, base]) == 130


def test_image_belongs_to_state_directory_with_record() -> None:
    mine, other = image("farm-task-mine", "1"), image("farm-task-other", "2")
    held = holdings(mine, other, farm_task_mine=1)
    assert [held.is_of_state_dir(one) for one in held.images] == [True, False]


def test_image_used_by_container_keeps_all_names() -> None:
    one = image("farm-task-a", "1")
    twin = ImageInfo("farm-task-b", one.digest, {}, "/", 1, {}, one.layers)
    assert order(holdings(one, twin, occupied={one.digest})) == []
    assert order(holdings(one, twin)) == ["farm-task-a", "farm-task-b"]


def test_base_is_evicted_only_after_images_above() -> None:
    base = image("farm-task-base", "1")
    upper = image("farm-task-upper", "2", on=base.layers)
    foreign = image("mine", "3", on=base.layers)
    assert bases([base, upper, foreign])["mine"] == {"farm-task-base"}
    assert order(holdings(base, upper, farm_task_upper=99)) == ["farm-task-upper", "farm-task-base"]
    assert order(holdings(base, upper, foreign)) == ["farm-task-upper"]


def test_image_with_same_layers_is_no_base() -> None:
    one, other = image("farm-task-a", "1"), image("farm-task-b", "1")
    assert bases([one, other]) == {"farm-task-a": frozenset(), "farm-task-b": frozenset()}


@given(
    st.lists(st.lists(st.sampled_from("ab"), max_size=4).map(tuple), max_size=12),
    st.sets(st.integers(0, 11)),
    st.lists(st.integers(0, 9), min_size=12, max_size=12),
)
def test_any_holdings_evict_all_images_without_dependents(
    layers: list[tuple[str, ...]], foreign: set[int], used: list[int]
) -> None:
    images = [
        ImageInfo(f"{'mine' if n in foreign else 'farm-task'}-{n}", str(n), {}, "/", 1, {}, stack, used[n])
        for n, stack in enumerate(layers)
    ]
    held = Holdings(images, {}, ())
    gone = departures(held, held.free_to_go("farm-task-"))
    below = bases(images)
    left = {one.name for one in images}
    for one in gone:
        left.discard(one.name)
        assert all(one.name not in below[other] for other in left), "something is left that is built on it"
    for one in images:
        if one.name in left and one.name.startswith("farm-task-"):
            assert any(one.name in below[other] for other in left), "nothing kept it"


def test_fullness_is_fraction_of_usable_space() -> None:
    assert DiskUsage(used_bytes=30, free_bytes=10).fullness == 0.75
    assert DiskUsage(used_bytes=0, free_bytes=0).fullness == 0.0
