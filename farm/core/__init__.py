"""Core values and pure functions, without I/O; time is an argument."""
