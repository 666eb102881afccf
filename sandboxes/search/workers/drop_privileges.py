"""Drop the privileges of a process before it reads hostile text: root, network, new programs, other files."""

import ctypes
import logging
import os
import signal
from typing import Any

NOBODY = 65534
_CLONE_NEWNET, _CLONE_NEWIPC = 0x40000000, 0x08000000
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_CALLS = """
    brk clock_gettime close exit exit_group fstat futex getpid getrandom gettid gettimeofday lseek madvise mmap mprotect
    mremap munmap read restart_syscall rt_sigaction rt_sigprocmask rt_sigreturn sched_getaffinity sched_yield setitimer
    sigaltstack write
"""
"""Allowed system calls: enough to compute and to use file descriptors that are already open."""

log = logging.getLogger(__name__)


def confine() -> None:
    """Drop all privileges. Import and read everything that is needed before.

    Raises OSError if root privileges cannot be dropped.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    calls = _filter()
    if os.geteuid() == 0:
        if libc.unshare(_CLONE_NEWNET | _CLONE_NEWIPC):
            log.warning(
                "indexing processes stay in the machine's network namespace, without permission to connect: %s",
                os.strerror(ctypes.get_errno()),
            )
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)  # drops all capabilities too
    # The kernel resets the first two when the user changes, so they come after it.
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if calls is not None:
        calls.load()


def _filter() -> Any:
    """Return a seccomp filter; None if libseccomp is missing."""
    try:
        import pyseccomp  # loads the shared library at import
    except (ImportError, OSError, RuntimeError):
        log.warning("indexing processes run without a system call filter: libseccomp2 is missing; install it")
        return None
    kept = pyseccomp.SyscallFilter(pyseccomp.ERRNO(1))
    kept.set_attr(pyseccomp.Attr.CTL_TSYNC, 1)
    for name in _CALLS.split():
        kept.add_rule(pyseccomp.ALLOW, name)
    return kept
