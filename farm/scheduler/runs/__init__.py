"""The runs of the scheduler: which member of which group is next, and whether it may start.

``run_progress`` keeps the state of each member, ``samplers`` chooses the tasks of groups, and ``pacing`` says whether
another group may start. ``learner_progress`` reads from the store what the learner does.
"""
