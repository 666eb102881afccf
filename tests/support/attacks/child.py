"""A child process that may use so much of the processor and of memory, and no more."""

import subprocess
import sys

CPU_S = 2.0
MEMORY_BYTES = 2 << 30
_BEGIN = f"""
import resource
import signal


def begin():
    signal.setitimer(signal.ITIMER_PROF, CPU_S)  # at its end SIGPROF kills the process
    resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_BYTES}, {MEMORY_BYTES}))


"""


def output_of(program: str, *arguments: str, cpu_s: float = CPU_S) -> str | None:
    """Return the output of a Python program, which calls ``begin()`` once its imports are done.

    None: it was killed for its use of the processor, or had no memory left.
    """
    command = [sys.executable, "-c", f"CPU_S = {cpu_s}\n{_BEGIN}{program}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    if done.returncode == 0:
        return done.stdout
    assert done.returncode < 0 or "MemoryError" in done.stderr, done.stderr
    return None
