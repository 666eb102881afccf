"""What was found out, line by line, so that whoever is stopped goes on where it was."""

import json
from pathlib import Path
from typing import Any


class ProgressLog:
    """Values that JSON can say, by key, in a file that is only ever added to; a line half written is forgotten."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Any] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        for line in path.read_bytes().splitlines() if path.is_file() else ():
            try:
                key, value = json.loads(line)
            except (ValueError, TypeError):
                continue
            self._known[key] = value

    def get(self, key: str) -> Any:
        """None where it is not known."""
        return self._known.get(key)

    def put(self, key: str, value: Any) -> None:
        self._known[key] = value
        with self._path.open("a") as file:
            file.write("\n" * bool(file.tell() and not self._ends()) + json.dumps([key, value]) + "\n")

    def _ends(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, 2)
            return file.read(1) == b"\n"
