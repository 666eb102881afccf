"""The files of a release-pair task directory. It holds nothing of the package: builds and plain Harbor download it."""

from collections.abc import Iterable, Mapping, Sequence

import tomlkit

from farm.core.change import Change
from farm.task_generation.publish import ShellTemplate
from farm.tasks import BASE_IMAGE
from farm.tasks.schema.manifest import ReleaseTable

WORKSPACE = "/workspace"
FAIL_TO_PASS = "tests/fail_to_pass.txt"
PASS_TO_PASS = "tests/pass_to_pass.txt"


_DOCKERFILE = ShellTemplate("""\
FROM @base
WORKDIR @workspace

RUN python3 -m pip install --quiet --no-cache-dir --break-system-packages --root-user-action ignore \\
    @requirements

# One commit with a fixed author and date, and nothing that a build or a later release would leave behind.
RUN set -eu; \\
    mkdir /tmp/source; \\
    echo '@package==@old --hash=sha256:@old_sha256' > /tmp/source/requirements.txt; \\
    python3 -m pip download --quiet --no-cache-dir --no-deps --no-binary :all: \\
        --dest /tmp/source/sdist --requirement /tmp/source/requirements.txt; \\
    python3 -c 'import glob, shutil; shutil.unpack_archive(glob.glob("/tmp/source/sdist/*")[0], "/tmp/source/tree")'; \\
    cp -R --no-preserve=ownership,timestamps /tmp/source/tree/*/. .; \\
    python3 -m pip install --quiet --no-cache-dir --break-system-packages --root-user-action ignore \\
        --no-deps --use-pep517 --editable .; \\
    rm -rf /tmp/source build dist PKG-INFO; \\
    find . -depth \\( -name '*.egg-info' -o -name __pycache__ -o -name '.*_cache' \\) -exec rm -rf {} +; \\
    git init --quiet --initial-branch main; \\
    git add --all --force; \\
    GIT_AUTHOR_DATE=2000-01-01T00:00:00Z GIT_COMMITTER_DATE=2000-01-01T00:00:00Z \\
        git -c user.name=farm -c user.email=farm@@localhost commit --quiet --message 'The repository as it is'; \\
    rm -rf .git/logs .git/hooks
""")

_FETCH = """\
work=$(mktemp -d)
echo '@package==@new --hash=sha256:@new_sha256' > "$work/requirements.txt"
python3 -m pip download --quiet --no-deps --no-binary :all: --dest "$work/sdist" --requirement "$work/requirements.txt"
python3 -c 'import shutil, sys; shutil.unpack_archive(sys.argv[1], sys.argv[2])' "$work"/sdist/* "$work/tree"
cd "$work"/tree/*
"""

_TEST_SH = ShellTemplate(f"""\
#!/bin/bash
# The verifier where plain Harbor runs this task (it downloads the release that the tests are of).
# The farm reads the two id lists beside this file and judges from a report of its own.
set -uo pipefail
mkdir -p /logs/verifier
echo 0 > /logs/verifier/reward.txt
set -e
{_FETCH}\
find . -type f \\
    \\( -path '*/tests/*' -o -path '*/test/*' -o -name 'test_*.py' -o -name '*_test.py' -o -name conftest.py \\) \\
    -exec cp --parents -t @workspace {{}} +
cd @workspace
cat /tests/fail_to_pass.txt /tests/pass_to_pass.txt | sort > "$work/expected"
cut -d: -f1 "$work/expected" | sort -u | xargs -d '\\n' \\
    python3 -m pytest -q -rp -o addopts= --continue-on-collection-errors > "$work/output" || true
tail -n 1 "$work/output"
sed -n 's/^PASSED //p' "$work/output" | sort > "$work/passed"
[ -z "$(comm -23 "$work/expected" "$work/passed")" ]
echo 1 > /logs/verifier/reward.txt
""")

_SOLVE_SH = ShellTemplate(f"""\
#!/bin/bash
# The known solution where plain Harbor runs this task: the package's own files as the newer release has them.
# The farm works out the same change by itself.
set -euo pipefail
{_FETCH}\
@copies
""")


def dockerfile(release: ReleaseTable, requirements: Sequence[str]) -> str:
    return _DOCKERFILE.substitute(
        release.model_dump(),
        base=BASE_IMAGE,
        workspace=WORKSPACE,
        requirements=" ".join(f"'{requirement}'" for requirement in requirements),
    )


def test_script(package: str, version: str, sha256: str) -> str:
    """Runs the tests of that release."""
    return _TEST_SH.substitute(package=package, new=version, new_sha256=sha256, workspace=WORKSPACE)


def solve_script(release: ReleaseTable, gold: Change) -> str:
    removed = [file.path for file in gold.files if file.kind == "delete"]
    written = [file.path for file in gold.files if file.kind != "delete"]
    copies = [f"rm -f '{WORKSPACE}/{path}'" for path in removed]
    copies += [f"cp --parents -t {WORKSPACE} \\\n    " + " \\\n    ".join(f"'{path}'" for path in written)]
    return _SOLVE_SH.substitute(release.model_dump(), copies="\n".join(copies))


def manifest(release: ReleaseTable, *, difficulty: str, agent_timeout_s: int, verify_timeout_s: int) -> str:
    document = tomlkit.document()
    document["version"] = "1.0"
    document["metadata"] = {
        "difficulty": difficulty,
        "category": "bug-fix",
        "tags": ["python", "release-pair"],
        "farm": {
            "workspace": WORKSPACE,
            "grading": "patch",
            "report": "pytest",
            "fail_to_pass": FAIL_TO_PASS,
            "pass_to_pass": PASS_TO_PASS,
            "source": release.model_dump(),
        },
    }
    document["verifier"] = {"timeout_sec": verify_timeout_s}
    document["agent"] = {"timeout_sec": agent_timeout_s}
    document["environment"] = {"build_timeout_sec": 600, "cpus": 1, "memory_mb": 1024, "storage_mb": 2048}
    return tomlkit.dumps(document)


def id_list(ids: Iterable[str]) -> str:
    return "".join(f"{test}\n" for test in sorted(ids))


def task_files(
    release: ReleaseTable,
    gold: Change,
    *,
    requirements: Sequence[str],
    instruction: str,
    fail_to_pass: Iterable[str],
    pass_to_pass: Iterable[str],
    verify_timeout_s: int = 120,
) -> Mapping[str, str]:
    """Every file of the directory by its path; those that end in ``.sh`` are to be executable."""
    return {
        "task.toml": manifest(release, difficulty="medium", agent_timeout_s=1800, verify_timeout_s=verify_timeout_s),
        "instruction.md": instruction,
        "environment/Dockerfile": dockerfile(release, requirements),
        "tests/test.sh": test_script(release.package, release.new, release.new_sha256),
        FAIL_TO_PASS: id_list(fail_to_pass),
        PASS_TO_PASS: id_list(pass_to_pass),
        "solution/solve.sh": solve_script(release, gold),
    }
