"""Tools that a policy calls in a sandbox: names, schemas, argument parsing and results.

sandboxes/docs/tools.md explains it.
"""

from sandboxes.tools.tool import Tool, ToolErrorKind, ToolResult
from sandboxes.tools.toolset import Toolset

__all__ = ["Tool", "ToolErrorKind", "ToolResult", "Toolset"]
