"""The program that runs in a sandbox beside pytest: ``inside.py JOB RESULT``, with coverage and the standard library.

It is sent as text, and the host never imports it. JOB is JSON:

- ``{"mode": "survey", "files": [test file], "roots": [directory or file of the package]}`` gives one line
  ``{"outcomes": {id: outcome}, "durations": {id: seconds}, "lines": {file: {line: [id's index in "outcomes"]}},
  "modules": [imported top modules of the standard library]}``
- ``{"mode": "trials", "preload": [module], "trials": [{"key", "files": {path: text}, "tests": [id], "timeout_s" of
  a processor, "most": failures at which to stop}]}`` gives a line for each, in order:
  ``{"key", "status": "ran" | "import" | "crash" | "timeout", "passed": n, "failed": [id], "failures": [{...}]}``

A trial is a fork of this process, so that pytest is imported once. Files are put back after each.
"""

import ast
import contextlib
import json
import math
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

OPTIONS = ["-q", "--tb=no", "-o", "addopts=", "--continue-on-collection-errors"]
MOST_TOLD = 40
WALL, WALL_S = 4, 30
"""A trial has so many times its limit, and so many seconds more, by the clock: the machine may be busy."""
LONGEST = 240


class Recorder:
    """What became of each test. ``wanted`` None: all that are collected are run."""

    def __init__(self, wanted: list[str] | None = None, measured: Any = None) -> None:
        self.outcomes: dict[str, str] = {}
        self.durations: dict[str, float] = {}
        self.failures: list[dict[str, Any]] = []
        self.broken: list[str] = []
        self._wanted = None if wanted is None else frozenset(wanted)
        self._measured = measured
        self._compared: tuple[str, str, str] | None = None

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self._wanted is not None:
            items[:] = [item for item in items if item.nodeid in self._wanted]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.broken.append(report.nodeid)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        self._compared = None
        if self._measured is not None:
            self._measured.switch_context(item.nodeid)
        yield
        if self._measured is not None:
            self._measured.switch_context("")

    def pytest_runtest_logreport(self, report: Any) -> None:
        before = self.outcomes.get(report.nodeid, "passed")
        skipped = report.skipped or hasattr(report, "wasxfail")
        outcome = "failed" if report.failed else "skipped" if skipped else "passed"
        self.outcomes[report.nodeid] = before if before == "failed" or outcome == "passed" else outcome
        self.durations[report.nodeid] = self.durations.get(report.nodeid, 0.0) + report.duration

    def pytest_assertrepr_compare(self, op: str, left: object, right: object) -> None:
        self._compared = (op, _shown(left), _shown(right))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Iterator[None]:
        yield
        if call.excinfo is None or call.when != "call" or len(self.failures) >= MOST_TOLD:
            return
        if isinstance(call.excinfo.value, pytest.skip.Exception):
            return
        with contextlib.suppress(Exception):  # what a failing object does when it is looked at is no concern here
            self.failures.append(self._told(item, call.excinfo))

    def _told(self, item: Any, excinfo: Any) -> dict[str, Any]:
        home = str(item.path)
        line, names, deeper = 0, {}, False
        trace = excinfo.value.__traceback__
        while trace is not None:
            here = trace.tb_frame.f_code.co_filename == home
            if here and not trace.tb_frame.f_code.co_name.startswith("<"):
                line, names = trace.tb_lineno, _literals(trace.tb_frame.f_locals)
            deeper = not here
            trace = trace.tb_next
        message = str(excinfo.value).strip().splitlines()
        return {
            "test": item.nodeid,
            "line": line,
            "error": type(excinfo.value).__name__,
            "message": message[0][:LONGEST] if message else "",
            "deeper": deeper,
            "compared": self._compared,
            "names": names,
        }


def _literals(names: dict[str, Any]) -> dict[str, str]:
    """Those names whose value can be written down."""
    found = {}
    for name, value in names.items():
        if name.startswith("@"):
            continue
        with contextlib.suppress(Exception):  # as above: the value is the failing test's
            text = repr(value)
            if len(text) <= LONGEST and ast.literal_eval(text) == value:
                found[name] = text
    return found


