"""Requests and answers about the delivery of groups, except leases: checkpoints of learners."""
