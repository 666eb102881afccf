"""Convert a Parquet file to JSON lines in a process of its own: ``parquet_worker.py FILE MAX_GROUP_BYTES``.

The file is untrusted and its reader is C++, so a crash must end this process alone. Each row is a line ``{"row": …}``;
a fault is the last line, ``{"fault": …}``. Exit code 3: pyarrow is not installed.
"""

import json
import math
import resource
import sys
from typing import Any

NO_PYARROW = 3
MEMORY_BYTES = 16 << 30
_BATCH_ROWS = 16


def main(path: str, max_group_bytes: int) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return NO_PYARROW
    pyarrow.set_cpu_count(1)
    try:
        with parquet.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                size = file.metadata.row_group(group).total_byte_size
                if not 0 <= size <= max_group_bytes:
                    raise ValueError(f"a row group of {size} bytes")
                for batch in file.iter_batches(batch_size=_BATCH_ROWS, row_groups=[group]):
                    for row in batch.to_pylist():
                        write_line({"row": _plain(row)})
    except (
        pyarrow.ArrowException,
        OSError,
        ValueError,
        TypeError,
        MemoryError,
        RecursionError,
        OverflowError,
    ) as error:
        write_line({"fault": " ".join(str(error).split())[:200]})
    return 0


def write_line(document: Any) -> None:
    sys.stdout.write(json.dumps(document) + "\n")


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold: times and unknown types become text, NaN and infinity null."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
