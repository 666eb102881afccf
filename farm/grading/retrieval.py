"""Judge the answer to a retrieval task as the policy wrote it; pure."""

from farm.core.retrieval import Retrieval, gather, score
from farm.grading.verdict import Verdict
from sandboxes.tools.packs.default.answer import Answer, AnswerInput
from sandboxes.tools.parse_call import MalformedCall, parse_arguments


def decide_answer(retrieval: Retrieval, workspace: str, written: str | None) -> Verdict:
    """Return the verdict on ``written``, the arguments of the call by which the policy answered; None: it did not.

    The time is linear in the length of the arguments.
    """
    if written is None:
        return _worthless("no answer was given")
    try:
        answer = parse_arguments(AnswerInput, written)
    except MalformedCall as fault:
        return _worthless(f"{Answer.name} was malformed: {fault}")
    named = gather([(file.path, file.lines) for file in answer.files], workspace)
    result = score(retrieval.expected, named, retrieval.beta)
    right = round(result.files.recall * len(retrieval.expected))
    resolved = result.reward == 1.0
    return Verdict(
        reward=result.reward,
        resolved=resolved,
        reason=(
            f"{right} of {len(retrieval.expected)} expected files found among {len(named)}"
            f" (F {result.files.f:.3f}); F of lines {result.lines.f:.3f}"
        ),
        components={**result.components, "answered": 1.0, "resolved": float(resolved)},
    )


def _worthless(reason: str) -> Verdict:
    return Verdict(0.0, False, " ".join(reason.split()), components={"answered": 0.0, "resolved": 0.0})
