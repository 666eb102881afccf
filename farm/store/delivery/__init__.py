"""Delivery: leases, checkpoints of learners, groups requested one by one, the pace of runs, and idempotency keys."""
