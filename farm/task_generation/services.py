"""The services that every generator of tasks works with."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandboxes.images.store import ImageStore
from sandboxes.interface import Runtime

OnProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class GenerationServices:
    """Caches, images and sandboxes of this machine, and a callback that gets one line per step."""

    state_dir: Path
    images: ImageStore
    runtime: Runtime
    on_progress: OnProgress
