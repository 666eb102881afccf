"""Formats of public data sets: each module reads a row into an ``ImportDraft``."""
