"""Importers: rows of public data sets become task directories, which plain Harbor runs too.

farm/docs/architecture/task-import.md explains it.
"""
