"""What an OCI runtime that is loaded once leaves behind at a fork, tried on a small program in its place."""

import subprocess
from pathlib import Path

import pytest

from sandboxes.toolserver import toolbox
from tests.support.services import needs_root, require_program

STARTER = Path(toolbox.__file__).parents[1] / "starter"

PROGRAM = r"""
#include <error.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "fork_trim.h"

int named(void);

int main(int argc, char **argv)
{
    char line[1024];
    trim_forks();
    fflush(stdout);
    if (!fork()) {
        exit_without_destructors();
        FILE *maps = fopen("/proc/self/maps", "r");
        while (fgets(line, sizeof line, maps))
            if (strstr(line, "libunnamed") || strstr(line, "libnamed"))
                fputs(strstr(line, "lib"), stdout);
        if (argc > 1)
            error(4, 0, "the C library's own way");
        exit(getpwuid(0) ? named() : 5);
    }
    int raw;
    wait(&raw);
    return WIFSIGNALED(raw) ? 100 + WTERMSIG(raw) : WEXITSTATUS(raw);
}
"""
NAMED = "int unnamed(void); int named(void) { return 3; } int calls(void) { return unnamed(); }"
UNNAMED = "__attribute__((destructor)) static void last(void) { } int unnamed(void) { return 1; }"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Linked to a library that is linked to another."""
    place = tmp_path_factory.mktemp("fork_trim")
    for name, text in (("program", PROGRAM), ("named", NAMED), ("unnamed", UNNAMED)):
        (place / f"{name}.c").write_text(text)
    command = [require_program("gcc"), "-D_GNU_SOURCE", f"-I{STARTER}", f"-L{place}", f"-Wl,-rpath,{place}"]
    shared = [*command, "-shared", "-fPIC", "-Wl,--no-as-needed"]
    subprocess.run([*shared, "-o", place / "libunnamed.so", place / "unnamed.c"], check=True)
    subprocess.run([*shared, "-o", place / "libnamed.so", place / "named.c", "-lunnamed"], check=True)
    sources = [place / "program.c", STARTER / "fork_trim.c"]
    subprocess.run([*command, "-o", place / "program", *sources, "-lnamed"], check=True)
    return place / "program"


def test_fork_has_only_directly_linked_libraries(program: Path) -> None:
    done = subprocess.run([program], capture_output=True, text=True)
    assert set(done.stdout.split()) == {"libnamed.so"}
    assert done.returncode == 3


def test_error_exit_runs_no_destructors(program: Path) -> None:
    done = subprocess.run([program, "error"], capture_output=True, text=True)
    assert "the C library's own way" in done.stderr
    assert done.returncode == 4


@needs_root
@pytest.mark.parametrize("sources", ["compat", "db files", "files"])
def test_user_lookup_works_in_fork(program: Path, tmp_path: Path, sources: str) -> None:
    settings = tmp_path / "nsswitch.conf"
    settings.write_text(f"passwd: {sources}\n")
    script = 'mount --bind "$1" /etc/nsswitch.conf && exec "$2"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(settings), str(program)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
