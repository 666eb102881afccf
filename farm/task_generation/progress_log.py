"""``ProgressLog``: results on disk, so that a stopped command can continue."""

import json
from pathlib import Path
from typing import Any


class ProgressLog:
    """JSON values by key in a file that is only appended to. A line that was half written is ignored."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._values: dict[str, Any] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        for line in path.read_bytes().splitlines() if path.is_file() else ():
            try:
                key, value = json.loads(line)
            except (ValueError, TypeError):
                continue
            self._values[key] = value

    def get(self, key: str) -> Any:
        """Return the value, or None if there is none."""
        return self._values.get(key)

    def put(self, key: str, value: Any) -> None:
        """Store a value at once."""
        self._values[key] = value
        with self._path.open("a") as file:
            file.write("\n" * bool(file.tell() and not self._ends_with_newline()) + json.dumps([key, value]) + "\n")

    def _ends_with_newline(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, 2)
            return file.read(1) == b"\n"
