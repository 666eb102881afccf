"""Unprivileged processes that parse hostile text for the index."""
