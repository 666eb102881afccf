"""Raw components of others: entry points of the group ``farm.rewards``.

An entry point names a function ``measure(episode: JudgedEpisode) -> Mapping[str, float]``, which is called once for
each episode that was judged, in a thread of its own, also for several at a time. What it returns under KEY is the
component ``plugin.NAME.KEY``, NAME being the entry point's.
"""

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from farm.core.change import Change
from farm.core.rollout import Turn
from farm.rewards.components import PLAIN, PLUGIN_PREFIX

GROUP = "farm.rewards"
MOST_S = 10.0
MOST_KEYS = 32
MOST_VALUE = 1e12

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JudgedEpisode:
    """What a plug-in is given; all of it may be hostile. ``patch`` shows ``change`` as a git-format diff, and
    ``components`` is what the farm itself has measured."""

    task_id: str
    change: Change
    patch: str
    turns: Sequence[Turn]
    components: Mapping[str, float]


Measure = Callable[[JudgedEpisode], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Measured:
    """``failures``: by plug-in, why it gave nothing."""

    components: Mapping[str, float]
    failures: Mapping[str, str]


class Plugins:
    """One that raises, takes longer than ``most_s`` or returns something else costs nothing but its own components.

    A call that takes too long is left to itself, and its plug-in is not asked again before that call is over.
    """

    def __init__(self, plugins: Mapping[str, Measure] | None = None, *, most_s: float = MOST_S) -> None:
        self._plugins = dict(plugins or {})
        self._most_s = most_s
        self._stuck: dict[str, set[threading.Thread]] = {}

    @classmethod
    def installed(cls) -> "Plugins":
        """Those of the packages that are installed here; one that cannot be loaded is left out, and the log says so."""
        found: dict[str, Measure] = {}
        for entry in entry_points(group=GROUP):
            try:
                measure: Any = entry.load()
            except Exception:  # another's code: whatever it raises, the farm goes on without it
                _log.exception("the reward plug-in %s of %s cannot be loaded", entry.name, entry.value)
                continue
            if not PLAIN.fullmatch(entry.name) or not callable(measure):
                _log.error("the reward plug-in %s of %s is no function with a plain name", entry.name, entry.value)
                continue
            found[entry.name] = measure
        return cls(found)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._plugins)

    async def measure(self, episode: JudgedEpisode) -> Measured:
        """What all of them found, one beside the other."""
        episode = replace(episode, components=MappingProxyType(dict(episode.components)))  # which nobody can change
        answers = await asyncio.gather(*(self._ask(name, episode) for name in self._plugins))
        components: dict[str, float] = {}
        failures: dict[str, str] = {}
        for name, answer in zip(self._plugins, answers, strict=True):
            if isinstance(answer, str):
                _log.error("the reward plug-in %s: %s", name, answer)
                failures[name] = answer
            else:
                components |= {f"{PLUGIN_PREFIX}{name}.{key}": value for key, value in answer.items()}
        return Measured(components, failures)

    async def _ask(self, name: str, episode: JudgedEpisode) -> Mapping[str, float] | str:
        """Its components, or what is wrong with it."""
        if any(thread.is_alive() for thread in self._stuck.get(name, ())):
            return "it has not returned from an earlier episode"
        self._stuck.pop(name, None)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Mapping[str, float] | str] = loop.create_future()

        def run() -> None:
            found = _call(self._plugins[name], episode)
            try:
                loop.call_soon_threadsafe(_settle, answer, found)
            except RuntimeError:  # the loop has ended: nobody waits
                _log.info("the reward plug-in %s returned too late", name)

        thread = threading.Thread(target=run, name=f"reward-{name}", daemon=True)
        thread.start()
        try:
            async with asyncio.timeout(self._most_s):
                return await answer
        except TimeoutError:
            self._stuck.setdefault(name, set()).add(thread)
            return f"it did not return within {self._most_s:g} s"


def _settle(answer: "asyncio.Future[Mapping[str, float] | str]", found: Mapping[str, float] | str) -> None:
    if not answer.done():
        answer.set_result(found)


def _call(measure: Measure, episode: JudgedEpisode) -> Mapping[str, float] | str:
    try:
        found: Any = measure(episode)
        return _checked(found)
    except BaseException as error:  # another's code in a thread of its own, where even SystemExit is just its failure
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _checked(found: Any) -> Mapping[str, float]:
    if not isinstance(found, Mapping) or len(found) > MOST_KEYS:
        raise TypeError(f"it returned {type(found).__name__}, not a mapping of at most {MOST_KEYS} names to numbers")
    checked: dict[str, float] = {}
    for key, value in found.items():
        if not isinstance(key, str) or not PLAIN.fullmatch(key):
            raise ValueError(f"{str(key)[:100]!r} is no plain name")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{key} is {type(value).__name__}, not a number")
        number = float(value)
        if not math.isfinite(number) or abs(number) > MOST_VALUE:
            raise ValueError(f"{key} is {number:g}, not a finite number of at most {MOST_VALUE:g}")
        checked[key] = number
    return checked
