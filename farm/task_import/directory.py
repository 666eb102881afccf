"""The directory of an imported task, which plain Harbor runs too. The same row always gives the same bytes."""

from collections.abc import Sequence
from shlex import quote

from farm.task_generation.manifest import TaskLimits, farm_table, render_manifest
from farm.task_generation.task_directory import (
    ShellTemplate,
    TaskDirectory,
    bundle_files,
    id_lists,
)
from farm.task_import.draft import ImportDraft
from farm.tasks.loader import IN_WORKSPACE
from farm.tasks.unified_diff import parse_patch

TEST_PATCH = "test.patch"
_LIMITS = TaskLimits(
    verify_timeout_s=1800, agent_timeout_s=3600, build_timeout_s=1800, cpus=2, memory_mib=4096, storage_mib=10_240
)
_JUDGED_REPORTS = ("pytest", "junit")
"""Reports that ``judge.py``, the verifier under plain Harbor, can read."""

_DOCKERFILE = ShellTemplate("""\
# The project's own image, without the history and the files that hold the answer or the tests.
FROM @image
USER root
WORKDIR @workspace
RUN --mount=type=bind,target=/tmp/farm-build sh /tmp/farm-build/prepare.sh @arguments
""")

_PREPARE = """\
#!/bin/sh
# prepare.sh WORKSPACE COMMIT [REMOVED...]: the repository at COMMIT (where one is named) with the task's bug in it, and
# of its history one commit with a fixed author and date.
set -eu
here=$(dirname "$0")
cd "$1"
commit=$2
shift 2
for path in "$@"; do rm -rf -- "$path"; done
export GIT_CONFIG_GLOBAL=/tmp/farm-gitconfig GIT_CONFIG_NOSYSTEM=1
if command -v git > /dev/null && [ -d .git ]; then
    git config --global --add safe.directory '*'
    if [ -n "$commit" ] && [ "$(git rev-parse HEAD)" != "$(git rev-parse "$commit^{commit}")" ]; then
        git checkout --quiet --force "$commit"
    fi
elif [ -n "$commit" ]; then
    echo "there is no repository in $(pwd) to check $commit out" >&2
    exit 1
fi
if [ -e "$here/bug.patch" ]; then
    git apply --whitespace=nowarn "$here/bug.patch" || \\
        patch --batch --no-backup-if-mismatch --fuzz=5 -p1 -i "$here/bug.patch"
fi
# Bytecode may be of other code than what is here now, and caches may tell of it.
find . -name .venv -prune -o \\
    \\( -name __pycache__ -o -name .pytest_cache -o -name .mypy_cache -o -name .ruff_cache \\) -prune -exec rm -rf {} +
if [ -e "$here/bug.patch" ]; then
    # Times would tell which files have the bug in them, and so would the layer that they are in, and their numbers
    # there: every file is written anew, in the order of their names.
    mkdir /tmp/farm-tree
    find . -mindepth 1 -maxdepth 1 ! -name .git -exec cp -a {} /tmp/farm-tree/ \\;
    find . -mindepth 1 -maxdepth 1 ! -name .git -exec rm -rf {} +
    for path in /tmp/farm-tree/.[!.]* /tmp/farm-tree/..?* /tmp/farm-tree/*; do
        if [ -e "$path" ] || [ -L "$path" ]; then cp -a "$path" .; fi
    done
    rm -rf /tmp/farm-tree
    find . -mindepth 1 -path ./.git -prune -o -exec touch -h -t 200001010000 {} +
fi
if command -v git > /dev/null && [ -d .git ]; then
    git add --update
    export GIT_AUTHOR_NAME=farm GIT_AUTHOR_EMAIL=farm@localhost GIT_AUTHOR_DATE=2000-01-01T00:00:00Z
    export GIT_COMMITTER_NAME=farm GIT_COMMITTER_EMAIL=farm@localhost GIT_COMMITTER_DATE=2000-01-01T00:00:00Z
    only=$(echo 'The repository as it is' | git commit-tree "$(git write-tree)")
    git update-ref refs/heads/farm-only "$only"
    rm -rf /tmp/farm-only
    git clone --quiet --bare --no-local --no-tags --single-branch --branch farm-only . /tmp/farm-only
    find . -mindepth 2 -name .git -prune -exec rm -rf {} +
    rm -rf .git
    mv /tmp/farm-only .git
    git config core.bare false
    git config --remove-section remote.origin || true
    git branch --quiet --move main
    git reset --quiet
    rm -rf .git/logs .git/hooks .git/packed-refs.lock
fi
rm -f /tmp/farm-gitconfig
"""

_SOLVE = ShellTemplate("""\
#!/bin/bash
# The known solution.
set -euo pipefail
cd @workspace
patch=$(dirname "$0")/solution.patch
git apply --whitespace=nowarn@reverse "$patch" || \\
    patch --batch --no-backup-if-mismatch --fuzz=5@reverse -p1 -i "$patch"
""")

_TEST_SH = ShellTemplate("""\
#!/bin/bash
# The verifier where plain Harbor runs this task. The farm puts the tests in and judges by itself.
set -uo pipefail
mkdir -p /logs/verifier
echo 0 > /logs/verifier/reward.txt
cd @workspace || exit 1
@put
( @command )
python3 /tests/judge.py /logs/verifier/report.xml @report && echo 1 > /logs/verifier/reward.txt
""")

