"""What surrounds an image build: which Dockerfiles are admitted, what their steps reach, and how much they take."""

from sandboxes.building.confinement import Confinement, confine
from sandboxes.building.indexes import NpmRegistry, PackageIndexes, PipIndex
from sandboxes.building.limits import BuildLimits
from sandboxes.building.screening import screen

__all__ = ["BuildLimits", "Confinement", "NpmRegistry", "PackageIndexes", "PipIndex", "confine", "screen"]
