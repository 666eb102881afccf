"""The directory of a mutation task, and the images that its generation builds.

The directory of a release on the package index has no file of the release but the fault, as a patch.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farm.task_generation.manifest import TaskLimits, farm_table, render_manifest
from farm.task_generation.mutation.repository import Repository
from farm.task_generation.release_pair_directory import test_script
from farm.task_generation.task_directory import (
    WORKSPACE,
    ShellTemplate,
    TaskDirectory,
    bundle_files,
    id_lists,
)
from farm.tasks import BASE_IMAGE
from farm.tasks.loader import IN_WORKSPACE

ARCHIVE = "source.archive"
COVERAGE = "coverage==7.17.3"
TOOLS = "/opt/farm-making"
TREE = "/tmp/source/tree"
REPORT = "/requirements.json"
PIP = "python3 -m pip install --quiet --no-cache-dir --break-system-packages --root-user-action ignore"

_FROM = ShellTemplate("""\
FROM @base
WORKDIR @workspace

RUN @pip \\
    @requirements

""")

_FETCH = ShellTemplate("""\
    mkdir /tmp/source; \\
    echo '@package==@version --hash=sha256:@sha256' > /tmp/source/requirements.txt; \\
    python3 -m pip download --quiet --no-cache-dir --no-deps --no-binary :all: \\
        --dest /tmp/source/sdist --requirement /tmp/source/requirements.txt; \\
    archive=$(echo /tmp/source/sdist/*); \\
""")

_SOURCE = ShellTemplate("""\
# The released sources, for every task of this release alike.
@{copy}\
RUN set -eu; \\
@{fetch}\
    python3 -c 'import shutil, sys; shutil.unpack_archive(*sys.argv[1:])' "$archive" /tmp/source/tree@format; \\
    cp -R --no-preserve=ownership,timestamps /tmp/source/tree/*/. .; \\
    @pip \\
        --no-deps --use-pep517 --editable .; \\
    rm -rf /tmp/source build dist PKG-INFO; \\
    find . -depth \\( -name '*.egg-info' -o -name __pycache__ -o -name '.*_cache' \\) -exec rm -rf {} +

""")

_RESOLVE = ShellTemplate("""\
FROM @base
@{copy}\
RUN set -eu; : @now; \\
@{fetch}\
    python3 -c 'import shutil, sys; shutil.unpack_archive(*sys.argv[1:])' "$archive" @tree@format; \\
    @pip \\
        --dry-run --ignore-installed --report @report @tree/* @requirements
""")

_FAULT = ShellTemplate("""\
# The fault. Every file is written anew and has one time, or these would tell which differ; then one commit.
COPY bug.patch /tmp/
RUN set -eu; \\
    git apply --whitespace=nowarn /tmp/bug.patch; \\
    cp -R --no-preserve=ownership,timestamps . /tmp/tree; \\
    find . -mindepth 1 -delete; \\
    cp -R /tmp/tree/. .; \\
    rm -rf /tmp/tree /tmp/bug.patch; \\
    find . -exec touch --no-dereference --date 2000-01-01T00:00:00Z {} +; \\
    git init --quiet --initial-branch main; \\
    git add --all --force; \\
    GIT_AUTHOR_DATE=2000-01-01T00:00:00Z GIT_COMMITTER_DATE=2000-01-01T00:00:00Z \\
        git -c user.name=farm -c user.email=farm@@localhost commit --quiet --message 'The repository as it is'; \\
    rm -rf .git/logs .git/hooks
""")

_SOLVE_SH = f"""\
#!/bin/bash
# The known solution where plain Harbor runs this task: the fault is taken back.
set -euo pipefail
cd {WORKSPACE}
git apply --whitespace=nowarn --reverse /solution/bug.patch
"""

_LOCAL_TEST_SH = f"""\
#!/bin/bash
# The verifier where plain Harbor runs this task.
# The farm reads the two id lists beside this file and judges from a report of its own.
set -uo pipefail
mkdir -p /logs/verifier
echo 0 > /logs/verifier/reward.txt
set -e
cp -R /tests/{IN_WORKSPACE}. {WORKSPACE}
cd {WORKSPACE}
work=$(mktemp -d)
cat /tests/fail_to_pass.txt /tests/pass_to_pass.txt | sort > "$work/expected"
cut -d: -f1 "$work/expected" | sort -u | xargs -d '\\n' \\
    python3 -m pytest -q -rp -o addopts= --continue-on-collection-errors > "$work/output" || true
sed -n 's/^PASSED //p' "$work/output" | sort > "$work/passed"
[ -z "$(comm -23 "$work/expected" "$work/passed")" ]
echo 1 > /logs/verifier/reward.txt
"""


@dataclass(frozen=True, slots=True)
class TaskDraft:
    """The content of one task.

    ``patch`` turns the released repository into the faulty one. ``changed`` are the package's own files in ``patch``.
    """

    name: str
    strategy: str
    labels: tuple[str, ...]
    difficulty: str
    instruction: str
    patch: str
    changed: tuple[str, ...]
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    verify_timeout_s: int


def mutation_directory(repository: Repository, draft: TaskDraft) -> TaskDirectory:
    """Return the task directory of a draft. For a repository off the index it holds the archive and the tests too."""
    tests: dict[str, str | bytes] = {**id_lists(draft.fail_to_pass, draft.pass_to_pass)}
    if repository.archive is None:
        tests["test.sh"] = test_script(repository.package, repository.version, repository.sha256)
    else:
        tests["test.sh"] = _LOCAL_TEST_SH
        tests |= {f"{IN_WORKSPACE}{path}": file.content for path, file in repository.tests.items()}
    dockerfile = _source_dockerfile(repository) + _FAULT.substitute()
    return TaskDirectory(
        manifest=_manifest(repository, draft),
        instruction=draft.instruction,
        environment=bundle_files({"Dockerfile": dockerfile, "bug.patch": draft.patch, **_archive(repository)}),
        tests=bundle_files(tests),
        solution=bundle_files({"bug.patch": draft.patch, "solve.sh": _SOLVE_SH}),
    )


def baseline_environment(repository: Repository) -> Mapping[str, bytes]:
    """Return the build context of the image in which trials run: the released sources and coverage, apart from them."""
    tools = f"RUN python3 -m pip install --quiet --no-cache-dir --root-user-action ignore --target {TOOLS} {COVERAGE}\n"
    return {"Dockerfile": (_source_dockerfile(repository) + tools).encode(), **_archive(repository)}


def resolving_environment(repository: Repository, requirements: Sequence[str], nonce: str) -> Mapping[str, bytes]:
    """Return the build context of an image whose build resolves ``requirements`` and those of the repository.

    The build leaves pip's report at REPORT. ``nonce`` is unique, so that no cached layer answers with old releases.
    """
    dockerfile = _RESOLVE.substitute(
        base=BASE_IMAGE,
        pip=PIP,
        now=nonce,
        tree=TREE,
        report=REPORT,
        requirements=" ".join(map(shlex.quote, requirements)),
        **_origin(repository),
    )
    return {"Dockerfile": dockerfile.encode(), **_archive(repository)}


def _source_dockerfile(repository: Repository) -> str:
    """Return the layers that all tasks of a release share."""
    requirements = " ".join(f"'{requirement}'" for requirement in repository.requirements)
    return _FROM.substitute(
        base=BASE_IMAGE, workspace=WORKSPACE, pip=PIP, requirements=requirements
    ) + _SOURCE.substitute(pip=PIP, **_origin(repository))


def _origin(repository: Repository) -> Mapping[str, str]:
    """Return the template values that bring the sources into an image: a copied archive, or a download."""
    if repository.archive is not None:
        copy = f"COPY {ARCHIVE} /tmp/source/\n"
        return {"copy": copy, "fetch": f"    archive=/tmp/source/{ARCHIVE}; \\\n", "format": " gztar"}
    fetch = _FETCH.substitute(package=repository.package, version=repository.version, sha256=repository.sha256)
    return {"copy": "", "fetch": fetch, "format": ""}


def _archive(repository: Repository) -> Mapping[str, bytes]:
    return {} if repository.archive is None else {ARCHIVE: repository.archive}


def _manifest(repository: Repository, draft: TaskDraft) -> str:
    original: dict[str, object] = {}
    if repository.archive is None:
        original["original"] = {
            "package": repository.package,
            "version": repository.version,
            "sha256": repository.sha256,
            "changed": sorted(draft.changed),
        }
    metadata = {
        "difficulty": draft.difficulty,
        "category": "bug-fix" if draft.strategy == "mutate" else "feature",
        "tags": ["python", draft.strategy, *draft.labels],
        "farm": farm_table(WORKSPACE, "pytest", further=original),
    }
    return render_manifest(metadata, TaskLimits(draft.verify_timeout_s))
