"""When images were last used, as it is kept on disk."""

import os
from pathlib import Path

from sandboxes.images.last_used import NOTE_EVERY_S, STALE_S, ImageUse, ImageUses

NOW = 1_700_000_000.0
LONG_NAME = "127.0.0.1:5000/" + "a/" * 115 + "x:1"


def test_a_use_is_there_for_another_life(tmp_path: Path) -> None:
    ImageUses.of(tmp_path).note("farm-task-a:1", NOW)
    ImageUses.of(tmp_path).note(LONG_NAME, NOW + 1)
    assert ImageUses.of(tmp_path).all() == {
        "farm-task-a:1": ImageUse(NOW, pulled=False),
        LONG_NAME: ImageUse(NOW + 1, pulled=False),
    }


def test_a_use_is_written_once_in_a_while_only(tmp_path: Path) -> None:
    uses = ImageUses.of(tmp_path)
    for second in range(int(NOTE_EVERY_S)):
        uses.note("a", NOW + second)
    assert uses.all()["a"].at == NOW
    uses.note("a", NOW + NOTE_EVERY_S)
    assert uses.all()["a"].at == NOW + NOTE_EVERY_S


def test_a_clock_that_was_set_back_does_not_silence_the_notes(tmp_path: Path) -> None:
    uses = ImageUses.of(tmp_path)
    uses.note("a", NOW)
    uses.note("a", NOW - 86_400)
    assert uses.all()["a"].at == NOW - 86_400


def test_a_use_leaves_the_mark_of_a_pull(tmp_path: Path) -> None:
    ImageUses.of(tmp_path).note("a", NOW)
    ImageUses.of(tmp_path).note_pulled("a", NOW + 1)
    ImageUses.of(tmp_path).note("a", NOW + 2)
    assert ImageUses.of(tmp_path).all() == {"a": ImageUse(NOW + 2, pulled=True)}


def test_what_is_no_note_is_passed_over(tmp_path: Path) -> None:
    uses = ImageUses.of(tmp_path)
    uses.note("a", NOW)
    home = tmp_path / "images"
    (home / "torn").write_text('{"image": "b", "pul')
    (home / "other").write_text('{"image": "c", "pulled": false}')
    (home / "list").write_text("[]")
    (home / "directory").mkdir()
    assert uses.all().keys() == {"a"}


def test_what_is_gone_is_forgotten_but_not_what_is_being_made(tmp_path: Path) -> None:
    uses = ImageUses.of(tmp_path)
    for image, at in (("here", 0.0), ("gone", 0.0), ("in the making", NOW)):
        uses.note(image, at)
    uses.forget_all_but({"here"}, NOW + STALE_S)
    assert uses.all().keys() == {"here", "in the making"}
    uses.forget("here")
    assert uses.all().keys() == {"in the making"}


def test_a_directory_that_takes_no_note_fails_nobody(tmp_path: Path) -> None:
    (tmp_path / "images").write_text("a file")
    uses = ImageUses.of(tmp_path)
    uses.note("a", NOW)
    uses.note_pulled("a", NOW)
    uses.forget("a")
    os.unlink(tmp_path / "images")
    assert uses.all() == {}
