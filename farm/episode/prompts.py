"""The messages of an episode: its opening, and a turn as the policy reads it again."""

from collections.abc import Mapping, Sequence

from farm.core.task import Task
from farm.policy.base import Message, Reply
from sandboxes.tools.tool import ToolResult

_SYSTEM = """\
You are a coding agent at work in a sandbox: a Linux machine of your own, {network}. The repository is at \
{workspace}, and that is where your tools begin.

Read what you need, change the code until the task is done, and check your work by running it. You may make several \
tool calls in one message: searches and views run side by side, everything else in the order you wrote it. Nobody \
answers questions; a message without a tool call ends the work{submit}. What you leave in the \
repository is then judged by tests that you do not see."""

_FINDER = """\
You find code in a repository at {workspace}, which is where your tools begin; they only read. You have {turns} \
messages. Of each, the first {calls} tool calls are run, side by side, and no more. Your last message at the latest \
must answer, with the answer tool: the files and the ranges of lines that are asked for. It is judged as it is; lines \
that are not wanted cost as well as those that are missing. Without a well-formed answer all is worth nothing. Nobody \
answers questions; a message without a tool call ends the work."""

UNFINISHED = "Not finished: the episode ended first."
AFTER_SUBMIT = "Not run: the work had been submitted."
NOT_CALLED = "Not run: the message had to be a summary without a tool call."
LEFT_OUT = "Left out: the context was full."

_COMPACTED = """\
{instruction}

You have worked on this before. Your context was full, so it was replaced by the summary that you wrote{cut}. Number \
of summaries so far: {number}. What you changed in the sandbox is still there.

<summary>
{summary}
</summary>"""


def initial_messages(
    task: Task, tools: Sequence[str], *, max_turns: int, system_prompt: str | None = None
) -> tuple[Mapping[str, str], ...]:
    """Return the system and the user message of an episode, or of a step of it.

    ``tools``: their names. ``system_prompt`` None: the farm's own.
    """
    if system_prompt is not None:
        system = system_prompt
    elif task.retrieval is not None:
        system = _FINDER.format(workspace=task.workspace, turns=max_turns, calls=task.retrieval.calls_per_turn)
    else:
        submit = ", as does the submit tool" if "submit" in tools else ""
        system = _SYSTEM.format(workspace=task.workspace, network=_network(task), submit=submit)
    return (
        {"role": "system", "content": system},
        {"role": "user", "content": task.instruction},
    )


def _network(task: Task) -> str:
    if not task.network:
        return "without a network"
    return f"whose only network is an HTTP proxy, known to programs by HTTPS_PROXY, to {', '.join(task.network)}"


def compacted_instruction(instruction: str, summary: str, plan: str, *, number: int, was_cut: bool) -> str:
    """Return the user message of a context that begins with a summary. ``number`` counts the summaries so far."""
    cut = " (it was cut off at its limit of tokens)" if was_cut else ""
    text = _COMPACTED.format(instruction=instruction, cut=cut, number=number, summary=summary)
    return f"{text}\n\n<plan>\n{plan}\n</plan>" if plan else text


def assistant_message(reply: Reply, *, with_reasoning: bool = True) -> Message:
    """Return a reply as the assistant message of the next request, with ``reasoning_content`` if there was some."""
    message: dict[str, object] = {"role": "assistant", "content": reply.content}
    if with_reasoning and reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in reply.tool_calls
        ]
    return message


def tool_messages(reply: Reply, results: Sequence[ToolResult | None], *, absent: str = AFTER_SUBMIT) -> list[Message]:
    """Return one tool message for each call, in the order of the calls. ``absent`` stands for a missing result."""
    return [
        {"role": "tool", "tool_call_id": call.id, "content": result.content if result else absent}
        for call, result in zip(reply.tool_calls, results, strict=True)
    ]
