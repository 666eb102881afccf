"""When images were last used, as it is kept on disk."""

import os
from pathlib import Path

from sandboxes.images.last_used import NOTE_EVERY_S, STALE_S, ImageUse, ImageUses

NOW = 1_700_000_000.0
LONG_NAME = "127.0.0.1:5000/" + "a/" * 115 + "x:1"


def test_use_persists_across_restart(tmp_path: Path) -> None:
    ImageUses.of(tmp_path).note("farm-task-a:1", NOW)
    ImageUses.of(tmp_path).note(LONG_NAME, NOW + 1)
    assert ImageUses.of(tmp_path).all() == {
        "farm-task-a:1": ImageUse(NOW, pulled=False),
        LONG_NAME: ImageUse(NOW + 1, pulled=False),
    }


def test_use_is_written_at_most_once_per_interval(tmp_path: Path) -> None:
    uses = ImageUses.of(tmp_path)
    for second in range(int(NOTE_EVERY_S)):
        uses.note("a", NOW + second)
    assert uses.all()["a"].at == NOW
    uses.note("a", NOW + NOTE_EVERY_S)
    assert uses.all()["a"].at == NOW + NOTE_EVERY_S


def test_clock_set_back_still_records_use(tmp_path: Path) -> None:
    uses = ImageUses.of(tmp_path)
    uses.note("a", NOW)
    uses.note("a", NOW - 86_400)
    assert uses.all()["a"].at == NOW - 86_400


def test_use_keeps_pulled_flag(tmp_path: Path) -> None:
    ImageUses.of(tmp_path).note("a", NOW)
    ImageUses.of(tmp_path).note_pulled("a", NOW + 1)
    ImageUses.of(tmp_path).note("a", NOW + 2)
    assert ImageUses.of(tmp_path).all() == {"a": ImageUse(NOW + 2, pulled=True)}


def test_invalid_use_files_are_ignored(tmp_path: Path) -> None:
    uses = ImageUses.of(tmp_path)
    uses.note("a", NOW)
    home = tmp_path / "images"
    (home / "torn").write_text('{"image": "b", "pul')
    (home / "other").write_text('{"image": "c", "pulled": false}')
    (home / "list").write_text("[]")
    (home / "directory").mkdir()
    assert uses.all().keys() == {"a"}


def test_removed_images_are_forgotten_except_recent_ones(tmp_path: Path) -> None:
    uses = ImageUses.of(tmp_path)
    for image, at in (("here", 0.0), ("gone", 0.0), ("in the making", NOW)):
        uses.note(image, at)
    uses.forget_all_but({"here"}, NOW + STALE_S)
    assert uses.all().keys() == {"here", "in the making"}
    uses.forget("here")
    assert uses.all().keys() == {"in the making"}


def test_unwritable_directory_raises_no_error(tmp_path: Path) -> None:
    (tmp_path / "images").write_text("a file")
    uses = ImageUses.of(tmp_path)
    uses.note("a", NOW)
    uses.note_pulled("a", NOW)
    uses.forget("a")
    os.unlink(tmp_path / "images")
    assert uses.all() == {}
