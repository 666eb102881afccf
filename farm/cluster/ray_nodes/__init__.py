"""What the gateway reads of the nodes by calls of their agents' actors: running episodes, logs, metrics, sandboxes.

Each module implements the interface of another room over Ray. The page is farm/docs/architecture/cluster.md.
"""
