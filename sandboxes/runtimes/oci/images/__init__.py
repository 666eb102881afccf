"""Docker's images as overlay layers, shared among sandboxes or private. Enter at ``image_mounts`` and
``packed_layers``.

The page is sandboxes/docs/runtime-oci.md.
"""
