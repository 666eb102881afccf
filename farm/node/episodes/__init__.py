"""The episodes of a node agent: from an assignment to a published rollout.

This room decides how an assignment becomes a running episode, how it ends, and how its rollout is published. Enter at
``episode_runner``. The page is farm/docs/architecture/node.md.
"""
