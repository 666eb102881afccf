"""The verdict on an answer to a retrieval task, from what the policy wrote; pure."""

from farm.core.retrieval import Retrieval, gather, score
from farm.grading.verdict import Verdict
from sandboxes.tools.packs.answer import Answer, AnswerInput
from sandboxes.tools.parse_call import MalformedCall, parse_arguments


def decide_answer(retrieval: Retrieval, workspace: str, written: str | None) -> Verdict:
    """``written``: the arguments of the call by which the policy answered, None where it did not. Whatever they hold,
    this takes no longer than it takes to read them."""
    if written is None:
        return _worthless("no answer was given")
    try:
        answer = parse_arguments(AnswerInput, written)
    except MalformedCall as fault:
        return _worthless(f"{Answer.name} was malformed: {fault}")
    given = gather([(file.path, file.lines) for file in answer.files], workspace)
    found = score(retrieval.expected, given, retrieval.beta)
    right = round(found.files.recall * len(retrieval.expected))
    resolved = found.reward == 1.0
    return Verdict(
        reward=found.reward,
        resolved=resolved,
        reason=(
            f"{right} of {len(retrieval.expected)} expected files found among {len(given)}"
            f" (F {found.files.f:.3f}); F of lines {found.lines.f:.3f}"
        ),
        components={**found.components, "answered": 1.0, "resolved": float(resolved)},
    )


def _worthless(reason: str) -> Verdict:
    return Verdict(0.0, False, " ".join(reason.split()), components={"answered": 0.0, "resolved": 0.0})
