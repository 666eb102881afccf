"""``farm tools``: the tool packs and the schemas of their tools."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from farm.cli.options import AsJson, print_json, table_console, words_of

if TYPE_CHECKING:
    from sandboxes.tools import Tool

app = typer.Typer(no_args_is_help=True, help="Packs of tools: what a policy may be given.")


class SchemaForm(StrEnum):
    OPENAI = "openai"
    JSON_SCHEMA = "json-schema"
    ANTHROPIC = "anthropic"


@app.command("list")
def list_packs(as_json: AsJson = False) -> None:
    """List the tool packs and their tools."""
    from sandboxes.tools.packs import PACKS

    if as_json:
        print_json([{"pack": pack.name, "about": pack.about, "tools": list(pack.tools)} for pack in PACKS.values()])
        return
    table = Table("pack", "what it is", "tools", box=None, pad_edge=False)
    for pack in PACKS.values():
        table.add_row(pack.name, pack.about, ", ".join(pack.tools))
    table_console.print(table)


@app.command()
def show(
    tools: Annotated[str, typer.Argument(metavar="PACK", help="A pack, or part of one: codex,-update_plan.")],
    form: Annotated[SchemaForm, typer.Option("--format", help="How --json writes the schemas.")] = SchemaForm.OPENAI,
    as_json: AsJson = False,
) -> None:
    """Show the tools of a pack with their arguments, or their schemas with --json."""
    from sandboxes.errors import SpecError
    from sandboxes.tools.packs import choose
    from sandboxes.tools.schemas import described

    try:
        chosen = choose(words_of(tools))
    except SpecError as error:
        raise typer.BadParameter(str(error), param_hint="PACK") from None
    if as_json:
        print_json([described(kind, form.value) for kind in chosen.kinds])
        return
    table = Table("tool", "arguments, those in brackets optional", box=None, pad_edge=False)
    for kind in chosen.kinds:
        table.add_row(kind.name, _arguments(kind))
    table_console.print(table)


def _arguments(kind: "type[Tool]") -> str:
    from sandboxes.tools.schemas import schema_of

    schema = schema_of(kind.Input)
    names: list[str] = list(schema["properties"])
    return " ".join(name if name in schema["required"] else f"[{name}]" for name in names)
