"""The seccomp profile compiled for this machine, so that no start has to."""

import base64
import tempfile
from typing import Any

from sandboxes.errors import RuntimeUnavailable
from sandboxes.runtimes.seccomp import profile


def compiled() -> str:
    """The filter as seccomp(2) takes it, in base64. System calls that this machine's libseccomp does not know
    stay forbidden.

    Raises RuntimeUnavailable where there is no libseccomp.
    """
    try:
        import pyseccomp  # looks for the shared library as soon as it is imported
    except (ImportError, RuntimeError, OSError) as error:
        raise RuntimeUnavailable(f"no libseccomp ({error}); install libseccomp2") from None
    compare = {"SCMP_CMP_EQ": pyseccomp.EQ, "SCMP_CMP_MASKED_EQ": pyseccomp.MASKED_EQ}

    def condition(argument: dict[str, Any]) -> Any:
        return pyseccomp.Arg(argument["index"], compare[argument["op"]], argument["value"], argument["valueTwo"])

    described = profile(own_disk=True)
    made = pyseccomp.SyscallFilter(pyseccomp.ERRNO(1))
    made.set_attr(pyseccomp.Attr.CTL_OPTIMIZE, 2)  # a binary tree instead of a list of comparisons
    for rule in described["syscalls"]:
        allowed = rule["action"] == "SCMP_ACT_ALLOW"
        action = pyseccomp.ALLOW if allowed else pyseccomp.ERRNO(rule["errnoRet"])
        for name in rule["names"]:
            if _is_known(pyseccomp, name):
                made.add_rule(action, name, *map(condition, rule.get("args", [])))
    with tempfile.TemporaryFile() as file:
        made.export_bpf(file)
        file.seek(0)
        return base64.b64encode(file.read()).decode()


def _is_known(pyseccomp: Any, name: str) -> bool:
    return int(pyseccomp.resolve_syscall(pyseccomp.system_arch(), name)) >= 0
