"""Importers: rows of public data sets become task directories, which plain Harbor runs too.

This room decides which rows can be judged, and how. Enter at ``importer``. The page is
farm/docs/architecture/task-import.md.
"""
