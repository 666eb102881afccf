"""What a policy did with its tools that a person should look at, and counts of how it works.

farm/docs/architecture/audit.md explains it.
"""

from farm.audit.behaviour import Behaviour, watch

__all__ = ["Behaviour", "watch"]
