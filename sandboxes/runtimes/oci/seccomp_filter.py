"""Compile the seccomp profile once for this machine, so that sandbox starts need not."""

import base64
import functools
import tempfile
from typing import Any

from sandboxes.errors import RuntimeUnavailable
from sandboxes.runtimes.seccomp import profile


@functools.cache  # it takes 0.1 s of processor time, and is the same for each runtime that a process opens
def compile_filter() -> str:
    """Return the filter in the format of seccomp(2), as base64. System calls unknown to libseccomp stay forbidden.

    Raises RuntimeUnavailable without libseccomp.
    """
    try:
        import pyseccomp  # it loads the shared library at import
    except (ImportError, RuntimeError, OSError) as error:
        raise RuntimeUnavailable(f"libseccomp cannot be loaded: {error}; install libseccomp2") from None
    machine = pyseccomp.system_arch()
    compare = {"SCMP_CMP_EQ": pyseccomp.EQ, "SCMP_CMP_MASKED_EQ": pyseccomp.MASKED_EQ}

    def condition(argument: dict[str, Any]) -> Any:
        return pyseccomp.Arg(argument["index"], compare[argument["op"]], argument["value"], argument["valueTwo"])

    seccomp_filter = pyseccomp.SyscallFilter(pyseccomp.ERRNO(1))
    seccomp_filter.set_attr(pyseccomp.Attr.CTL_OPTIMIZE, 2)  # a binary tree instead of a list of comparisons
    for rule in profile(own_disk=True)["syscalls"]:
        allowed = rule["action"] == "SCMP_ACT_ALLOW"
        action = pyseccomp.ALLOW if allowed else pyseccomp.ERRNO(rule["errnoRet"])
        for name in rule["names"]:
            number = int(pyseccomp.resolve_syscall(machine, name))
            if number >= 0:
                seccomp_filter.add_rule(action, number, *map(condition, rule.get("args", [])))
    with tempfile.TemporaryFile() as file:
        seccomp_filter.export_bpf(file)
        file.seek(0)
        return base64.b64encode(file.read()).decode()
