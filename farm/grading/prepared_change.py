"""A change as it travels into the grading sandbox, and the facts about it that a verdict carries."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from farm.core.change import Change
from farm.grading.changes.summary import Seen
from farm.grading.tripwire.tripwire import NOTHING, Findings, Touched
from farm.grading.verdict import Verdict
from sandboxes.interface import ExecResult, FileKind


@dataclass(frozen=True, slots=True)
class Weighed:
    """A change as it travels, and the pristine workspace that it travels to.

    ``files``: how many it really changes. ``there``: what the workspace of the tests holds, by path. ``untouched``:
    nothing of the policy is in it. ``seen`` is found while tests run. ``touched``: files that the change writes.
    """

    travels: Change
    dropped: tuple[str, ...]
    there: Mapping[str, FileKind]
    untouched: bool
    files: int
    seen: asyncio.Task[Seen]
    touched: Mapping[str, Touched]


async def with_facts(
    verdict: Verdict, weighed: Weighed, result: ExecResult | None, findings: Findings = NOTHING
) -> Verdict:
    seen = await weighed.seen
    facts = {"changed_files": float(weighed.files), "protected_paths_touched": float(len(weighed.dropped))}
    output = b"" if result is None else result.stdout.tail or result.stdout.head
    return replace(
        verdict,
        components={**verdict.components, **facts, **seen.components},
        protected_paths=weighed.dropped,
        patch=seen.patch,
        screened=(*findings.evidence, *seen.screened),
        output=output.decode(errors="replace"),
    )
