"""Commands that show what the farm does: its state and its logs.

This room decides how a terminal shows what others recorded. Enter at the module of a command. The page is
farm/docs/operating.md.
"""
