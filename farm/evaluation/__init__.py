"""Evaluation: policies try the same tasks with the same harness, and are compared.

This room decides what is measured, and what may be claimed from it. ``measures`` makes the row of one episode,
``estimators`` and ``significance`` are the statistics, ``results`` and ``pairs`` apply them to a document,
``comparison`` compares two documents, and ``csv_export`` writes one as a table. ``runner`` runs the episodes through
the client. The page is farm/docs/evaluation.md.
"""

from farm.evaluation.comparison import NotComparable, compare
from farm.evaluation.csv_export import episodes_csv
from farm.evaluation.results import compute_results

__all__ = ["NotComparable", "compare", "compute_results", "episodes_csv"]
