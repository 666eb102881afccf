"""Source distributions: downloaded from the package index once, known by their SHA-256, and never built."""
