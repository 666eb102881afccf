"""Tools that a policy calls in a sandbox: names, schemas, argument parsing and results.

This room decides what a policy can do and sees. Enter at ``Toolset``. The page is sandboxes/docs/tools.md.
"""

from sandboxes.tools.tool import Tool, ToolErrorKind, ToolResult
from sandboxes.tools.toolset import Toolset

__all__ = ["Tool", "ToolErrorKind", "ToolResult", "Toolset"]
