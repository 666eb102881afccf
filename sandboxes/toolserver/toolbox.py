"""Build the toolbox: the directory that is mounted read-only at ``/.farm`` in every sandbox, so that any image works.

bin/toolserver   the init process
bin/bash         the shell of the sessions
bin/busybox      for images without programs
bin/rg, lib/     ripgrep with its own loader and libraries

Beside it, outside of sandboxes, is the starter, which starts sandboxes on this machine.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sandboxes.errors import RuntimeUnavailable
from sandboxes.ownership.scratch_dirs import scratch

SOURCES = Path(__file__).with_name("src")
STARTER_SOURCES = Path(__file__).parents[1] / "starter"
INSIDE = "inside"
PACKAGES = {
    "make": "make",
    "musl-gcc": "musl-tools",
    "gcc": "gcc libc6-dev",
    "bash-static": "bash-static",
    "busybox": "busybox-static",
    "rg": "ripgrep",
}
"""Programs that are part of a toolbox or needed to build it, and their Debian packages."""


@dataclass(frozen=True, slots=True)
class Toolbox:
    """A built toolbox. ``path``: the directory to mount at ``/.farm``."""

    path: Path

    @property
    def empty_layer(self) -> Path:
        """An empty directory, because an overlay without an upper layer needs at least two layers."""
        return self.path.with_name("below")

    @property
    def starter(self) -> Path:
        """The program of ``sandboxes/starter/starter.c``."""
        return self.path.with_name("starter")

    @property
    def starter_library(self) -> Path:
        """The starter as a library that is loaded into an OCI runtime."""
        return self.path.with_name("starter.so")


@dataclass(frozen=True, slots=True)
class _Parts:
    """Files of this machine that are copied into a toolbox, by their names in it."""

    files: dict[str, Path]

    def digest(self) -> str:
        digest = hashlib.sha256()
        sources = {
            f"{directory.name}/{path.name}": path
            for directory in (SOURCES, STARTER_SOURCES)
            for path in directory.iterdir()
            if path.is_file()
        }
        for name, path in sorted({**sources, **self.files}.items()):
            digest.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()[:32]


def ensure_toolbox(state_dir: Path) -> Toolbox:
    """Return the toolbox in ``state_dir/toolbox``, named by the digest of its parts. Build it if it does not exist.

    A build blocks for some seconds. Raises RuntimeUnavailable if a package is missing or the build fails.
    """
    programs = _find_programs()
    parts = _find_parts(programs)
    path = state_dir / "toolbox" / parts.digest()
    if path.is_dir():
        return Toolbox(path / INSIDE)
    path.parent.mkdir(parents=True, exist_ok=True)
    with scratch(path.parent) as target:
        building = target / "toolbox"
        _build(building, parts, programs)
        try:
            building.rename(path)
        except OSError:
            if not path.is_dir():  # it exists if another process has built the same toolbox
                raise
    return Toolbox(path / INSIDE)


def _find_programs() -> dict[str, Path]:
    found = {name: shutil.which(name) for name in PACKAGES}
    missing = [PACKAGES[name] for name, path in found.items() if path is None]
    busybox = found["busybox"]
    if busybox is not None and _libraries(Path(busybox)) is not None:
        missing.append(PACKAGES["busybox"])
    if missing:
        raise RuntimeUnavailable(f"the toolbox cannot be built; as root: apt-get install {' '.join(missing)}")
    return {name: Path(path).resolve() for name, path in found.items() if path is not None}


def _find_parts(programs: dict[str, Path]) -> _Parts:
    files = {"bin/bash": programs["bash-static"], "bin/busybox": programs["busybox"]}
    libraries = _libraries(programs["rg"])
    if libraries is None:
        files["bin/rg"] = programs["rg"]
    else:
        files["lib/rg"] = programs["rg"]
        files |= {f"lib/{name}": path for name, path in libraries.items()}
    return _Parts(files)


def _libraries(program: Path) -> dict[str, Path] | None:
    """Return a program's shared libraries by name, its loader as ``ld.so``. None for a static program."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, env={"LC_ALL": "C"}, check=False)
    if listed.returncode != 0 or "statically linked" in listed.stdout:
        return None
    return dict(_parse_libraries(listed.stdout))


def _parse_libraries(listing: str) -> Iterator[tuple[str, Path]]:
    for line in listing.splitlines():
        if found := re.match(r"\s*(\S+) => (/\S+)", line):
            yield found[1], Path(found[2]).resolve()
        elif found := re.match(r"\s*(/\S+)", line):
            yield "ld.so", Path(found[1]).resolve()


def _build(building: Path, parts: _Parts, programs: dict[str, Path]) -> None:
    inside = building / INSIDE
    (inside / "bin").mkdir(parents=True)
    (inside / "lib").mkdir()
    (building / "below").mkdir()
    _compile(STARTER_SOURCES, building, programs)
    _compile(SOURCES, inside / "bin", programs)
    for name, source in parts.files.items():
        shutil.copyfile(source, inside / name)
    for path in (
        building,
        building / "below",
        inside,
        *inside.rglob("*"),
    ):  # readable for all users inside, with any umask here
        os.chmod(path, 0o755)


def _compile(sources: Path, target: Path, programs: dict[str, Path]) -> None:
    with scratch() as output:  # make cannot write to a path with spaces
        make = [str(programs["make"]), "-s", "-C", str(sources), f"DESTDIR={output}"]
        make += [f"CC={programs['musl-gcc']}", f"HOST_CC={programs['gcc']}"]
        compiled = subprocess.run(make, capture_output=True, text=True, check=False)
        if compiled.returncode != 0:
            raise RuntimeUnavailable(f"{sources.name} does not compile: {compiled.stderr.strip()[-2000:]}")
        for binary in output.iterdir():
            shutil.copy(binary, target)


def main(state_dir: str) -> None:
    """Build the toolbox and print its path; called by ``images/toolbox/build.sh``."""
    try:
        print(ensure_toolbox(Path(state_dir)).path)
    except RuntimeUnavailable as error:
        sys.exit(str(error))
