"""Sandboxes: isolated places in which untrusted code runs, and the tools a policy uses there. Usable alone."""
