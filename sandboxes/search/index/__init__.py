"""The searchable form of source files: chunks, and segments that can lie in a mapped file."""
