"""Evaluations on the wire and in the store: the document of what was observed, and the results computed from it.

``document`` is what a client sends, and all that a later comparison needs. ``results`` is what the farm computes.
"""
