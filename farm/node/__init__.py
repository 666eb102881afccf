"""One machine's part of the farm: it runs the episodes that the scheduler assigns to it.

``agent`` takes assignments, runs episodes and reports. ``image_cache`` and ``task_cache`` bring what episodes need,
``prewarm`` keeps sandboxes ready, ``publisher`` brings rollouts to the store.

farm/docs/architecture/node.md explains it.
"""
