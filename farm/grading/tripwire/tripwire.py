"""Monitoring of the lines of a change while tests run, by Python's audit hooks (PEP 578).

The hook is loaded before any code of the workspace and cannot be removed. It writes each finding at once into a FIFO. A
process of the grader reads the FIFO and passes the lines to the host, so the tests cannot withdraw a finding later.
Decoy tests show that results are forged and the tripwire shows how; neither depends on the other.

Findings of a kind in ``CERTAIN`` have no legitimate purpose in a package under test and make the verdict 0. The others
are flags for rule documents, because some legitimate packages do the same: loggers read frames, wrappers start
processes.
"""

import asyncio
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from farm.core.change import Change, ChangeKind, FileChange
from farm.core.task import Verifier
from farm.grading.decoys.python_source import functions, parse_tests
from farm.grading.diff.line_diff import ComparisonBudget, find_edits
from farm.grading.diff.patch import MAX_SHOWN_BYTES
from farm.grading.verdict import Verdict, discredit
from sandboxes.interface import ExecResult, Sandbox

HOOK_MODULES = ("runner_checks", "channel", "event_source", "library_checks", "body_checks", "audit_hook")
"""The modules whose source is concatenated to the hook, in this order."""
SHELL = ("/.farm/bin/bash", "-c")
BUSYBOX = "/.farm/bin/busybox"
PREFIX = "audit_"
CERTAIN = frozenset({"test_files", "test_code", "runner", "report", "disguise"})
UNCERTAIN = frozenset({"frames", "native", "library", "processes", "locks", "silent"})
UNWATCHED = "unwatched"
"""The component that is 1 if no process of the test command loaded the tripwire."""
MAX_LINES_PER_KIND = 100
"""Maximum lines of one kind of finding that are kept."""
MAX_PROCESSES = 2000
"""Maximum processes whose start and end are recorded."""
READ_BYTES = 4 * 1024 * 1024
"""Output limit of the reader; larger than all lines that are kept."""
MAX_EVIDENCE_LINES = 20
MAX_PARSED_BYTES = 256 * 1024
DRAIN_S = 20.0
MAX_DRAIN_ATTEMPTS = 20
_PREPARE = """\
for _ in {{1..2000}}; do [ -e {ready} ] && break; {busybox} usleep 2000; done
export PYTHONPATH={home}"${{PYTHONPATH:+:$PYTHONPATH}}"
"""
"""Bash code that runs before the test command and waits until the reader of findings is ready."""
_READER = """\
export LC_ALL=C
{busybox} mkfifo {fifo} && exec 0<>{fifo} && : > {ready} && read -r end < {stop}
nonce=${{end% end}} tab=$'\\t'
declare -A seen
while IFS= read -r -n 4096 line && [ "$line" != "$end" ]; do
  case $line in "$nonce$tab"*) ;; *) continue ;; esac
  kind=${{line#*"$tab"*"$tab"}} kind=${{kind%%"$tab"*}}
  case $kind in
    {findings}) most={most} ;;
    hello|goodbye|results|raised|passed|error) most={others} line=${{line:0:100}} ;;
    *) continue ;;
  esac
  (( ++seen[$kind] <= most )) && printf '%s\\n' "$line"
done
echo "$nonce closed"
"""
PRIOR_USES: Mapping[str, re.Pattern[bytes]] = {
    "frames": re.compile(
        rb"_getframe|currentframe|(tb|gi|cr)_frame|\binspect\b|\btraceback\b|\bgc\b|settrace|setprofile|/proc/"
    ),
    "test_files": re.compile(rb"linecache|getsource|\btokenize\b"),
    "test_code": re.compile(rb"__code__|getsource"),
    "runner": re.compile(rb"\b(_pytest|pytest|unittest|pluggy)\b"),
    "disguise": re.compile(rb"(?<!re\.)\bcompile\(|CodeType|addaudithook|\bmarshal\b"),
    "native": re.compile(rb"\b(ctypes|cffi)\b"),
    "processes": re.compile(rb"\b(subprocess|Popen|os\.(popen|system|fork|spawn\w*|exec\w+|kill\w*))\b"),
    "locks": re.compile(rb"\bfcntl\b"),
}
"""Kind of finding → pattern of code that legitimately causes it.

A finding does not count in a function that matched before the change. The lines of a module outside its functions,
without imports, count as one function.
"""
LineRanges = tuple[tuple[int, int], ...]
"""The first and last line of each range, counted from 1."""


@dataclass(frozen=True, slots=True)
class ChangedLines:
    """The lines of a file that a change adds or alters (``lines``; None means all).

    ``prior_uses``: kind of finding → lines in which it does not count.
    """

    lines: LineRanges | None = None
    prior_uses: Mapping[str, LineRanges] = field(default_factory=dict)


