"""Embeddings of code and questions: the farm's own table of word vectors, or another embedder.

Enter at ``select``. The page is sandboxes/docs/code-search.md.
"""
