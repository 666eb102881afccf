"""Which node runs which episode of which run.

``state_machine`` decides: events in, commands out, no I/O and no clock. ``service`` runs it, with the clock, the store
and the nodes. ``nodes`` and ``run_progress`` hold what it knows. farm/docs/architecture/scheduler.md explains it.
"""
