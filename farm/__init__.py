"""The farm: sandboxed coding environments for reinforcement learning, scheduled over many machines.

Each folder is a room that decides one thing; its docstring says which. Layers, high to low, are in pyproject.toml.
Start at farm/docs/architecture/README.md.
"""

__version__ = "0.2.0"
