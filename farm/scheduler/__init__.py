"""The scheduler: which node runs which episode of which run.

This room decides placement, retries and admission. Enter at ``state_machine``: events in, commands out, no I/O and no
clock. ``service`` runs it with the clock, the store and the nodes. The page is farm/docs/architecture/scheduler.md.
"""
