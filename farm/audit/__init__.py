"""What a policy did with its tools that a person should look at, and counts of how it works.

farm/docs/architecture/audit.md explains it.
"""

from farm.audit.behaviour import AuditResult, audit_turns

__all__ = ["AuditResult", "audit_turns"]
