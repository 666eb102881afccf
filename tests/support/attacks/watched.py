"""Runs tests in a directory with the hook of the tripwire, without a sandbox."""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from farm.grading.tripwire.changed_lines import ChangedLines
from farm.grading.tripwire.findings import TripwireFindings, read_findings
from farm.grading.tripwire.tripwire import BUSYBOX, READ_BYTES, Tripwire, TripwireOutput
from sandboxes.interface import Capture, ExecResult

NONCE = f"{7:016x}"
WHOLE = ChangedLines()
TEST = """\
import sys
sys.path.insert(0, ".")
import cart
def helper(): pass
cart.total()
"""


class Watched:
    """A workspace in a directory, in which tests run with the hook.

    ``files``: other files of the change. ``other_tests``: other test files.
    """

    def __init__(
        self,
        place: Path,
        cart: str,
        touched: ChangedLines = WHOLE,
        test: str = TEST,
        files: Mapping[str, bytes] | None = None,
        other_tests: Mapping[str, str] | None = None,
    ) -> None:
        home, self.workspace, self.report = place / "home", place / "work", str(place / "reported" / "report")
        for directory in (home, self.workspace, place / "reported"):
            directory.mkdir()
        written = {"cart.py": cart.encode(), "test_cart.py": test.encode(), **(files or {})}
        written |= {name: text.encode() for name, text in (other_tests or {}).items()}
        for name, content in written.items():
            (self.workspace / name).write_bytes(content)
        changed = {f"{self.workspace}/{name}": ChangedLines() for name in files or {}}
        changed[f"{self.workspace}/cart.py"] = touched
        tests = [f"{self.workspace}/{name}" for name in ("test_cart.py", *(other_tests or ()))]
        self.tripwire = Tripwire(str(home), NONCE, str(self.workspace), self.report, changed, tests, tests)
        for path, program in self.tripwire.programs.items():
            Path(path).write_bytes(program)

    def run(self, *command: str) -> TripwireFindings:
        """Return the findings of a command."""
        env = {**os.environ, "PYTHONPATH": self.tripwire.home, "PYTHONDONTWRITEBYTECODE": "1"}
        script = self.tripwire.reader.replace(BUSYBOX, "")
        with subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE) as reader:
            try:
                while not Path(self.tripwire.home, "ready").exists():
                    assert reader.poll() is None
                output: list[bytes] = []
                collector = threading.Thread(target=lambda: output.append(reader.communicate()[0]))
                collector.start()
                done = subprocess.run(
                    [sys.executable, *command, self.report],
                    cwd=self.workspace,
                    env=env,
                    capture_output=True,
                    timeout=60,
                )
                with open(f"{self.tripwire.home}/findings", "w") as fifo:
                    fifo.write(f"\n{self.tripwire.nonce} end\n")
                collector.join()
            finally:
                reader.kill()
        assert done.returncode == 0, done
        [text] = output
        half = READ_BYTES // 2
        elided = max(0, len(text) - READ_BYTES)
        capture = Capture(text[:half], text[-half:], elided) if elided else Capture(text)
        report = Path(self.report)
        written = report.read_bytes() if report.exists() else b"<testsuite/>"
        return read_findings(self.tripwire, TripwireOutput(ExecResult(0, capture, Capture(b""), False, 1.0)), written)


def kinds(findings: TripwireFindings) -> set[str]:
    return {name.removeprefix("audit_") for name, value in findings.components.items() if value}
