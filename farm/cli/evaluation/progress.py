"""The progress of an evaluation: a bar for each policy on a terminal, now and then a line elsewhere."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.progress import TextColumn

from farm.cli.errors import shown
from farm.cli.options import progress_console
from farm.cli.runs.progress import LINE_S, progress_bars, progress_note

if TYPE_CHECKING:
    from farm.schemas.responses import RunAnswer


class EvaluationProgress:
    """Shows the runs of an evaluation by their labels."""

    def __init__(self, runs: "Mapping[str, RunAnswer]") -> None:
        self._bars = progress_bars(TextColumn("{task.description}", markup=False))
        self._ids = {
            label: self._bars.add_task(shown(label), total=run.summary.expected or None, note="")
            for label, run in runs.items()
        }
        self._ended: set[str] = set()
        self._line_due = time.monotonic() + LINE_S

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def show(self, runs: "Mapping[str, RunAnswer]") -> None:
        """Show the present state of the runs."""
        is_due = time.monotonic() >= self._line_due
        for label, run in runs.items():
            note = shown(progress_note(run))
            self._bars.update(self._ids[label], completed=run.summary.accepted, note=note)
            has_ended = run.ended_at is not None
            if not progress_console.is_terminal and label not in self._ended and (has_ended or is_due):
                state = "has ended" if has_ended else "goes on"
                progress_console.print(
                    f"{label} {state}: {run.summary.accepted}/{run.summary.expected} episodes; {note}"
                )
            if has_ended:
                self._ended.add(label)
        if is_due:
            self._line_due = time.monotonic() + LINE_S
