"""The program that runs in a sandbox beside pytest: ``inside.py JOB RESULT``, with coverage and the standard library.

It is sent as text, and the host never imports it. JOB is JSON:

- ``{"mode": "survey", "files": [test file], "roots": [directory or file of the package]}`` writes one line
  ``{"outcomes": {id: outcome}, "durations": {id: seconds}, "lines": {file: {line: [id's index in "outcomes"]}},
  "modules": [imported top modules of the standard library]}``
- ``{"mode": "trials", "preload": [module], "trials": [{"key", "files": {path: text}, "tests": [id], "timeout_s" of
  a processor, "max_failures": failures at which to stop}]}`` writes a line for each, in order:
  ``{"key", "status": "ran" | "import" | "crash" | "timeout", "passed": n, "failed": [id], "failures": [{...}]}``

Each trial runs in a fork of this process, so that pytest is imported once. Files are restored after each trial.
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
MAX_FAILURES = 40
WALL_FACTOR, WALL_EXTRA_S = 4, 30
"""A trial may take WALL_FACTOR times its processor time and WALL_EXTRA_S more, because the machine may be busy."""
MAX_CHARS = 240


class Recorder:
    """A pytest plugin that records the outcome of each test. Without ``wanted`` all collected tests run."""

    def __init__(self, wanted: list[str] | None = None, coverage_run: Any = None) -> None:
        self.outcomes: dict[str, str] = {}
        self.durations: dict[str, float] = {}
        self.failures: list[dict[str, Any]] = []
        self.uncollected: list[str] = []
        self._wanted = None if wanted is None else frozenset(wanted)
        self._coverage = coverage_run
        self._compared: tuple[str, str, str] | None = None

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        if self._wanted is not None:
            items[:] = [item for item in items if item.nodeid in self._wanted]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.uncollected.append(report.nodeid)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Iterator[None]:
        self._compared = None
        if self._coverage is not None:
            self._coverage.switch_context(item.nodeid)
        yield
        if self._coverage is not None:
            self._coverage.switch_context("")

    def pytest_runtest_logreport(self, report: Any) -> None:
        before = self.outcomes.get(report.nodeid, "passed")
        skipped = report.skipped or hasattr(report, "wasxfail")
        outcome = "failed" if report.failed else "skipped" if skipped else "passed"
        self.outcomes[report.nodeid] = before if before == "failed" or outcome == "passed" else outcome
        self.durations[report.nodeid] = self.durations.get(report.nodeid, 0.0) + report.duration

    def pytest_assertrepr_compare(self, op: str, left: object, right: object) -> None:
        self._compared = (op, _short_repr(left), _short_repr(right))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Iterator[None]:
        yield
        if call.excinfo is None or call.when != "call" or len(self.failures) >= MAX_FAILURES:
            return
        if isinstance(call.excinfo.value, pytest.skip.Exception):
            return
        with contextlib.suppress(Exception):  # the repr of an object under test may raise anything
            self.failures.append(self._describe(item, call.excinfo))

    def _describe(self, item: Any, excinfo: Any) -> dict[str, Any]:
        test_file = str(item.path)
        line, names, deeper = 0, {}, False
        trace = excinfo.value.__traceback__
        while trace is not None:
            in_test_file = trace.tb_frame.f_code.co_filename == test_file
            if in_test_file and not trace.tb_frame.f_code.co_name.startswith("<"):
                line, names = trace.tb_lineno, _literals(trace.tb_frame.f_locals)
            deeper = not in_test_file
            trace = trace.tb_next
        message = str(excinfo.value).strip().splitlines()
        return {
            "test": item.nodeid,
            "line": line,
            "error": type(excinfo.value).__name__,
            "message": message[0][:MAX_CHARS] if message else "",
            "deeper": deeper,
            "compared": self._compared,
            "names": names,
        }


def _literals(names: dict[str, Any]) -> dict[str, str]:
    """Return the variables whose value can be written as a literal."""
    literals = {}
    for name, value in names.items():
        if name.startswith("@"):
            continue
        with contextlib.suppress(Exception):  # as above: the value is from the failing test
            text = repr(value)
            if len(text) <= MAX_CHARS and ast.literal_eval(text) == value:
                literals[name] = text
    return literals


def _short_repr(value: object) -> str:
    try:
        return repr(value)[: MAX_CHARS + 1]
    except Exception:  # as above
        return ""


def survey(job: dict[str, Any]) -> dict[str, Any]:
    import coverage  # type: ignore[import-not-found]  # installed in the image for trials

    sys.path.insert(0, os.getcwd())
    coverage_run = coverage.Coverage(data_file=None, config_file=False, source=job["roots"])
    recorder = Recorder(coverage_run=coverage_run)
    started = time.monotonic()
    coverage_run.start()
    try:
        pytest.main([*OPTIONS, *job["files"]], plugins=[recorder])
    finally:
        coverage_run.stop()
    took_s = time.monotonic() - started
    data = coverage_run.get_data()
    index = {test: number for number, test in enumerate(recorder.outcomes)}
    lines: dict[str, dict[int, list[int]]] = {}
    for path in data.measured_files():
        contexts = data.contexts_by_lineno(path)
        lines[os.path.relpath(path)] = {
            line: sorted(index[test] for test in tests if test in index) for line, tests in contexts.items()
        }
    modules = sorted(name for name in sys.modules if name.partition(".")[0] in sys.stdlib_module_names)
    return {
        "outcomes": recorder.outcomes,
        "durations": {test: round(seconds, 4) for test, seconds in recorder.durations.items()},
        "lines": lines,
        "modules": modules,
        "took_s": round(took_s, 3),
    }


def trials(job: dict[str, Any]) -> Iterator[dict[str, Any]]:
    sys.path.insert(0, os.getcwd())
    for name in job["preload"]:
        with contextlib.suppress(BaseException):
            __import__(name)
    for trial in job["trials"]:
        originals = {path: _content(path) for path in trial["files"]}
        try:
            for path, text in trial["files"].items():
                Path(path).write_bytes(text.encode("utf-8", "surrogateescape"))
            yield {"key": trial["key"], **_run_in_fork(trial)}
        finally:
            for path, content in originals.items():
                if content is not None:
                    Path(path).write_bytes(content)
                elif os.path.exists(path):
                    os.unlink(path)


def _content(path: str) -> bytes | None:
    return Path(path).read_bytes() if os.path.exists(path) else None


def _run_in_fork(trial: dict[str, Any]) -> dict[str, Any]:
    """Run a trial in a fork and return its result; a crash or a time-out is a result too."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        _run_and_exit(trial, writer)
    os.close(writer)
    output, in_time = _read(reader, trial["timeout_s"] * WALL_FACTOR + WALL_EXTRA_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if not in_time or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        return {"status": "timeout"}
    try:
        return dict(json.loads(output))
    except ValueError:
        return {"status": "crash"}


def _read(reader: int, timeout_s: float) -> tuple[bytes, bool]:
    """Read one line from the pipe. Return it, and whether it came in time."""
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


def _run_and_exit(trial: dict[str, Any], writer: int) -> None:
    """Run a trial in the fork and write its result. Never returns."""
    with contextlib.suppress(BaseException):
        os.setsid()
        seconds = math.ceil(trial["timeout_s"])
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        devnull = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(devnull, number)
        recorder = Recorder(trial["tests"])
        files = sorted({test.partition("::")[0] for test in trial["tests"]})
        pytest.main([*OPTIONS, f"--maxfail={trial['max_failures']}", *files], plugins=[recorder])
        failed = sorted(test for test, outcome in recorder.outcomes.items() if outcome == "failed")
        ran = recorder.outcomes and not recorder.uncollected
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
