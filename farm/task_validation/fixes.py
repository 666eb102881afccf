"""Apply the fixes of validation to a task directory: remove ids of flaky tests, and set the verifier's time-out."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from farm.tasks import TaskError
from farm.tasks.files import MANIFEST


def apply_fixes(
    directory: Path, *, remove: Collection[str], timeout_s: float | None, never_false: Sequence[str] = ()
) -> None:
    """Remove ids from pass_to_pass, add ids to never_false, and set verifier.timeout_sec.

    The ids are in ``task.toml``, or in a file that it names. All else stays as it was written, comments included.
    Raises TaskError.
    """
    path = directory / MANIFEST
    try:
        document = tomlkit.parse(path.read_bytes().decode())
        farm: Any = document["metadata"]["farm"] if remove or never_false else {}
        if remove:
            listed = farm["pass_to_pass"]
            if isinstance(listed, str):
                _replace(directory / listed, _without((directory / listed).read_bytes().decode(), remove))
            else:
                for index in reversed([index for index, test in enumerate(listed) if test in remove]):
                    del listed[index]
        if never_false:
            listed_ids = farm.setdefault("never_false", tomlkit.array())
            if isinstance(listed_ids, str):
                text = (directory / listed_ids).read_bytes().decode()
                _replace(directory / listed_ids, "\n".join([*text.splitlines(), *never_false]) + "\n")
            else:
                listed_ids.extend(never_false)
                listed_ids.multiline(True)
        if timeout_s is not None:
            verifier: Any = document.setdefault("verifier", tomlkit.table())
            verifier["timeout_sec"] = timeout_s
        _replace(path, tomlkit.dumps(document))
    except OSError as error:
        raise TaskError(directory, f"cannot be written ({error.strerror})", "make it writable") from None
    except (TOMLKitError, KeyError, ValueError) as error:
        raise TaskError(path, f"cannot be changed ({error})", "change it by hand") from None


def _without(text: str, ids: Collection[str]) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if line.rstrip("\r\n") not in ids)


def _replace(path: Path, text: str) -> None:
    stage = path.with_name(f".{path.name}.new")
    stage.write_bytes(text.encode())
    stage.chmod(path.stat().st_mode)
    stage.replace(path)
