"""``farm doctor``: checks of this machine, with remedies.

This room decides what a farm needs of its machine. ``examination`` runs all checks; ``machine``, ``runtime`` and
``services`` are those of every farm, ``configured`` and ``endpoint`` those of its configuration. The page is
farm/docs/operating.md.
"""

from farm.cli.doctor.examination import Examination, doctor, examine

__all__ = ["Examination", "doctor", "examine"]
