"""Code search: files become chunks, chunks an index, and a question finds those that answer it.

Reading hostile text is for processes of their own (``workers``); an index is shared by all sandboxes that hold the
same files (``library``), and a sandbox sees it with its own changes on top (``view``).

sandboxes/docs/code-search.md explains it.
"""
