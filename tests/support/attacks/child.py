"""A child process that may use so much of the processor and of memory, and no more."""

import subprocess
import sys

CPU_S = 2
MEMORY_BYTES = 2 << 30
_BEGIN = f"""
import resource


def begin():
    spent = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    limit = int(spent) + 1 + {CPU_S}
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_BYTES}, {MEMORY_BYTES}))


"""


def output_of(program: str, *arguments: str) -> str | None:
    """Return the output of a Python program, which calls ``begin()`` once its imports are done.

    None: it was killed for its use of the processor, or had no memory left.
    """
    command = [sys.executable, "-c", _BEGIN + program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    if done.returncode == 0:
        return done.stdout
    assert done.returncode < 0 or "MemoryError" in done.stderr, done.stderr
    return None
