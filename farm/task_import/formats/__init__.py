"""Rows of the data sets that others publish, each format read into a draft of a task."""
