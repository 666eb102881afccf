"""The farm: sandboxed coding environments for reinforcement learning, scheduled over many machines."""

__version__ = "0.2.0"
