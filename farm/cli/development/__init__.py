"""Commands for those who develop the farm, a policy or a learner: ``farm bench`` and ``farm dev``.

The pages are farm/docs/measurements and farm/docs/architecture/model-server.md.
"""
