"""How a policy worked, in counts and flags, from the turns of its episode; pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farm.audit.detectors import CHANGE, KINDS, NETWORK, TESTS, FilesWrittenSoFar, detect
from farm.audit.tool_actions import OTHERS, classify_call
from farm.core.rollout import AuditFlag, Turn

MOST_FLAGS = 5
"""Of one kind that a rollout carries; all are counted."""

MOST_EVIDENCE = 160

MOST_READ = 128 * 1024
"""Characters of scripts read of one episode; of each call past that only the first ALWAYS_READ."""

ALWAYS_READ = 512


@dataclass(frozen=True, slots=True)
class AuditResult:
    """``components``: how many calls, or lines of the change, were flagged, by kind. ``metrics``: those again,
    ``terminal_only`` (1 where all calls that touched anything were a terminal's), ``terminal_calls`` and
    ``edit_calls``, of which only those count that succeeded."""

    flags: tuple[AuditFlag, ...]
    components: Mapping[str, float]
    metrics: Mapping[str, float]


def audit_turns(
    turns: Sequence[Turn], *, network: bool, refused: int = 0, tampered: str = "", screened: Sequence[str] = ()
) -> AuditResult:
    """``network``: the task grants one; ``refused``: so often its sandbox asked for a host that it may not reach.
    ``tampered``: why the results of its tests cannot be true, empty where they can. ``screened``: lines of its change
    that look like results made up."""
    flags: list[AuditFlag] = []
    counts: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    made = FilesWrittenSoFar()
    room = MOST_READ

    def flag(kind: str, turn: int | None, call: int | None, evidence: str) -> None:
        counts[kind] += 1
        if counts[kind] <= MOST_FLAGS:
            flags.append(AuditFlag(kind, turn, call, shown(evidence)))

    for turn in turns:
        for index, use in enumerate(turn.tool_uses):
            act = classify_call(use, max(room, ALWAYS_READ))
            room -= len(use.arguments)
            if act is None or use.name in OTHERS:
                continue
            calls["touching"] += 1
            calls["terminal"] += act.terminal
            calls["edits"] += bool(act.edited)
            for kind, evidence in dict(reversed(list(detect(act, network=network, made=made)))).items():
                flag(kind, turn.index, index, evidence)
    if refused:
        flag(NETWORK, None, None, f"the proxy refused {refused} requests")
    if tampered:
        flag(TESTS, None, None, tampered)
    for line in screened:
        flag(CHANGE, None, None, line)
    figures = {f"audit_{kind}": float(counts[kind]) for kind in KINDS}
    metrics = {
        "terminal_only": float(0 < calls["touching"] == calls["terminal"]),
        "terminal_calls": float(calls["terminal"]),
        "edit_calls": float(calls["edits"]),
    }
    return AuditResult(tuple(flags), figures, {**figures, **metrics})


def shown(text: str) -> str:
    """One line of printable text, of bounded length."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * MOST_EVIDENCE]).split())
    return line if len(line) <= MOST_EVIDENCE else line[: MOST_EVIDENCE - 1] + "…"
