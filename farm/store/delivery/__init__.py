"""Delivery beside leases: checkpoints of learners, and groups that a learner requests one by one."""
