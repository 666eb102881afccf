"""Options and output that every command shares."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from farm.config import Config, load_config

ConfigFile = Annotated[Path | None, typer.Option("--config", help="Configuration file; farm.toml here by default.")]
StateDir = Annotated[Path | None, typer.Option("--state-dir", help="Where the farm keeps what must outlive it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]

# Into a pipe or a file a row is one line: there is no terminal to fit.
progress_console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 400)
table_console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def read_config(config: Path | None, state_dir: Path | None = None, **flags: Any) -> Config:
    """The configuration behind a command. Raises ConfigError."""
    return load_config(config, flags={"state_dir": state_dir, **flags})


def print_json(document: Mapping[str, Any] | list[Any]) -> None:
    json.dump(document, sys.stdout, indent=2, default=str)
    sys.stdout.write("\n")
