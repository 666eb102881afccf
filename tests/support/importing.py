"""Rows as each data set has them, written for the tests in its schema: a small package with a bug, and its mending."""

import difflib
import json
from collections.abc import Mapping
from typing import Any

from docker.auth import INDEX_NAME

REGISTRY = str(INDEX_NAME)
COMMIT = "9d2d84bb1564e9513287998c56ccf16c01c19008"

BROKEN = "def add(one, other):\n    return one - other\n\n\ndef same(value):\n    return value\n"
MENDED = BROKEN.replace("one - other", "one + other")
OLD_TESTS = "from pair import same\n\n\ndef test_same():\n    assert same(3) == 3\n"
NEW_TESTS = (
    "import pytest\n\nfrom pair import add, same\n\n\ndef test_same():\n    assert same(3) == 3\n\n\n"
    '@pytest.mark.parametrize("wanted", [7])\ndef test_add(wanted):\n    assert add(3, 4) == wanted\n'
)
FAIL = ["tests/test_pair.py::test_add[7]"]
KEEP = ["tests/test_pair.py::test_same"]


def diff(path: str, old: str, new: str) -> str:
    lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), f"a/{path}", f"b/{path}")
    return f"diff --git a/{path} b/{path}\n" + "".join(lines)


GOLD = diff("pair.py", BROKEN, MENDED)
BUG = diff("pair.py", MENDED, BROKEN)
TEST_PATCH = diff("tests/test_pair.py", OLD_TESTS, NEW_TESTS)


def swebench(**changes: Any) -> dict[str, Any]:
    """4.x: the lists are written as JSON, and the command is in tables of the harness."""
    row = {
        "repo": "marshmallow-code/marshmallow",
        "instance_id": "marshmallow-code__marshmallow-1343",
        "base_commit": COMMIT,
        "patch": GOLD,
        "test_patch": TEST_PATCH,
        "problem_statement": "add() subtracts.\r\n\r\nIt should add.",
        "hints_text": "",
        "created_at": "2019-08-10T12:00:00Z",
        "version": "2.20",
        "FAIL_TO_PASS": json.dumps(FAIL),
        "PASS_TO_PASS": json.dumps(KEEP),
        "environment_setup_commit": COMMIT,
    }
    return row | changes


EVAL_SCRIPT = f"""\
#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
export LANG=en_US.UTF-8
git checkout {COMMIT} tests/test_pair.py
git apply -v - <<'EOF_1'
{TEST_PATCH}
EOF_1
: '>>>>> Start Test Output'
pytest -rA -n 2 --tb=no -p no:cacheprovider tests/test_pair.py
SWEBENCH_TEST_EXIT_CODE=$?
: '>>>>> End Test Output'
git checkout {COMMIT} tests/test_pair.py
"""


def swebench5(**changes: Any) -> dict[str, Any]:
    """5.x: the row brings its image and its evaluation script, and the lists are lists."""
    image = f"{REGISTRY}/swebench/sweb.eval.x86_64.marshmallow-code_1776_marshmallow-1343:latest"
    row = {"FAIL_TO_PASS": FAIL, "PASS_TO_PASS": KEEP, "image_name": image, "eval_script": EVAL_SCRIPT}
    return swebench() | row | changes


def swegym(**changes: Any) -> dict[str, Any]:
    row = {"instance_id": "getmoto__moto-5406", "repo": "getmoto/moto", "FAIL_TO_PASS": FAIL, "PASS_TO_PASS": KEEP}
    return swebench() | row | changes


def swesmith(**changes: Any) -> dict[str, Any]:
    """The patch is the bug; there is no test patch, for the repository has the tests."""
    row = {
        "instance_id": "oauthlib__oauthlib.1fd52536.combine_file__09vlzwgc",
        "repo": "swesmith/oauthlib__oauthlib.1fd52536",
        "patch": BUG,
        "FAIL_TO_PASS": FAIL,
        "PASS_TO_PASS": KEEP,
        "created_at": "2025-03-01T00:00:00Z",
        "image_name": "swesmith.x86_64.oauthlib__oauthlib.1fd52536",
        "base_commit": COMMIT,
        "problem_statement": "add() subtracts.",
    }
    return row | changes


def rebench(**changes: Any) -> dict[str, Any]:
    """V2: image, language, interface and ``install_config`` in the row."""
    row = swebench() | {
        "instance_id": "codezonediitj__pydatastructs-177",
        "repo": "codezonediitj/pydatastructs",
        "image_name": f"{REGISTRY}/swerebenchv2/codezonediitj-pydatastructs:177-9d2d84b",
        "language": "python",
        "interface": "",
        "FAIL_TO_PASS": FAIL,
        "PASS_TO_PASS": KEEP,
        "install_config": {
            "base_image_name": "python_base_310",
            "docker_specs": None,
            "install": ["pip install -e ."],
            "log_parser": "parse_log_pytest",
            "test_cmd": "pytest --no-header -rA --tb=line --color=no -p no:cacheprovider -W ignore::DeprecationWarning",
        },
        "meta": {"is_lite": True},
    }
    return row | changes


