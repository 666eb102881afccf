"""A name means what it means now, and the daemon is asked no more often than that takes."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from sandboxes.docker_engine.image_names import ImageNames


@dataclass(frozen=True, slots=True)
class Answer:
    id: str
    layers: tuple[Path, ...]


class Daemon:
    """A daemon that stores names as overlay2 does, or that reports no layers."""

    def __init__(self, root: Path, *, overlay: bool = True) -> None:
        self._file = root / "image" / "overlay2" / "repositories.json"
        self._layer = root / "overlay2" / "abc" / "diff"
        self._overlay = overlay
        self._names: dict[str, str] = {}
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        if overlay:
            self._file.parent.mkdir(parents=True)
            self._layer.mkdir(parents=True)

    def tag(self, name: str, image_id: str) -> None:
        self._names[name] = image_id
        if self._overlay:
            fresh = self._file.with_suffix(".tmp")
            fresh.write_text(str(self._names))
            fresh.replace(self._file)

    async def ask(self, name: str) -> Answer:
        self.asked += 1
        answer = Answer(self._names[name], (self._layer,) if self._overlay else ())
        await self.may_answer.wait()
        return answer


async def test_name_is_requested_until_its_file_is_located(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    daemon.tag("a", "1")
    names = ImageNames(daemon.ask)
    assert [(await names.find("a")).id for _ in range(5)] == ["1"] * 5
    assert daemon.asked == 2


async def test_retagged_name_is_detected_immediately(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    names = ImageNames(daemon.ask)
    for number in range(50):
        daemon.tag("a", str(number))
        assert (await names.find("a")).id == str(number)
        assert (await names.find("a")).id == str(number)


async def test_outdated_answer_is_not_cached(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    daemon.tag("a", "old")
    daemon.tag("b", "b")
    names = ImageNames(daemon.ask)
    await names.find("b")
    daemon.may_answer.clear()
    slow = asyncio.create_task(names.find("a"))
    await asyncio.sleep(0)
    daemon.tag("a", "new")
    other = asyncio.create_task(names.find("b"))
    await asyncio.sleep(0)
    assert daemon.asked == 3
    daemon.may_answer.set()
    assert (await slow).id == "old"
    await other
    assert (await names.find("a")).id == "new"


async def test_daemon_without_name_file_is_asked_each_time(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, overlay=False)
    daemon.tag("a", "1")
    names = ImageNames(daemon.ask)
    await names.find("a")
    daemon.tag("a", "2")
    assert (await names.find("a")).id == "2"
    assert daemon.asked == 2


async def test_remote_daemon_is_asked_each_time(tmp_path: Path) -> None:
    """The daemon's layers are on another host, so the local names file belongs to another daemon."""
    daemon = Daemon(tmp_path)
    daemon.tag("a", "1")

    async def ask(name: str) -> Answer:
        return Answer((await daemon.ask(name)).id, (tmp_path / "overlay2" / "elsewhere" / "diff",))

    names = ImageNames(ask)
    for _ in range(4):
        await names.find("a")
    assert daemon.asked == 4
