"""Delivery beside leases: checkpoints of learners, groups requested one by one, and the pace of runs."""
