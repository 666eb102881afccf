"""Docker's images as overlay layers, shared among sandboxes or private."""