def touched_files(change: Change, read_old: Callable[[str], FileChange | None]) -> Mapping[str, ChangedLines]:
    """Return the changed lines of each file that ``change`` writes. ``read_old`` returns a pristine file or None."""
    budget = ComparisonBudget()
    return {
        file.path: _changed_lines(read_old(file.path), file, budget)
        for file in change.files
        if file.kind is not ChangeKind.DELETE
    }


def _changed_lines(old: FileChange | None, new: FileChange, budget: ComparisonBudget) -> ChangedLines:
    if old is None or old.kind is not new.kind or not new.path.endswith((".py", ".pyi")):
        return ChangedLines()
    prior_uses = find_prior_uses(old.content, new.content)
    if max(len(old.content), len(new.content)) > MAX_SHOWN_BYTES or b"\0" in old.content + new.content:
        return ChangedLines(None, prior_uses)
    before, after = (_split(file.content.decode(errors="replace")) for file in (old, new))
    edits = find_edits(before, after, budget)
    return ChangedLines(
        tuple((edit.new_from + 1, edit.new_to) for edit in edits if edit.new_to > edit.new_from), prior_uses
    )


def find_prior_uses(old: bytes, new: bytes) -> Mapping[str, LineRanges]:
    """Return, by kind of finding, the lines of ``new`` in functions that match its ``PRIOR_USES`` pattern in ``old``.

    Return none if a text cannot be parsed by this Python or has more than ``MAX_PARSED_BYTES`` bytes.
    """
    if not any(pattern.search(old) for pattern in PRIOR_USES.values()) or max(len(old), len(new)) > MAX_PARSED_BYTES:
        return {}
    before, after = _functions(old), _functions(new)
    used = {name: [kind for kind, one in PRIOR_USES.items() if one.search(text)] for name, (text, _) in before.items()}
    lines: dict[str, list[tuple[int, int]]] = {}
    for name, (_, ranges) in after.items():
        for kind in used.get(name, ()):
            lines.setdefault(kind, []).extend(ranges)
    return {kind: tuple(ranges) for kind, ranges in lines.items()}


def _functions(source: bytes) -> Mapping[str, tuple[bytes, list[tuple[int, int]]]]:
    """Return the text and line ranges of each function by name; "" is the code outside functions, without imports."""
    module = parse_tests(source)
    if module is None:
        return {}
    lines = source.split(b"\n")
    inside: set[int] = set()
    by_name: dict[str, tuple[bytes, list[tuple[int, int]]]] = {}
    for name, function, _ in functions(module.body):
        first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
        last = function.end_lineno or first
        inside |= set(range(first, last + 1))
        text, ranges = by_name.get(name, (b"", []))
        by_name[name] = text + b"\n".join(lines[first - 1 : last]), [*ranges, (first, last)]
    outside = [at for at in range(1, len(lines) + 1) if at not in inside]
    statements = [lines[at - 1] for at in outside if not re.match(rb"\s*(from\s+\S+\s+)?import\b", lines[at - 1])]
    return {**by_name, "": (b"\n".join(statements), [(at, at) for at in outside])}


def _split(text: str) -> list[str]:
    """Split a text into the lines that Python counts."""
    return re.split(r"\r\n|\r|\n", text)


