"""A change as it travels into the grading sandbox, and the facts about it that a verdict carries."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from farm.core.change import Change
from farm.grading.changes.summary import ChangeSummary
from farm.grading.tripwire.tripwire import NO_FINDINGS, ChangedLines, TripwireFindings
from farm.grading.verdict import Verdict
from sandboxes.interface import ExecResult, FileKind


@dataclass(frozen=True, slots=True)
class PreparedChange:
    """A change as it travels, and the pristine workspace that it travels to.

    ``files``: how many it really changes. ``there``: what the workspace of the tests holds, by path. ``untouched``:
    nothing of the policy is in it. ``seen`` is found while tests run. ``touched``: files that the change writes.
    """

    applied: Change
    excluded: tuple[str, ...]
    workspace_files: Mapping[str, FileKind]
    is_pristine: bool
    files: int
    seen: asyncio.Task[ChangeSummary]
    touched: Mapping[str, ChangedLines]


async def with_facts(
    verdict: Verdict, weighed: PreparedChange, result: ExecResult | None, findings: TripwireFindings = NO_FINDINGS
) -> Verdict:
    seen = await weighed.seen
    facts = {"changed_files": float(weighed.files), "protected_paths_touched": float(len(weighed.excluded))}
    output = b"" if result is None else result.stdout.tail or result.stdout.head
    return replace(
        verdict,
        components={**verdict.components, **facts, **seen.components},
        protected_paths=weighed.excluded,
        patch=seen.patch,
        screened=(*findings.evidence, *seen.screened),
        output=output.decode(errors="replace"),
    )
