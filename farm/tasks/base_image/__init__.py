"""The base image of made tasks. ``build.sh`` builds it from the files beside it. The page is farm/docs/tasks.md."""

from pathlib import Path

BUILD_SCRIPT = Path(__file__).with_name("build.sh")
