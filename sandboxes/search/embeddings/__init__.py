"""Embeddings of code and questions: the farm's own table of word vectors, or another embedder."""
