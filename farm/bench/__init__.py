"""Benchmarks: one file each, measured against a named baseline in the same run, the two interleaved.

A bench is an ``async`` function that gives figures; the command line calls it, adds the machine and prints the result.
"""

from farm.bench.episodes import measure_episodes
from farm.bench.figures import BenchError, BenchResult, Figure, Machine

__all__ = ["BenchError", "BenchResult", "Figure", "Machine", "measure_episodes"]
