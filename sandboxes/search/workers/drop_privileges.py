"""What a process gives up for good before it reads hostile text: root, the network, new programs, other files."""

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
"""Enough to compute, and to speak through what is open already."""

log = logging.getLogger(__name__)


def confine() -> None:
    """Whatever has to be imported or read must have been. Raises OSError where a root cannot be let go of."""
    libc = ctypes.CDLL(None, use_errno=True)
    calls = _filter()
    if os.geteuid() == 0:
        if libc.unshare(_CLONE_NEWNET | _CLONE_NEWIPC):
            log.warning("indexing keeps the machine's network, but may not speak: %s", os.strerror(ctypes.get_errno()))
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)  # and so without any capability
    # Both are forgotten where the user changes, so they come after it.
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if calls is not None:
        calls.load()


def _filter() -> Any:
    """Of system calls; None where there is no libseccomp."""
    try:
        import pyseccomp  # looks for the shared library as soon as it is imported
    except (ImportError, OSError, RuntimeError):
        log.warning("indexing may make any system call: libseccomp2 is missing")
        return None
    kept = pyseccomp.SyscallFilter(pyseccomp.ERRNO(1))
    kept.set_attr(pyseccomp.Attr.CTL_TSYNC, 1)
    for name in _CALLS.split():
        kept.add_rule(pyseccomp.ALLOW, name)
    return kept
