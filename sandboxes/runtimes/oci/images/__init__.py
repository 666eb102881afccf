"""Docker's images as layers that an overlay is mounted on, shared or private."""
