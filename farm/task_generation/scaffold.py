"""``farm tasks new``: write a small, complete example task for the user to replace."""

from pathlib import Path

from farm.task_generation.task_directory import WORKSPACE, ShellTemplate, TaskDirectory, bundle_files
from farm.tasks import BASE_IMAGE, load_task
from farm.tasks.errors import TaskError
from farm.tasks.loader import checked_name

_MANIFEST = """\
# Harbor's schema 1.x; plain Harbor runs this directory as well. `farm tasks validate .` proves it.
schema_version = "1.0"

[agent]
timeout_sec = 1800.0

[verifier]
timeout_sec = 60.0

[environment]
build_timeout_sec = 600.0
cpus = 1
memory_mb = 1024
storage_mb = 1024

# What Harbor cannot express. Other keys are in the farm's page farm/docs/tasks.md.
[metadata.farm]
workspace = "/workspace"
report = "unittest"  # or pytest, go, cargo, jest, junit, tap
max_turns = 60
# What must be seen passed: these fail now, and the solution mends them …
fail_to_pass = ["tests/test_basket.py::Hidden::test_the_third_of_a_kind_is_free"]
# … and these pass now, and still must.
pass_to_pass = [
    "tests/test_basket.py::Basket::test_empty",
    "tests/test_basket.py::Basket::test_prices_add_up",
]
"""

_INSTRUCTION = """\
`basket.total` takes a list of `(name, price)` pairs and adds the prices up. Make every third item of the same name
free, whatever order the items come in. All else must stay as it is.
"""

_DOCKERFILE = ShellTemplate("""\
FROM @base
WORKDIR @workspace
# The repository as the policy finds it. Whatever else it needs is installed here: sandboxes have no network.
COPY workspace .
# One commit, so that no history holds the answer.
RUN git init --quiet --initial-branch main \\
    && git add --all \\
    && git -c user.name=farm -c user.email=farm@@localhost commit --quiet --message 'The repository as it is' \\
    && rm -rf .git/logs .git/hooks
""")

_CODE = '''\
"""What a basket costs."""


def total(items):
    """The price of a list of (name, price) pairs."""
    return sum(price for _, price in items)
'''

_SOLVED = '''\
"""What a basket costs."""

from collections import Counter


def total(items):
    """The price of a list of (name, price) pairs; every third of a name is free."""
    seen, price_of_all = Counter(), 0
    for name, price in items:
        seen[name] += 1
        price_of_all += 0 if seen[name] % 3 == 0 else price
    return price_of_all
'''

_VISIBLE = """\
import unittest

from basket import total


class Basket(unittest.TestCase):
    def test_empty(self):
        self.assertEqual(total([]), 0)

    def test_prices_add_up(self):
        self.assertEqual(total([("apple", 3), ("pear", 4)]), 7)
"""

_HIDDEN = """\


class Hidden(unittest.TestCase):
    def test_the_third_of_a_kind_is_free(self):
        self.assertEqual(total([("apple", 3), ("pear", 4), ("apple", 3), ("apple", 3)]), 10)
"""

_TEST_SH = ShellTemplate("""\
#!/bin/bash
# The verifier where plain Harbor runs this task; the farm runs the expected tests itself, and reads their report.
mkdir -p /logs/verifier
cp -R /tests/workspace/. @workspace
cd @workspace && python3 -m unittest tests/test_basket.py && echo 1 > /logs/verifier/reward.txt ||
    echo 0 > /logs/verifier/reward.txt
""")

_SOLVE_SH = ShellTemplate("""\
#!/bin/bash
# The known solution, run in the workspace's own sandbox.
set -eu
cat > @workspace/basket.py <<'END'
@{solved}END
""")


def scaffold_task(directory: Path) -> None:
    """Write a small, complete and fit example task for the user to replace with another.

    Raises TaskError if ``directory`` exists or cannot be created, or if its name cannot be a task's.
    """
    target = directory.resolve()
    if target.exists():
        raise TaskError(directory, "exists already", "choose another name, or remove it")
    checked_name(directory, target.name)
    values = {"base": BASE_IMAGE, "workspace": WORKSPACE, "solved": _SOLVED}
    example = TaskDirectory(
        manifest=_MANIFEST,
        instruction=_INSTRUCTION,
        environment=bundle_files(
            {
                "Dockerfile": _DOCKERFILE.substitute(values),
                "workspace/basket.py": _CODE,
                "workspace/tests/test_basket.py": _VISIBLE,
            }
        ),
        tests=bundle_files(
            {"test.sh": _TEST_SH.substitute(values), "workspace/tests/test_basket.py": _VISIBLE + _HIDDEN}
        ),
        solution=bundle_files({"solve.sh": _SOLVE_SH.substitute(values)}),
    )
    try:
        example.publish(target, lambda stage: load_task(stage, state_dir=stage.parent))
    except OSError as error:
        raise TaskError(directory, f"cannot be written ({error})", "choose a place where you may write") from None
