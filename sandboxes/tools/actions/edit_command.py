"""Edit files by replacements whose arguments are named ``old_string`` and ``new_string``."""

from sandboxes.interface import Sandbox
from sandboxes.tools.actions.files import FileActions
from sandboxes.tools.actions.text_edits import EditedText, Replacement, replace, replace_each
from sandboxes.tools.tool import ToolResult

_NAMES = ("old_string", "new_string")


async def edit(
    files: FileActions, sandbox: Sandbox, path: str, changes: list[Replacement], *, timeout_s: float
) -> ToolResult:
    """Apply all of ``changes`` or none. If the first has an empty ``old`` and there is no text, ``new`` becomes the
    file.
    """

    def change(text: str) -> EditedText:
        if not text and not changes[0].old:
            made = make()
            return EditedText(made, 1, made.count("\n"), 0)
        if len(changes) > 1:
            return replace_each(text, changes, names=_NAMES)
        (only,) = changes
        return replace(text, only.old, only.new, everywhere=only.everywhere, names=_NAMES)

    def make() -> str:
        first, *rest = changes
        return replace_each(first.new, rest, names=_NAMES).text if rest else first.new

    absent = None if changes[0].old else make
    return await files.change(sandbox, path, change, absent=absent, edits=len(changes), timeout_s=timeout_s)
