"""Messages and documents that name a command: the command and the options exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from farm.cli.main import command_line
from tests.support.pages import PAGES

ROOT = Path(__file__).resolve().parents[3]
QUOTED = re.compile(r"`(?:[A-Z_]+=\S+ )*farm ([a-z][^`]*)`")
SHARED = ("config", "client", "gateway", "store", "tasks", "cluster", "node", "scheduler", "schemas")
"""Of ``farm``: what several commands and other clients use, so a bare option is one of another command's."""

BARE = re.compile(r"(?<![`\w-])--[a-z][a-z-]+(?![^`]*`)")


def strings(path: Path) -> Iterator[str]:
    """Yield the string literals of a module, with X for each value of an f-string."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def hints() -> Iterator[tuple[Path, str]]:
    for path in sorted((ROOT / "farm").rglob("*.py")):
        for text in strings(path):
            yield from ((path, hint) for hint in QUOTED.findall(text))
    for path in PAGES:
        yield from ((path, hint) for hint in QUOTED.findall(path.read_text()))


def fault(hint: str) -> str:
    """Return the part of a hint that does not exist, or an empty text."""
    command = get_command(command_line([]))
    words = hint.split()
    while words and isinstance(command, TyperGroup) and not words[0].startswith("-"):
        name = words.pop(0)
        if name.isupper():  # stands for any
            break
        for other in name.split("|"):
            if other not in command.commands:
                return f"no command {other}"
        command = command.commands[other]
    options = (option for one in command.params for option in (*one.opts, *one.secondary_opts))
    known = {*options, "--help"}
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0].rstrip(",;.") not in known]
    return f"no option {unknown[0]}" if unknown else ""


def test_missing_object_errors_have_remedy() -> None:
    found = [
        text
        for room in SHARED
        for path in sorted((ROOT / "farm" / room).rglob("*.py"))
        for text in strings(path)
        if text.startswith(("there is no run X", "there is no rollout X", "there is no node X"))
    ]
    assert len(found) > 5
    assert [text for text in found if "; " not in text] == []


def test_commands_in_hints_exist_with_their_options() -> None:
    found = list(hints())
    assert len(found) > 50
    assert [f"{path}: `farm {hint}`: {why}" for path, hint in found if (why := fault(hint))] == []


@pytest.mark.parametrize("hint", ["runn", "run X --url Y", "tasks validat", "up --detach --url=x", "runs list|shaw"])
def test_invalid_hint_is_detected(hint: str) -> None:
    assert fault(hint)


def test_shared_modules_name_options_only_with_command() -> None:
    """``--config`` and ``--state-dir`` are options of each command that reads the configuration."""
    everywhere = {"--config", "--state-dir"}
    modules = [path for name in SHARED for path in (ROOT / "farm" / name).rglob("*.py")]
    errors = [
        (path, part.value)
        for path in modules
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Raise) and node.exc is not None
        for part in ast.walk(node.exc)
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and " " in part.value
    ]
    bare = [(path.name, option) for path, text in errors for option in BARE.findall(text) if option not in everywhere]
    assert bare == []
