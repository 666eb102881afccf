"""Processes without rights that read hostile text for the index."""
