"""The indexed form of source files: chunks, and segments that can be memory-mapped."""
