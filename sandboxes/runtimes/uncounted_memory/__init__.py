"""Memory that no control group counts: measured, and the sandbox that holds too much of it ended."""
