"""What a policy may do in a sandbox: tools with schemas, and the door through which its calls go.

sandboxes/docs/tools.md explains it.
"""

from sandboxes.tools.tool import Tool, ToolErrorKind, ToolResult
from sandboxes.tools.toolset import Toolset

__all__ = ["Tool", "ToolErrorKind", "ToolResult", "Toolset"]
