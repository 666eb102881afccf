"""The directory of a release-pair task. It has no file of the package: builds and plain Harbor download the package."""

from collections.abc import Sequence
from dataclasses import dataclass

from farm.core.change import Change
from farm.task_generation.manifest import TaskLimits, farm_table, render_manifest
from farm.task_generation.task_directory import (
    WORKSPACE,
    ShellTemplate,
    TaskDirectory,
    bundle_files,
    id_lists,
)
from farm.tasks import BASE_IMAGE
from farm.tasks.schema.manifest import ReleaseTable

VERIFY_TIMEOUT_S = 120

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


@dataclass(frozen=True, slots=True)
class PairTests:
    """The part of a release pair that is measured: pinned test requirements, instruction, and the expected test ids."""

    requirements: Sequence[str]
    instruction: str
    fail_to_pass: Sequence[str]
    pass_to_pass: Sequence[str]


def release_pair_directory(release: ReleaseTable, gold: Change, tests: PairTests) -> TaskDirectory:
    """Return the task directory of a release pair whose older release becomes the newer one by ``gold``."""
    script = test_script(release.package, release.new, release.new_sha256)
    return TaskDirectory(
        manifest=_manifest(release),
        instruction=tests.instruction,
        environment=bundle_files({"Dockerfile": _dockerfile(release, tests.requirements)}),
        tests=bundle_files({"test.sh": script, **id_lists(tests.fail_to_pass, tests.pass_to_pass)}),
        solution=bundle_files({"solve.sh": _solve_script(release, gold)}),
    )


def test_script(package: str, version: str, sha256: str) -> str:
    """Return the script that downloads the tests of a release and runs them under plain Harbor."""
    return _TEST_SH.substitute(package=package, new=version, new_sha256=sha256, workspace=WORKSPACE)


def _dockerfile(release: ReleaseTable, requirements: Sequence[str]) -> str:
    return _DOCKERFILE.substitute(
        release.model_dump(),
        base=BASE_IMAGE,
        workspace=WORKSPACE,
        requirements=" ".join(f"'{requirement}'" for requirement in requirements),
    )


def _solve_script(release: ReleaseTable, gold: Change) -> str:
    removed = [file.path for file in gold.files if file.kind == "delete"]
    written = [file.path for file in gold.files if file.kind != "delete"]
    copies = [f"rm -f '{WORKSPACE}/{path}'" for path in removed]
    copies += [f"cp --parents -t {WORKSPACE} \\\n    " + " \\\n    ".join(f"'{path}'" for path in written)]
    return _SOLVE_SH.substitute(release.model_dump(), copies="\n".join(copies))


def _manifest(release: ReleaseTable) -> str:
    metadata = {
        "difficulty": "medium",
        "category": "bug-fix",
        "tags": ["python", "release-pair"],
        "farm": farm_table(WORKSPACE, "pytest", further={"source": release.model_dump()}),
    }
    return render_manifest(metadata, TaskLimits(VERIFY_TIMEOUT_S))
