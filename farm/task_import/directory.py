"""The files of an imported task's directory, which plain Harbor runs too; the same for the same row."""

from collections.abc import Mapping, Sequence
from shlex import quote

import tomlkit

from farm.task_generation.publish import ShellTemplate
from farm.task_generation.release_pair_directory import FAIL_TO_PASS, PASS_TO_PASS, id_list
from farm.task_import.draft import ImportDraft
from farm.tasks.loader import IN_WORKSPACE
from farm.tasks.unified_diff import parse_patch

TEST_PATCH = "tests/test.patch"
SOLUTION = "solution/solution.patch"
BUG = "environment/bug.patch"
_JUDGED = ("pytest", "junit")
"""Reports that plain Harbor's verifier reads."""

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

_PUT_PATCH = ShellTemplate("""\
git checkout --quiet HEAD -- @changed
git apply --whitespace=nowarn /tests/test.patch || \\
    patch --batch --no-backup-if-mismatch --fuzz=5 -p1 -i /tests/test.patch || exit 1""")

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


def task_files(draft: ImportDraft) -> Mapping[str, bytes]:
    """Every file by its path in the directory; those that end in ``.sh`` are to be executable."""
    texts = {
        "task.toml": _manifest(draft),
        "instruction.md": _instruction(draft),
        "environment/Dockerfile": _dockerfile(draft),
        "environment/prepare.sh": _PREPARE,
        "solution/solve.sh": _SOLVE.substitute(
            workspace=quote(draft.workspace), reverse=" --reverse" if draft.reverse_solution else ""
        ),
        FAIL_TO_PASS: id_list(draft.fail_to_pass),
        PASS_TO_PASS: id_list(draft.pass_to_pass),
        "tests/test.sh": _test_sh(draft),
    }
    if draft.command.report in _JUDGED:
        texts["tests/judge.py"] = _JUDGE
    files = {name: text.encode() for name, text in texts.items()}
    files[SOLUTION] = draft.solution
    files |= {f"tests/{IN_WORKSPACE}{path}": content for path, content in draft.tests.items()}
    if draft.test_patch:
        files[TEST_PATCH] = draft.test_patch
    if draft.bug:
        files[BUG] = draft.bug
    return files


def _manifest(draft: ImportDraft) -> str:
    farm = {
        "workspace": draft.workspace,
        "grading": "patch",
        "report": draft.command.report,
        "test_command": draft.command.line,
        "fail_to_pass": FAIL_TO_PASS,
        "pass_to_pass": PASS_TO_PASS,
    }
    if draft.test_patch:
        farm["test_patch"] = TEST_PATCH
    document = tomlkit.document()
    document["version"] = "1.0"
    document["task"] = {"name": draft.id}
    document["metadata"] = {key: value for key, value in sorted(draft.facts.items()) if value} | {"farm": farm}
    document["verifier"] = {"timeout_sec": 1800}
    document["agent"] = {"timeout_sec": 3600}
    document["environment"] = {"build_timeout_sec": 1800, "cpus": 2, "memory_mb": 4096, "storage_mb": 10_240}
    return tomlkit.dumps(document)


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
    if draft.command.report not in _JUDGED:
        return _NO_JUDGE.substitute(report=draft.command.report)
    put = []
    if draft.test_patch:
        changed = [patch.old for patch in parse_patch(draft.test_patch) if patch.old is not None]
        put.append(_PUT_PATCH.substitute(changed=_words(changed)) if changed else _PUT_PATCH.template.split("\n", 1)[1])
    if draft.tests:
        put.append(f"cp -R /tests/{IN_WORKSPACE}. .")
    files = sorted({test.partition("::")[0] for test in (*draft.fail_to_pass, *draft.pass_to_pass)})
    command = draft.command.line.replace("{files}", _words(files)).replace("{report}", "/logs/verifier/report.xml")
    return _TEST_SH.substitute(
        workspace=quote(draft.workspace), put="\n".join(put), command=command, report=draft.command.report
    )


def _words(paths: Sequence[str]) -> str:
    return " ".join(map(quote, paths))
