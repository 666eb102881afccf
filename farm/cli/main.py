"""The ``farm`` command: one sub-command a file; every failure ends as one line and an exit code."""

import signal
import sys
import tempfile
import traceback
from types import FrameType

import typer
from typer.exceptions import Abort, TyperException

from farm import __version__
from farm.cli import bench, doctor, images, lifecycle, rollouts, run, sandbox, tasks
from farm.cli.errors import CliError
from farm.cluster import FarmError
from farm.config import ConfigError
from farm.gateway import AddressTaken
from farm.store import StoreError
from farm.tasks import TaskError
from sandboxes import SandboxError

EXPLAINED = (CliError, ConfigError, FarmError, AddressTaken, StoreError, TaskError, SandboxError)
"""Errors whose message is one line that names the remedy."""

app = typer.Typer(
    name="farm",
    help="Sandboxed coding environments for reinforcement learning.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("up")(lifecycle.up)
app.command("down")(lifecycle.down)
app.command("status")(lifecycle.status)
app.command("doctor")(doctor.doctor)
app.command("run")(run.run)
app.command("sandbox")(sandbox.sandbox)
app.add_typer(tasks.app, name="tasks")
app.add_typer(images.app, name="images")
app.add_typer(rollouts.app, name="rollouts")
app.add_typer(bench.app, name="bench")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"farm {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Sandboxed coding environments for reinforcement learning."""


def main() -> None:
    """Run the command line: exit 0 on success, 1 on failure, 2 on wrong usage, 130 when interrupted."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = app(standalone_mode=False)
    except TyperException as error:
        context = getattr(error, "ctx", None)
        _complain(error.format_message() + (f" See `{context.command_path} --help`." if context else ""))
        sys.exit(error.exit_code)
    except EXPLAINED as error:
        _complain(str(error))
        sys.exit(1)
    except (Abort, KeyboardInterrupt):
        _complain("interrupted")
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except Exception as error:  # the last boundary: a defect of ours still ends as one line, its trace in a file
        with tempfile.NamedTemporaryFile("w", prefix="farm-crash-", suffix=".log", delete=False) as log:
            traceback.print_exc(file=log)
        _complain(f"{type(error).__name__}: {error}; this is a defect of the farm, please report {log.name}")
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _complain(message: str) -> None:
    sys.stderr.write("error: " + " ".join(message.split()) + "\n")


if __name__ == "__main__":
    main()
