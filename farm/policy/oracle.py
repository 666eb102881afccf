"""The policy that knows the answer: it drives a task's gold change through the same tools any policy has."""

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from farm.core.change import Change, ChangeKind, FileChange
from farm.policy.edits import replacements, text_of_view
from farm.rollout.policy import Message, PolicyError, Reply, ToolCall
from farm.tasks.bundle import TaskBundle

_EDITOR = "str_replace_based_edit_tool"
_CALLS_A_TURN = 24
_CHUNK = 96 * 1024
_DIGEST = re.compile(r"^([0-9a-f]{64})  (.+)$", re.MULTILINE)

_Call = tuple[str, Mapping[str, Any]]
_Script = Generator[list[_Call], list[str], None]
"""Yields the calls of a turn, is sent their results, ends when the work is done."""


class OraclePolicy:
    """Plays its script turn by turn, then submits. Raises PolicyError for a task without a known answer."""

    def __init__(self, bundle: TaskBundle) -> None:
        self._script = _script(bundle)
        self._begun = False
        self._calls = 0

    @property
    def outage(self) -> str | None:
        return None

    async def reply(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> Reply:
        try:
            calls = self._script.send(_last_results(messages)) if self._begun else next(self._script)
        except StopIteration:
            calls = [("submit", {})]
        self._begun = True
        return Reply(content="", tool_calls=tuple(self._written(call) for call in calls), finish_reason="tool_calls")

    async def close(self) -> None:
        self._script.close()

    def _written(self, call: _Call) -> ToolCall:
        name, arguments = call
        self._calls += 1
        return ToolCall(f"call_{self._calls}", name, json.dumps(arguments))


def _last_results(messages: Sequence[Message]) -> list[str]:
    results: list[str] = []
    for message in reversed(messages):
        if message["role"] != "tool":
            break
        results.append(str(message["content"]))
    return results[::-1]


def _script(bundle: TaskBundle) -> _Script:
    if bundle.gold is not None:
        return _apply(bundle.gold, bundle.task.workspace)
    if "solve.sh" in bundle.solution:
        return _solve(bundle)
    raise PolicyError(f"task {bundle.task.id} has no gold change and no solution/solve.sh", retryable=False)


def _apply(gold: Change, workspace: str) -> _Script:
    """Look, clear the way, edit, then set the modes and compare; what differs is written whole."""
    texts = {f"{workspace}/{file.path}": text for file in gold.files if (text := _text(file)) is not None}
    views: dict[str, str | None] = {}
    paths = list(texts)
    for start in range(0, len(paths), _CALLS_A_TURN):
        batch = paths[start : start + _CALLS_A_TURN]
        results = yield [(_EDITOR, {"command": "view", "path": path}) for path in batch]
        views |= zip(batch, map(text_of_view, results), strict=True)
    yield from _turns([_bash(command) for command in _other_files(gold, workspace)])
    edits = [call for path, text in texts.items() for call in _edit(path, views[path], text)]
    yield from _turns(edits)
    finish = _finish(gold, workspace)
    if finish:
        (seen,) = yield [_bash(finish)]
        digests = {path: digest for digest, path in _DIGEST.findall(seen)}
        wrong = [path for path, text in texts.items() if digests.get(path) != _sha256(text)]
        yield from _turns([_create(path, texts[path]) for path in wrong])


def _solve(bundle: TaskBundle) -> _Script:
    commands: list[str] = []
    for path, file in sorted(bundle.solution.items()):
        commands += _write_bytes(f"/solution/{path}", file.content)
        if file.executable:
            commands.append(f"chmod +x {shlex.quote(f'/solution/{path}')}")
    yield from _turns([_bash(command) for command in commands])
    yield [_bash("bash /solution/solve.sh")]


def _text(file: FileChange) -> str | None:
    """The content of a file that the editor can write; None for deletions, symlinks and binaries."""
    if file.kind is not ChangeKind.WRITE or b"\0" in file.content or b"\r" in file.content:
        return None
    try:
        return file.content.decode()
    except UnicodeDecodeError:
        return None


def _edit(path: str, view: str | None, text: str) -> list[_Call]:
    """Unique replacements where the old text was seen whole, else the file anew."""
    if view is not None:
        old = view if view.endswith("\n") or not text.endswith("\n") else view + "\n"
        pairs = replacements(old, text)
        if pairs:
            return [
                (_EDITOR, {"command": "str_replace", "path": path, "old_str": piece, "new_str": replacement})
                for piece, replacement in pairs
            ]
    return [_create(path, text)]


def _bash(command: str) -> _Call:
    return ("bash", {"command": command})


def _create(path: str, text: str) -> _Call:
    return (_EDITOR, {"command": "create", "path": path, "file_text": text})


def _other_files(gold: Change, workspace: str) -> list[str]:
    """Shell commands for what the editor cannot do: deletions first, since they may clear the way."""
    gone = [shlex.quote(f"{workspace}/{file.path}") for file in gold.files if file.kind is ChangeKind.DELETE]
    commands = [f"rm -rf -- {' '.join(gone)}"] if gone else []
    for file in gold.files:
        path = f"{workspace}/{file.path}"
        if file.kind is ChangeKind.SYMLINK:
            target = shlex.quote(file.content.decode(errors="surrogateescape"))
            commands.append(f"{_make_parent(path)} && ln -sfn -- {target} {shlex.quote(path)}")
        elif file.kind is ChangeKind.WRITE and _text(file) is None:
            commands.extend(_write_bytes(path, file.content))
    return commands


def _finish(gold: Change, workspace: str) -> str:
    """Modes as the gold has them, then the digest of every written file."""
    written = [file for file in gold.files if file.kind is ChangeKind.WRITE]
    if not written:
        return ""
    commands = []
    for bit, files in (
        ("a+x", [f for f in written if f.executable]),
        ("a-x", [f for f in written if not f.executable]),
    ):
        if files:
            commands.append(f"chmod {bit} -- {_quoted(files, workspace)}")
    return "; ".join([*commands, f"sha256sum -- {_quoted(written, workspace)}"])


def _quoted(files: Sequence[FileChange], workspace: str) -> str:
    return " ".join(shlex.quote(f"{workspace}/{file.path}") for file in files)


def _write_bytes(path: str, content: bytes) -> list[str]:
    quoted = shlex.quote(path)
    commands = [f"{_make_parent(path)} && : > {quoted}"]
    for start in range(0, len(content), _CHUNK):
        encoded = base64.b64encode(content[start : start + _CHUNK]).decode()
        commands.append(f"printf %s {encoded} | base64 -d >> {quoted}")
    return commands


def _make_parent(path: str) -> str:
    return f"mkdir -p -- {shlex.quote(path.rpartition('/')[0])}"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _turns(calls: list[_Call]) -> _Script:
    for start in range(0, len(calls), _CALLS_A_TURN):
        yield calls[start : start + _CALLS_A_TURN]