@dataclass(frozen=True, slots=True)
class Tripwire:
    """The hook for one test command. All paths are absolute paths in the sandbox."""

    home: str
    """The directory of the hook's files."""
    nonce: str
    workspace: str
    report: str
    changed: Mapping[str, ChangedLines]
    """The files that the change writes, without test files of the farm."""
    tests: Sequence[str]
    """The test files that the farm writes."""
    run_tests: Sequence[str]
    """The test files that the command runs."""

    @property
    def _fifo(self) -> str:
        return f"{self.home}/findings"

    @property
    def _ready(self) -> str:
        return f"{self.home}/ready"

    @property
    def _stop(self) -> str:
        return f"{self.home}/stop"

    @property
    def _prepare(self) -> str:
        return f"{self.home}/prepare"

    @property
    def programs(self) -> Mapping[str, bytes]:
        """The files, by path, that the command needs."""
        settings = {
            "home": self.home,
            "fifo": self._fifo,
            "nonce": self.nonce,
            "report": self.report,
            "workspace": self.workspace,
            "changed": {path: touched.lines for path, touched in self.changed.items()},
            "excused": {path: dict(touched.prior_uses) for path, touched in self.changed.items()},
            "tests": list(self.tests),
            "holders": list(self.run_tests),
        }
        text = "".join(Path(__file__).with_name(f"{name}.py").read_text() for name in HOOK_MODULES)
        text = re.sub(r"from farm\.grading\.tripwire\.\w+ import (\([^)]*\)|.*)\n", "", text)
        text = text.replace("SETTINGS: Any = None\n", f"SETTINGS: Any = {settings!r}\n", 1)
        return {
            f"{self.home}/sitecustomize.py": text.encode("utf-8", "surrogateescape"),
            self._stop: f"{self.nonce} end\n".encode(),
            self._prepare: _PREPARE.format(ready=self._ready, busybox=BUSYBOX, home=self.home).encode(),
        }

    def around(self, command: str) -> str:
        """Return ``command`` so that it waits for the reader and its Python processes load the hook."""
        command = re.sub(r"\bPYTHONPATH=(?!\$|\"\$)", f"PYTHONPATH={self.home}:", command)
        return f". {self._prepare} 2> {self.home}/said\n{command}"

    async def watch(
        self, sandbox: Sandbox, run: Callable[[], Awaitable[ExecResult]], limit_s: float
    ) -> tuple[ExecResult, "TripwireOutput"]:
        """Return the result of ``run``, which takes at most ``limit_s``, and the hook's output.

        The caller must end all processes of the sandbox afterwards.
        """
        reader = asyncio.create_task(self._read(sandbox, limit_s + 2 * DRAIN_S))
        try:
            result = await run()
            for _ in range(MAX_DRAIN_ATTEMPTS):  # a test process may read the end marker from the FIFO
                await sandbox.exec((*SHELL, f"echo '{self.nonce} end' 1<>{self._fifo}"), timeout_s=DRAIN_S)
                done, _ = await asyncio.wait({reader}, timeout=DRAIN_S / MAX_DRAIN_ATTEMPTS)
                if done:
                    return result, TripwireOutput(reader.result() if reader.exception() is None else None)
            return result, TripwireOutput(None, stopped=True)
        finally:
            if not reader.done():
                reader.cancel()
            await asyncio.wait({reader})

    @property
    def reader(self) -> str:
        """The script that creates the FIFO and prints the hook's lines from it until the end marker.

        It skips lines without the nonce and, of each kind, lines beyond ``MAX_LINES_PER_KIND``, so that the code under
        test cannot displace findings by writing into the FIFO.
        """
        return _READER.format(
            busybox=BUSYBOX,
            fifo=self._fifo,
            ready=self._ready,
            stop=self._stop,
            findings="|".join(sorted(CERTAIN | UNCERTAIN)),
            most=MAX_LINES_PER_KIND,
            others=MAX_PROCESSES,
        )

    async def _read(self, sandbox: Sandbox, timeout_s: float) -> ExecResult:
        command = (*SHELL, self.reader)
        return await sandbox.exec(command, timeout_s=timeout_s, output_limit=READ_BYTES, merge_stderr=True)


def make_tripwire(
    report: str,
    workspace: str,
    changed: Mapping[str, ChangedLines],
    tests: Sequence[str],
    run_tests: Sequence[str],
    rng: random.Random,
) -> Tripwire:
    """Return a tripwire with a random directory and nonce.

    Paths in ``changed``, ``tests`` and ``run_tests`` are relative to ``workspace``.
    """
    name, nonce = (f"{rng.getrandbits(64):016x}" for _ in range(2))

    def absolute(paths: Sequence[str]) -> list[str]:
        return [f"{workspace}/{path}" for path in paths]

    lines = {f"{workspace}/{path}": touched for path, touched in changed.items() if path not in tests}
    return Tripwire(f"/tmp/{name}", nonce, workspace, report, lines, absolute(tests), absolute(run_tests))


@dataclass(frozen=True, slots=True)
class TripwireOutput:
    """The output of the process that reads the hook's findings; None if it could not run.

    ``stopped``: the process did not end by itself.
    """

    output: ExecResult | None = None
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class TripwireFindings:
    """The findings of a tripwire. ``evidence``: one line per finding; ``certain``: the first of a ``CERTAIN`` kind."""

    components: Mapping[str, float]
    evidence: tuple[str, ...] = ()
    certain: str | None = None

    def on(self, verdict: Verdict, verifier: Verifier) -> Verdict:
        """Return ``verdict`` with these findings; a certain one removes the credit for all tests."""
        updated = replace(verdict, components={**verdict.components, **self.components})
        if self.certain is None or verdict.tampered:
            return updated
        return discredit(verifier, updated, f"the change tampers with the tests: {self.certain}")


