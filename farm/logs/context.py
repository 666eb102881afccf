"""The node, the episode and the turn that the lines of this process belong to."""

from contextvars import ContextVar

_episode: ContextVar[tuple[str, str]] = ContextVar("farm_episode", default=("", ""))
_turn: ContextVar[str] = ContextVar("farm_turn", default="")
_own_node = ""


def name_node(node_id: str) -> None:
    """Set the node of all lines of this process that name no other."""
    global _own_node
    _own_node = node_id


def name_episode(run_id: str, rollout_id: str) -> None:
    """Set the run and the rollout of all lines of this task, and of the tasks that it starts."""
    _episode.set((run_id, rollout_id))
    _turn.set("")


def name_turn(index: int | None) -> None:
    """Set the turn, counted from 0, of all lines of this task, and of the tasks that it starts. None: no turn."""
    _turn.set("" if index is None else str(index))


def current_ids() -> dict[str, str]:
    """Return the ids of a line that is written now: ``node``, ``run``, ``rollout`` and ``turn``; "" for none."""
    run, rollout = _episode.get()
    return {"node": _own_node, "run": run, "rollout": rollout, "turn": _turn.get()}
