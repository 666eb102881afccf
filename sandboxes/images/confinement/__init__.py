"""Confinement of image builds: checks of Dockerfiles, network access of build steps, and resource limits.

Enter at ``confine``. The page is sandboxes/docs/images.md.
"""

from sandboxes.images.confinement.confinement import REMEDY, Confinement, confine, find_obstacle
from sandboxes.images.confinement.indexes import NpmRegistry, PackageIndexes, PipIndex
from sandboxes.images.confinement.limits import BuildLimits
from sandboxes.images.confinement.screening import screen

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
