"""One machine's part of the farm: it runs the episodes that the scheduler assigns to it.

This room decides how a node uses its slots, images and sandboxes, and how it recovers. Enter at ``NodeAgent``.
``episode_runner`` runs one assignment, ``heartbeat`` reports, ``recovery`` resumes episodes, ``publisher`` stores
rollouts. The page is farm/docs/architecture/node.md.
"""
