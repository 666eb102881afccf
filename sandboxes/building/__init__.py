"""Confinement of image builds: the check of Dockerfiles, the network of their steps, and their limits."""

from sandboxes.building.confinement import REMEDY, Confinement, confine, find_obstacle
from sandboxes.building.indexes import NpmRegistry, PackageIndexes, PipIndex
from sandboxes.building.limits import BuildLimits
from sandboxes.building.screening import screen

__all__ = [
    "REMEDY",
    "BuildLimits",
    "Confinement",
    "NpmRegistry",
    "PackageIndexes",
    "PipIndex",
    "confine",
    "find_obstacle",
    "screen",
]
