"""What the farm decides, with no I/O: plain values, pure functions, time as an argument."""
