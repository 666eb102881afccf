"""Source distributions: downloaded from the package index once, cached by their SHA-256, and never built."""
