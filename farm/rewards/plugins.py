"""Reward plug-ins: raw components from entry points of the group ``farm.rewards``.

An entry point names a function ``measure(episode: JudgedEpisode) -> Mapping[str, float]``. The farm calls it once for
each judged episode, in a separate thread, and may call it for several episodes concurrently. A value under KEY is the
component ``plugin.NAME.KEY``, where NAME is the name of the entry point.
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
from farm.rewards.components import PLAIN_NAME, PLUGIN_PREFIX

GROUP = "farm.rewards"
TIMEOUT_S = 10.0
MAX_KEYS = 32
MAX_VALUE = 1e12

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JudgedEpisode:
    """The input of a plug-in; all of it may be hostile.

    ``patch`` is ``change`` as a diff in git's format. ``components`` are the farm's own measurements.
    """

    task_id: str
    change: Change
    patch: str
    turns: Sequence[Turn]
    components: Mapping[str, float]


Measure = Callable[[JudgedEpisode], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class PluginResult:
    """The components of all plug-ins. ``failures``: name of a plug-in without components → the reason."""

    components: Mapping[str, float]
    failures: Mapping[str, str]


class Plugins:
    """The reward plug-ins of a node.

    If a plug-in raises, exceeds ``timeout_s`` or returns an invalid value, only its own components are missing. A call
    that exceeds the timeout keeps running, and its plug-in is skipped until that call has ended.
    """

    def __init__(self, plugins: Mapping[str, Measure] | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self._plugins = dict(plugins or {})
        self._most_s = timeout_s
        self._running: dict[str, set[threading.Thread]] = {}

    @classmethod
    def installed(cls) -> "Plugins":
        """Load the plug-ins of the installed packages; log and skip a plug-in that cannot be loaded."""
        plugins: dict[str, Measure] = {}
        for entry in entry_points(group=GROUP):
            try:
                measure: Any = entry.load()
            except Exception:  # third-party code may raise anything; the farm works without the plug-in
                _log.exception("the reward plug-in %s of %s cannot be loaded; it is skipped", entry.name, entry.value)
                continue
            if not PLAIN_NAME.fullmatch(entry.name) or not callable(measure):
                _log.error(
                    "the reward plug-in %s of %s is skipped: it is not a function with a plain name",
                    entry.name,
                    entry.value,
                )
                continue
            plugins[entry.name] = measure
        return cls(plugins)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._plugins)

    async def measure(self, episode: JudgedEpisode) -> PluginResult:
        """Run all plug-ins concurrently on a judged episode."""
        episode = replace(episode, components=MappingProxyType(dict(episode.components)))  # read-only for plug-ins
        answers = await asyncio.gather(*(self._run_plugin(name, episode) for name in self._plugins))
        components: dict[str, float] = {}
        failures: dict[str, str] = {}
        for name, answer in zip(self._plugins, answers, strict=True):
            if isinstance(answer, str):
                _log.error("the reward plug-in %s: %s", name, answer)
                failures[name] = answer
            else:
                components |= {f"{PLUGIN_PREFIX}{name}.{key}": value for key, value in answer.items()}
        return PluginResult(components, failures)

    async def _run_plugin(self, name: str, episode: JudgedEpisode) -> Mapping[str, float] | str:
        """Return a plug-in's components by key, or the reason why there are none."""
        if any(thread.is_alive() for thread in self._running.get(name, ())):
            return "it is skipped: its call for an earlier episode still runs"
        self._running.pop(name, None)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Mapping[str, float] | str] = loop.create_future()

        def run() -> None:
            result = _call(self._plugins[name], episode)
            try:
                loop.call_soon_threadsafe(_set_result, answer, result)
            except RuntimeError:  # the event loop has ended
                _log.info("the reward plug-in %s returned after the end of the process's work", name)

        thread = threading.Thread(target=run, name=f"reward-{name}", daemon=True)
        thread.start()
        try:
            async with asyncio.timeout(self._most_s):
                return await answer
        except TimeoutError:
            self._running.setdefault(name, set()).add(thread)
            return f"it did not return within {self._most_s:g} s"


def _set_result(answer: "asyncio.Future[Mapping[str, float] | str]", result: Mapping[str, float] | str) -> None:
    if not answer.done():
        answer.set_result(result)


def _call(measure: Measure, episode: JudgedEpisode) -> Mapping[str, float] | str:
    try:
        result: Any = measure(episode)
        return _check_result(result)
    except BaseException as error:  # third-party code in its own thread, where even SystemExit is only its failure
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _check_result(result: Any) -> Mapping[str, float]:
    if not isinstance(result, Mapping) or len(result) > MAX_KEYS:
        raise TypeError(f"it returned {type(result).__name__}, not a mapping of at most {MAX_KEYS} names to numbers")
    checked: dict[str, float] = {}
    for key, value in result.items():
        if not isinstance(key, str) or not PLAIN_NAME.fullmatch(key):
            raise ValueError(f"the key {str(key)[:100]!r} is not a plain name")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{key} is {type(value).__name__}, not a number")
        number = float(value)
        if not math.isfinite(number) or abs(number) > MAX_VALUE:
            raise ValueError(f"{key} is {number:g}, not a finite number of at most {MAX_VALUE:g}")
        checked[key] = number
    return checked
