"""Reasons why a judged rollout cannot be trained on, and what an endpoint must return to avoid them."""

from collections.abc import Mapping

INCONSISTENT, NO_TOKENS = "untrainable_inconsistent_tokens", "untrainable_no_tokens"
"""Metrics of a rollout: how many of its replies have tokens that contradict each other, and how many have none."""

TOO_LONG = "untrainable_too_long"

WITHOUT_TOKENS = ("oracle", "nop")
"""Policies without an endpoint."""

ENDPOINT_REQUIREMENT = (
    "the endpoint must return with every reply the token ids of the prompt and of the reply "
    "(vLLM: prompt_token_ids and choices[0].token_ids; SGLang: choices[0].prompt_token_ids and "
    "choices[0].response_token_ids) and their log-probabilities (choices[0].logprobs.content)"
)


def untrainable(policy: str, metrics: Mapping[str, float]) -> str:
    """Return the reason why a judged rollout without segments cannot be trained on; "" if its metrics give none."""
    if policy in WITHOUT_TOKENS:
        return f"the policy {policy} samples no tokens"
    if count := int(metrics.get(NO_TOKENS, 0)):
        return f"{count} {_replies(count)} came without token ids; {ENDPOINT_REQUIREMENT}"
    if count := int(metrics.get(INCONSISTENT, 0)):
        where = f"the endpoint's tokens are inconsistent in {count} {_replies(count)}"
        return f"{where}; `farm rollouts show` gives the first contradiction; {ENDPOINT_REQUIREMENT}"
    if metrics.get(TOO_LONG):
        return "its tokens are too long to be stored; set a lower max_tokens"
    if not metrics.get("turns"):
        return "the policy gave no reply"
    return ""


def _replies(count: int) -> str:
    return "reply" if count == 1 else "replies"
