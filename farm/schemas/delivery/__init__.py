"""Requests and answers about the delivery of groups, except leases: checkpoints and requested groups."""