_APPLY_TEST_PATCH = """\
git apply --whitespace=nowarn /tests/test.patch || \\
    patch --batch --no-backup-if-mismatch --fuzz=5 -p1 -i /tests/test.patch || exit 1"""

_NO_JUDGE = ShellTemplate("""\
#!/bin/bash
# The farm judges this task from a report (@report); plain Harbor has no reader for it.
echo 'this task is judged by the farm, from a report of the kind @report' >&2
exit 1
""")

_JUDGE = '''\
"""Exit code 0 if every expected test was seen passed in a JUnit report: judge.py FILE pytest|junit."""

import os
import sys
import xml.etree.ElementTree as ElementTree

here = os.path.dirname(os.path.abspath(__file__))
expected = set()
for name in ("fail_to_pass.txt", "pass_to_pass.txt"):
    with open(os.path.join(here, name), encoding="utf-8") as file:
        expected.update(line for line in file.read().split("\\n") if line)


def reported(test):
    """As the report has it: what is before the last two colons with dots in place of all other marks."""
    if sys.argv[2] == "junit":
        return test
    path, bracket, parameters = test.partition("[")
    names = path.split("::")
    names[0] = names[0][: -len(".py")].replace("/", ".")
    return ".".join(names[:-1]) + "::" + names[-1] + bracket + parameters


passed, failed = set(), set()
for case in ElementTree.parse(sys.argv[1]).iter("testcase"):
    bad = any(child.tag in ("failure", "error", "skipped") for child in case)
    (failed if bad else passed).add(case.get("classname", "") + "::" + case.get("name", ""))
missing = sorted(test for test in expected if reported(test) not in passed - failed)
for test in missing[:20]:
    print("not seen passed:", test)
sys.exit(1 if missing else 0)
'''


def import_directory(draft: ImportDraft) -> TaskDirectory:
    """Return the task directory of a draft."""
    environment: dict[str, str | bytes] = {"Dockerfile": _dockerfile(draft), "prepare.sh": _PREPARE}
    if draft.bug:
        environment["bug.patch"] = draft.bug
    tests: dict[str, str | bytes] = {
        **id_lists(draft.fail_to_pass, draft.pass_to_pass),
        "test.sh": _test_sh(draft),
        **{f"{IN_WORKSPACE}{path}": content for path, content in draft.tests.items()},
    }
    if draft.command.report in _JUDGED_REPORTS:
        tests["judge.py"] = _JUDGE
    if draft.test_patch:
        tests[TEST_PATCH] = draft.test_patch
    reverse = " --reverse" if draft.reverse_solution else ""
    solve = _SOLVE.substitute(workspace=quote(draft.workspace), reverse=reverse)
    return TaskDirectory(
        manifest=_manifest(draft),
        instruction=_instruction(draft),
        environment=bundle_files(environment),
        tests=bundle_files(tests),
        solution=bundle_files({"solve.sh": solve, "solution.patch": draft.solution}),
    )


def _manifest(draft: ImportDraft) -> str:
    test_patch = {"test_patch": f"tests/{TEST_PATCH}"} if draft.test_patch else {}
    farm = farm_table(draft.workspace, draft.command.report, test_command=draft.command.line, further=test_patch)
    metadata = {key: value for key, value in sorted(draft.facts.items()) if value} | {"farm": farm}
    return render_manifest(metadata, _LIMITS, name=draft.id)


def _instruction(draft: ImportDraft) -> str:
    text = draft.instruction.replace("\r\n", "\n").strip()
    return (
        f"{text}\n\nThe repository is in {draft.workspace}. Change its code so that this is resolved; tests decide.\n"
    )


def _dockerfile(draft: ImportDraft) -> str:
    arguments = [draft.workspace, draft.commit, *draft.removed]
    return _DOCKERFILE.substitute(
        image=draft.image, workspace=draft.workspace, arguments=" ".join(map(quote, arguments))
    )


def _test_sh(draft: ImportDraft) -> str:
    if draft.command.report not in _JUDGED_REPORTS:
        return _NO_JUDGE.substitute(report=draft.command.report)
    place_tests = []
    if draft.test_patch:
        changed = [patch.old for patch in parse_patch(draft.test_patch) if patch.old is not None]
        restore = f"git checkout --quiet HEAD -- {_quoted(changed)}\n" if changed else ""
        place_tests.append(restore + _APPLY_TEST_PATCH)
    if draft.tests:
        place_tests.append(f"cp -R /tests/{IN_WORKSPACE}. .")
    files = sorted({test.partition("::")[0] for test in (*draft.fail_to_pass, *draft.pass_to_pass)})
    command = draft.command.line.replace("{files}", _quoted(files)).replace("{report}", "/logs/verifier/report.xml")
    return _TEST_SH.substitute(
        workspace=quote(draft.workspace), put="\n".join(place_tests), command=command, report=draft.command.report
    )


def _quoted(paths: Sequence[str]) -> str:
    return " ".join(map(quote, paths))
