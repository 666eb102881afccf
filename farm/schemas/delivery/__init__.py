"""Requests and answers about the delivery of groups: leases, checkpoints and requested groups."""
