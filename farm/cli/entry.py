"""The program ``farm``. It imports the standard library alone, so that it runs where only the client is installed."""

import sys

from farm import __version__
from farm.cli.extras import missing_extra


def main() -> None:
    """Run the command line. If a package is missing, name the extra that brings it and exit with 1."""
    if sys.argv[1:] == ["--version"]:
        print(f"farm {__version__}")
        return
    try:
        from farm.cli.main import main as run_command

        run_command()
    except ModuleNotFoundError as error:
        message = missing_extra(error)
        if message is None:
            raise
        sys.stderr.write(f"error: {message}\n")
        sys.exit(1)
