"""The ``farm`` command, one sub-command per module.

This room decides what people type and what they see. Enter at ``main``. Domain code belongs to the other rooms. The
page is farm/docs/operating.md.
"""