def _shown(value: object) -> str:
    try:
        return repr(value)[: LONGEST + 1]
    except Exception:  # as above
        return ""


def survey(job: dict[str, Any]) -> dict[str, Any]:
    import coverage  # type: ignore[import-not-found]  # it is in the image in which faults are tried

    sys.path.insert(0, os.getcwd())
    measured = coverage.Coverage(data_file=None, config_file=False, source=job["roots"])
    recorder = Recorder(measured=measured)
    began = time.monotonic()
    measured.start()
    try:
        pytest.main([*OPTIONS, *job["files"]], plugins=[recorder])
    finally:
        measured.stop()
    took = time.monotonic() - began
    data = measured.get_data()
    index = {test: number for number, test in enumerate(recorder.outcomes)}
    lines: dict[str, dict[int, list[int]]] = {}
    for path in data.measured_files():
        found = data.contexts_by_lineno(path)
        lines[os.path.relpath(path)] = {
            line: sorted(index[test] for test in tests if test in index) for line, tests in found.items()
        }
    modules = sorted(name for name in sys.modules if name.partition(".")[0] in sys.stdlib_module_names)
    return {
        "outcomes": recorder.outcomes,
        "durations": {test: round(seconds, 4) for test, seconds in recorder.durations.items()},
        "lines": lines,
        "modules": modules,
        "took_s": round(took, 3),
    }


def trials(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    sys.path.insert(0, os.getcwd())
    for name in job["preload"]:
        with contextlib.suppress(BaseException):
            __import__(name)
    for trial in job["trials"]:
        kept = {path: _content(path) for path in trial["files"]}
        try:
            for path, text in trial["files"].items():
                Path(path).write_bytes(text.encode("utf-8", "surrogateescape"))
            yield {"key": trial["key"], **_forked(trial)}
        finally:
            for path, content in kept.items():
                if content is not None:
                    Path(path).write_bytes(content)
                elif os.path.exists(path):
                    os.unlink(path)


def _content(path: str) -> bytes | None:
    return Path(path).read_bytes() if os.path.exists(path) else None


def _forked(trial: dict[str, Any]) -> dict[str, Any]:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        _run(trial, writer)
    os.close(writer)
    said, in_time = _read(reader, trial["timeout_s"] * WALL + WALL_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not in_time or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        return {"status": "timeout"}
    try:
        return dict(json.loads(said))
    except ValueError:
        return {"status": "crash"}


def _read(reader: int, timeout_s: float) -> tuple[bytes, bool]:
    parts: list[bytes] = []
    until = time.monotonic() + timeout_s
    with open(reader, "rb", buffering=0) as pipe:
        while True:
            ready, _, _ = select.select([pipe], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return b"", False
            part = pipe.read(1 << 16)
            if not part:
                return b"".join(parts), True
            parts.append(part)
            if part.endswith(b"\n"):
                return b"".join(parts), True


def _run(trial: dict[str, Any], writer: int) -> None:
    """In the fork; never returns."""
    with contextlib.suppress(BaseException):
        os.setsid()
        seconds = math.ceil(trial["timeout_s"])
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nothing, number)
        recorder = Recorder(trial["tests"])
        files = sorted({test.partition("::")[0] for test in trial["tests"]})
        pytest.main([*OPTIONS, f"--maxfail={trial['most']}", *files], plugins=[recorder])
        failed = sorted(test for test, outcome in recorder.outcomes.items() if outcome == "failed")
        ran = recorder.outcomes and not recorder.broken
        result = {
            "status": "ran" if ran else "import",
            "passed": sum(outcome == "passed" for outcome in recorder.outcomes.values()),
            "failed": failed,
            "failures": recorder.failures,
        }
        line = json.dumps(result).encode() + b"\n"
        while line:
            line = line[os.write(writer, line) :]
    os._exit(0)


def main(job_path: str, result_path: str) -> None:
    job = json.loads(Path(job_path).read_bytes())
    with open(result_path, "w") as result:
        for line in [survey(job)] if job["mode"] == "survey" else trials(job):
            result.write(json.dumps(line) + "\n")
            result.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
