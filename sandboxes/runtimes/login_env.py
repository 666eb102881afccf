"""What a login adds to an image's environment: its profile scripts are run once, and shells begin with what they set.

An image's own environment is what its ``ENV`` lines say. People who work in it have more: ``/etc/profile`` and their
``~/.bashrc`` put conda, nvm or cargo on the path. Reading those at each start of a shell would cost from 2 ms to half a
second, so it is done once for an image. What the image or the task sets stays: a login adds variables that are not
set, and directories to the path.
"""

import logging
import re
from collections.abc import Mapping

from sandboxes.interface import MIB, Sandbox

TIMEOUT_S = 10.0
LONGEST = 128 * 1024
"""Bytes of all that a login adds: a quarter of what a program may be given."""
MOST = 1000
"""Variables; the tool server takes some more."""
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PLAIN: Mapping[str, str] = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat"}
"""For programs that ask: nobody turns pages, and nothing moves the cursor."""

_SHELL_OWN = "_ PWD OLDPWD SHLVL PS1 PS2 PS4 PROMPT_COMMAND TMOUT COLUMNS LINES PATH ENV POSIXLY_CORRECT"
_NAME = re.compile(r"(?!HIST|BASH)[A-Za-z_][A-Za-z0-9_]*")
_SCRIPT = r"""
exec 3>&1 >/dev/null 2>&1
unset HISTFILE
busybox=/.farm/bin/busybox
"$busybox" cat /proc/self/environ >&3
"$busybox" printf '\0' >&3
for shell in /bin/bash /usr/bin/bash /bin/sh /.farm/bin/bash; do
    [ -x "$shell" ] && { export SHELL=$shell; break; }
done
if [ -z "$LC_ALL$LC_CTYPE$LANG" ]; then
    if ! type -P locale || [ "$(LC_ALL=C.UTF-8 locale charmap 2>&1)" = UTF-8 ]; then export LANG=C.UTF-8; fi
fi
[ -r /etc/profile ] && . /etc/profile
profile=
for file in ~/.bash_profile ~/.bash_login ~/.profile; do
    [ -r "$file" ] && { profile=$(<"$file"); . "$file"; break; }
done
case $profile in *bashrc*) ;; *) [ -r ~/.bashrc ] && . ~/.bashrc ;; esac
"$busybox" cat /proc/self/environ >&3
"""

log = logging.getLogger(__name__)


async def environment(sandbox: Sandbox) -> dict[str, str]:
    """What shells in ``sandbox`` are to find beside its environment. Raises SandboxGone, and nothing else."""
    argv = ["/.farm/bin/bash", "--noprofile", "--norc", "-i", "-c", _SCRIPT]
    outcome = await sandbox.exec(argv, timeout_s=TIMEOUT_S, output_limit=MIB)
    if outcome.timed_out:
        log.warning(
            "the profile scripts of %s take more than %g s: its shells begin without", sandbox.spec.image, TIMEOUT_S
        )
    before, ended, after = outcome.stdout.head.partition(b"\0\0")
    if not ended:
        before, after = before.rstrip(b"\0"), b""
    return added(parse(before), parse(after))


def parse(environ: bytes) -> dict[str, str]:
    """``NAME=value`` and a zero byte, repeated, as the kernel has them."""
    pairs = (entry.decode("utf-8", "surrogateescape").partition("=") for entry in environ.split(b"\0"))
    return {name: value for name, sign, value in pairs if sign}


def added(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """What the environment ``before`` a login gains by it."""
    own = _SHELL_OWN.split()
    gained = {
        name: value
        for name, value in {**PLAIN, **after}.items()
        if name not in before and name not in own and _NAME.fullmatch(name)
    }
    path = joined_path(before.get("PATH", DEFAULT_PATH), after.get("PATH", ""))
    if path != before.get("PATH"):
        gained["PATH"] = path
    if len(gained) > MOST or sum(len(name) + len(value) for name, value in gained.items()) > LONGEST:
        return {name: value for name, value in PLAIN.items() if name not in before}
    return gained


def joined_path(own: str, login: str) -> str:
    """``own`` with the directories that only ``login`` has: before it, or behind it where they came last there.

    Those where every system keeps its programs never come before what an image has put first.
    """
    known, system = own.split(":"), DEFAULT_PATH.split(":")
    asked = list(dict.fromkeys(each for each in login.split(":") if each.startswith("/")))
    last = max((at for at, each in enumerate(asked) if each in known), default=len(asked))
    new = [(at, each) for at, each in enumerate(asked) if each not in known]
    front = [each for at, each in new if at < last and each not in system]
    return ":".join([*front, *known, *(each for _, each in new if each not in front)])
