"""The tools of the default pack, and ``answer`` for retrieval tasks. Other packs wrap some of them.

One module for each tool: its schema, its limits, and the text of its result. ``sandboxes.tools.actions`` does the work.
The page is farm/docs/tools.md.
"""