@dataclass(slots=True)
class _HookLog:
    """The hook's lines, read one by one."""

    kinds: Counter[str] = field(default_factory=Counter)
    evidence: list[str] = field(default_factory=list)
    certain: str | None = None
    watched: bool = False
    """True if a process loaded the hook."""
    main_processes: set[str] = field(default_factory=set)
    """Processes with the report's path on their command line."""
    ended_processes: set[str] = field(default_factory=set)
    lines_by_process: Counter[str] = field(default_factory=Counter)
    lines_lost: bool = False
    """True if a process wrote more lines than the log has."""
    failures_counted: int | None = None
    """Failed tests by the count of the test runner."""
    phases_raised: int = 0
    tests_passed: int | None = None
    """Tests that passed by the count of the hook."""

    def add_finding(self, kind: str, line: str) -> None:
        self.kinds[kind] += 1
        if len(self.evidence) < MAX_EVIDENCE_LINES:
            self.evidence.append(line)
        if kind in CERTAIN and self.certain is None:
            self.certain = line

    def add_line(self, tripwire: Tripwire, line: str) -> None:
        """Read one line; skip it unless it has the tripwire's nonce."""
        parts = line.split("\t")
        if len(parts) != 6 or parts[0] != tripwire.nonce:
            return
        _, process, kind, path, number, what = parts
        self.lines_by_process[process] += 1
        if kind == "hello":
            self.watched = True
            self.main_processes |= {process} if what == "main" else set()
        elif kind == "goodbye":
            self.ended_processes.add(process)
            self.lines_lost |= what != str(self.lines_by_process[process])
        elif kind == "results":
            self.failures_counted = int(what) if what.isascii() and what.isdigit() else self.failures_counted
        elif kind == "raised":
            self.phases_raised = int(what) if what.isascii() and what.isdigit() else self.phases_raised
        elif kind == "passed":
            self.tests_passed = int(what) if what.isascii() and what.isdigit() else self.tests_passed
        elif kind in CERTAIN | UNCERTAIN:
            relative = path.removeprefix(f"{tripwire.workspace}/")
            self.add_finding(kind, f"{relative}:{number}: while tests ran: {what}")

    def compare_with_report(self, report: bytes) -> None:
        """Add a finding if the report's failures differ from the counts of the test runner and the hook."""
        shown = sum(1 for _ in re.finditer(rb"<(?:failure|error)\b", report))
        if self.failures_counted is not None and self.failures_counted != shown:
            self.add_finding(
                "report", f"the report shows {shown} failures, and the test runner counted {self.failures_counted}"
            )
        phases = sum(1 for _ in re.finditer(rb"<(?:failure|error|skipped)\b", report))
        cases = sum(1 for _ in re.finditer(rb"<testcase\b", report))
        if self.tests_passed is not None and cases - phases > self.tests_passed:
            passed = cases - phases
            self.add_finding(
                "silent", f"the report shows at least {passed} tests that passed, and {self.tests_passed} reported it"
            )
        if self.phases_raised > phases:
            raised = self.phases_raised
            self.add_finding(
                "report", f"the report shows {phases} phases of tests that did not pass, and {raised} raised"
            )


def read_findings(tripwire: Tripwire, reported: TripwireOutput, report: bytes | None) -> TripwireFindings:
    """Return the findings in a tripwire's output.

    ``report``: the content of the test report, or None if there is none. Without a report a process may have crashed,
    so it does not have to report its end.
    """
    output = reported.output
    capture = None if output is None else output.stdout
    text = b"" if capture is None else capture.head + b"\n" + capture.tail
    log = _HookLog()
    for line in text.decode(errors="replace").split("\n"):
        log.add_line(tripwire, line)
    if log.lines_lost:
        log.add_finding("silent", "lines that the tests report of themselves were taken away")
    if reported.stopped or (output is not None and log.watched and not _is_closed(tripwire, output)):
        log.add_finding("silent", "the process that reads what the tests report of themselves was stopped")
    if report is not None:
        log.compare_with_report(report)
        truncated = capture is not None and not capture.whole
        if log.watched and (truncated or not log.main_processes & log.ended_processes):
            log.add_finding("silent", "the process that runs the tests did not report its end")
    components = {f"{PREFIX}{kind}": float(log.kinds[kind]) for kind in sorted(CERTAIN | UNCERTAIN)}
    unwatched = {} if log.watched else {UNWATCHED: 1.0}
    return TripwireFindings({**components, **unwatched}, tuple(log.evidence), log.certain)


def _is_closed(tripwire: Tripwire, output: ExecResult) -> bool:
    end = output.stdout.tail or output.stdout.head
    return end.endswith(f"{tripwire.nonce} closed\n".encode())


NO_FINDINGS = TripwireFindings({})


def keep_findings(first: Verdict, last: Verdict) -> Verdict:
    """Return ``last`` with the tripwire's findings of the run of ``first`` added."""
    names = [f"{PREFIX}{kind}" for kind in (*CERTAIN, *UNCERTAIN)]
    counts = {
        name: max(verdict.components.get(name, 0.0) for verdict in (first, last))
        for name in names
        if name in first.components or name in last.components
    }
    screened = tuple(dict.fromkeys((*first.screened, *last.screened)))
    return replace(last, components={**last.components, **counts}, screened=screened)
