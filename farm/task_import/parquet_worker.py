"""Read a Parquet file in a process of its own: ``parquet_worker.py FILE MAX_GROUP_BYTES``; a row a line, as JSON.

The file is anybody's and the library that reads it is C++: what brings it down brings down no more than this. Exit
code 3: there is no pyarrow. What else is wrong is the last line, ``{"fault": …}`` in place of ``{"row": …}``.
"""

import json
import math
import resource
import sys
from typing import Any

NO_PYARROW = 3
MEMORY_BYTES = 16 << 30
_BATCH = 16


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
                for batch in file.iter_batches(batch_size=_BATCH, row_groups=[group]):
                    for row in batch.to_pylist():
                        say({"row": _plain(row)})
    except (
        pyarrow.ArrowException,
        OSError,
        ValueError,
        TypeError,
        MemoryError,
        RecursionError,
        OverflowError,
    ) as error:
        say({"fault": " ".join(str(error).split())[:200]})
    return 0


def say(document: Any) -> None:
    sys.stdout.write(json.dumps(document) + "\n")


def _plain(value: Any) -> Any:
    """As JSON has it: a time is text, and so is what JSON does not know."""
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
