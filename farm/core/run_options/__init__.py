"""Options of a run: which tasks its groups get and when they start, and where its episodes branch.

This room decides what a user may choose for a whole run. Enter at ``GroupOptions`` and at ``Branching``. The pages are
farm/docs/learner.md and farm/docs/branching.md.
"""
