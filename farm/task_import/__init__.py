"""Tasks in the formats that exist become task directories of the farm's, which plain Harbor runs too.

farm/docs/architecture/task-import.md explains it.
"""
