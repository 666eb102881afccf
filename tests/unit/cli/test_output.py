"""What a command shows may be anybody's words: the endpoint's, a sandbox's, a task's."""

import io

import pytest
from rich.table import Table

from farm.cli.errors import shown
from farm.cli.options import PlainConsole

HOSTILE = "[/red] [bold]x[/] :boom: \x1b[2J\x07\x9b31m\x7f"
SEEN = "[/red] [bold]x[/] :boom: ␛[2J␇\ufffd31m␡"


@pytest.mark.parametrize("terminal", [False, True])
def test_control_codes_in_output_are_replaced(terminal: bool) -> None:
    file = io.StringIO()
    console = PlainConsole(file=file, force_terminal=terminal, color_system=None, width=100)
    table = Table("column", box=None)
    table.add_row(HOSTILE)
    console.print(HOSTILE)
    console.print(HOSTILE, soft_wrap=True)
    console.rule(HOSTILE)
    console.print(table)
    assert file.getvalue().count(SEEN) == 4
    assert not {"\x1b", "\x07", "\x9b", "\x7f"} & set(file.getvalue())


def test_newlines_and_tabs_are_unchanged() -> None:
    assert shown("a\tb\nc é 日本") == "a\tb\nc é 日本"
