"""Code search: split files into chunks, index the chunks, and rank them for a question.

Processes without privileges parse the hostile text (``workers``). An index is shared by all sandboxes that hold the
same files (``index_store``); each sandbox searches it together with its own changes (``sandbox_index``).

sandboxes/docs/code-search.md explains it.
"""