def r2e(**changes: Any) -> dict[str, Any]:
    """Nested documents are written as JSON; the tests stand in the row, and what they did before and after."""
    path = "r2e_tests/test_1.py"
    lines = {True: "PASSED", False: "FAILED"}

    def log(mended: bool) -> str:
        said = "" if mended else " - assert -1 == 7"
        return (
            "============ short test summary info ============\n"
            f"PASSED {path}::test_same\n\x1b[32m{lines[mended]}\x1b[0m {path}::\x1b[1mtest_add[7]\x1b[0m{said}\n"
            f"FAILED {path}::TestOdd::test_never - boom\n====== 3 in 0.1s ======\n"
        )

    codes = NEW_TESTS + "\n\nclass TestOdd:\n    def test_never(self):\n        assert False\n"
    row = {
        "repo_name": "orange3",
        "docker_image": f"namanjain12/orange3_final:{COMMIT}",
        "commit_hash": COMMIT,
        "problem_statement": "[ISSUE]\n\n**Title:** add() subtracts\n\n[/ISSUE]",
        "prompt": "Write an issue.",
        "modified_files": ["pair.py"],
        "expected_output_json": json.dumps(
            {"test_same": "PASSED", "test_add[7]": "PASSED", "TestOdd.test_never": "FAILED"}
        ),
        "parsed_commit_content": json.dumps(
            {
                "file_diffs": [
                    {
                        "header": {"file": {"path": "pair.py"}},
                        "old_file_content": BROKEN,
                        "new_file_content": MENDED,
                    },
                    {
                        "header": {"file": {"path": "tests/test_pair.py"}},
                        "old_file_content": OLD_TESTS,
                        "new_file_content": NEW_TESTS,
                    },
                ],
                "old_commit_hash": f"{COMMIT}^",
                "new_commit_hash": COMMIT,
            }
        ),
        "execution_result_content": json.dumps(
            {
                "repo_name": "orange3",
                "new_commit_hash": COMMIT,
                "test_file_codes": ["", codes],
                "test_file_names": ["__init__.py", "test_1.py"],
                "old_commit_res_code": 1,
                "old_commit_res_stdout": log(mended=False),
                "new_commit_res_code": 0,
                "new_commit_res_stdout": log(mended=True),
            }
        ),
    }
    return row | changes


def multiswe(**changes: Any) -> dict[str, Any]:
    test_patch = diff("add_test.go", "", 'package pair\n\nimport "testing"\n\nfunc TestAdd(t *testing.T) {}\n')
    status = {"run": "NONE", "test": "FAIL", "fix": "PASS"}
    row = {
        "org": "cli",
        "repo": "cli",
        "number": 10388,
        "state": "closed",
        "title": "Mend add",
        "body": "It mends add.",
        "base": {"label": "cli:trunk", "ref": "trunk", "sha": COMMIT},
        "resolved_issues": [{"number": 10387, "title": "add() subtracts", "body": "It should add."}],
        "fix_patch": GOLD,
        "test_patch": test_patch,
        "fixed_tests": {"TestAdd": status},
        "p2p_tests": {"TestSame": {"run": "PASS", "test": "PASS", "fix": "PASS"}},
        "f2p_tests": {"TestAdd": status},
        "s2p_tests": {},
        "n2p_tests": {},
        "run_result": {"passed_count": 1, "failed_count": 0, "skipped_count": 0},
    }
    return row | changes


def swebenchpro(**changes: Any) -> dict[str, Any]:
    """The lists are written as Python literals, in lower-case columns."""
    row = {
        "repo": "qutebrowser/qutebrowser",
        "instance_id": f"instance_qutebrowser__qutebrowser-{COMMIT}-v1055803c3a812189a1133297f7f5468579283f86",
        "base_commit": COMMIT,
        "patch": GOLD,
        "test_patch": TEST_PATCH,
        "problem_statement": '"# add() subtracts\\n\\nIt should add."',
        "requirements": "- `add` adds.",
        "interface": "No new interfaces are introduced.",
        "repo_language": "python",
        "fail_to_pass": repr(FAIL),
        "pass_to_pass": repr(KEEP),
        "issue_specificity": "['bug']",
        "before_repo_set_cmd": f"git reset --hard {COMMIT}\ngit checkout {COMMIT} -- tests/test_pair.py",
        "selected_test_files_to_run": "['tests/test_pair.py']",
        "dockerhub_tag": f"qutebrowser.qutebrowser-qutebrowser__qutebrowser-{COMMIT}-v1055803c3a812189a1133297f7",
    }
    return row | changes


ROWS: Mapping[str, dict[str, Any]] = {
    "swebench": swebench(),
    "swegym": swegym(),
    "swesmith": swesmith(),
    "rebench": rebench(),
    "r2e": r2e(),
    "multiswe": multiswe(),
    "swebenchpro": swebenchpro(),
}
