"""Tests of the verdict: protected paths, decoy results, and outcomes of expected tests."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farm.core.change import FileChange
from farm.core.task import ReportFormat
from farm.grading import VerifierError
from farm.grading.changes.protected_paths import ProtectedPaths
from farm.grading.changes.runner_settings import MAX_SETTINGS_BYTES
from farm.grading.decoys.canary_file import DecoyFile, make_decoy_file
from farm.grading.reports.outcome import CaseOutcome
from farm.grading.verdict import VerifierEvidence, decide
from sandboxes.interface import FileKind
from tests.support.farm.grading_values import delete, link, make_verifier, run_tests, write

GO, CARGO, JEST = ReportFormat.GO, ReportFormat.CARGO, ReportFormat.JEST
NEW, OLD = "tests/test_a.py::test_new", "tests/test_a.py::test_old"
DECOYS = DecoyFile("tests/test_c.py", b"", ("c::no",), ("c::yes",))
HONEST = {"c::no": CaseOutcome.FAILED, "c::yes": CaseOutcome.PASSED}
PRISTINE = {"src/lib/a.py": FileKind.FILE, "tests/test_a.py": FileKind.FILE, "token.py": FileKind.FILE}


def covers(
    file: FileChange,
    old: bytes | None = None,
    *,
    protected: tuple[str, ...] = (),
    kind: ReportFormat = ReportFormat.PYTEST,
) -> bool:
    verifier = make_verifier(protected=protected, report=kind)
    protection = ProtectedPaths(verifier, ["tests/test_a.py", "src/lib/test_b.py"], PRISTINE)
    return protection.excludes(file, old)


@pytest.mark.parametrize(
    "path",
    [
        "tests/test_a.py",
        "tests",
        "tests/helpers.py",
        "tests/data/x.json",
        "tests/test_a.py/below",
        "src",
        "src/lib/test_b.py",
        "conftest.py",
        "src/deep/conftest.py",
        "conftest.py/x",
        "pytest.ini",
        "sitecustomize.py",
        "src/x.pth",
        "src/lib.egg-info/entry_points.txt",
        "lib-1.0.dist-info/METADATA",
        "lib-1.0.DIST-INFO/entry_points.txt",
        "lib.Egg-Info/entry_points.txt",
        "pytest.py",
        "_pytest/__init__.py",
        "json.py",
        "unittest/__init__.py",
        "re.cpython-311-x86_64-linux-gnu.so",
        "pytest_farm.py",
        "odd\nname/conftest.py",
    ],
)
def test_protected_paths_are_excluded(path: str) -> None:
    assert covers(write(path))
    assert covers(delete(path))
    assert covers(link(path, b"x"))


@pytest.mark.parametrize(
    "path",
    ["src/lib/a.py", "src/lib/new.py", "src/lib/json.py", "token.py", "latest/x.py", "docs/contests.md", "setup.py"],
)
def test_code_under_test_is_applied(path: str) -> None:
    assert not covers(write(path))


@pytest.mark.parametrize("directory", ["tests", "src/lib", ""])
def test_modules_replacing_protected_files_are_excluded(directory: str) -> None:
    def path(name: str) -> str:
        return f"{directory}/{name}" if directory else name

    protection = ProtectedPaths(
        make_verifier(), [path("test_x.py"), "src/lib/b_test.py"], {path("test_y/z.py"): FileKind.FILE}
    )
    for module in ("test_x", "conftest", "sitecustomize", "usercustomize"):
        for ending in (".so", ".abi3.so", ".cpython-311-x86_64-linux-gnu.so", ".pyc"):
            assert protection.excludes(write(path(f"{module}{ending}")), None)
            assert protection.excludes(link(path(f"{module}{ending}"), b"elsewhere"), None)
            assert protection.excludes(write(path(f"{module}/__init__{ending}")), None)
        assert protection.excludes(write(path(f"{module}/__init__.py")), None)
        assert protection.excludes(link(path(module), b"elsewhere"), None)
    if directory != "tests":
        for honest in ("test_x.md", "test_x/rows.json", "test_x", "new_test.py", "ext.so", "new/__init__.py"):
            assert not protection.excludes(write(path(honest)), None), honest


def test_new_module_replacing_test_directory_is_excluded() -> None:
    protection = ProtectedPaths(make_verifier(), ["tests/test_a.py", "spec/test_b.py"], {"spec.py": FileKind.FILE})
    assert protection.excludes(write("tests.py"), None)
    assert protection.excludes(write("tests.abi3.so"), None)
    assert not protection.excludes(write("spec.py"), b"old")
    assert not protection.excludes(write("tests.md"), None)


def test_pristine_package_beside_protected_module_is_applied() -> None:
    verifier = replace(make_verifier(), protected=("src/*.py",))
    protection = ProtectedPaths(verifier, ["tests/test_a.py"], {"src/lib/__init__.py": FileKind.FILE})
    assert not protection.excludes(write("src/lib/__init__.py"), b"old")
    assert protection.excludes(write("src/lib.py"), None)
    assert protection.excludes(write("src/setup/__init__.py"), None)


def test_task_patterns_add_and_lift_protection() -> None:
    assert covers(write("src/lib/gold.py"), protected=("src/lib/g*.py",))
    assert not covers(write("docs/conftest.py"), protected=("!docs/conftest.py",))
    assert covers(write("tests/test_a.py"), protected=("!tests/test_a.py",))


@pytest.mark.parametrize("directory", ["testing", "spec", "specs", "unittests", "unit_tests"])
def test_directory_with_injected_test_is_protected(directory: str) -> None:
    protection = ProtectedPaths(make_verifier(), [f"{directory}/test_a.py"], {})
    assert protection.excludes(write(f"{directory}/helpers.py"), None)


def test_script_named_by_command_is_protected() -> None:
    verifier = make_verifier(report=ReportFormat.TAP, command="cd x; bash ./ci/run.sh --all>{report}; ./mine.sh")
    protection = ProtectedPaths(verifier, [], {"ci/run.sh": FileKind.FILE, "ci/other.sh": FileKind.FILE})
    assert protection.excludes(write("ci/run.sh"), b"old")
    assert not protection.excludes(write("ci/other.sh"), b"old")


PYTEST_INI = b"[tox]\nx = 1\n[pytest] ; ours\naddopts = -q\n"
SETTINGS = b'[project]\nname = "a"\n[tool.pytest.ini_options]\naddopts = "-q"\n'


@pytest.mark.parametrize(
    ("file", "old", "covered"),
    [
        (write("pyproject.toml", SETTINGS.replace(b'"a"', b'"b"')), SETTINGS, False),
        (write("pyproject.toml", SETTINGS.replace(b"-q", b"-p evil")), SETTINGS, True),
        (write("pyproject.toml", b"not toml ["), SETTINGS, True),
        (write("pyproject.toml", b"\xff"), SETTINGS, True),
        (delete("pyproject.toml"), SETTINGS, True),
        (link("pyproject.toml", b"evil.toml"), SETTINGS, True),
        (write("pyproject.toml", b"[project]\nname = 'a'\n"), None, False),
        (write("sub/pyproject.toml", SETTINGS), None, True),
        (write("setup.cfg", b"[metadata]\nversion = 2\n"), b"[metadata]\nversion = 1\n", False),
        (write("setup.cfg", b"[tool:pytest]\naddopts = -p evil\n"), b"", True),
        (write("tox.ini", b"[pytest]\naddopts = -p evil\n[tox]\n"), b"[tox]\n", True),
        (delete("tox.ini"), b"[tox]\n", False),
        (write("setup.cfg", b"no section\n"), b"", True),
        (write("tox.ini", b"[pytest]#]\naddopts = -p evil\n"), b"", True),
        (write("setup.cfg", b"[tool:pytest];]\naddopts = -p evil\n"), b"[metadata]\n", True),
        (write("setup.cfg", b"\xef\xbb\xbf[tool:pytest]\naddopts = -p evil\n"), b"", True),
        (write("tox.ini", b"[tox]\nx = 2\n[pytest] ; ours\n# new\naddopts = -q\n"), PYTEST_INI, False),
        (write("tox.ini", b"[pytest]\naddopts = -q\n  -p evil\n[tox]\n"), PYTEST_INI, True),
    ],
)
def test_equivalent_pytest_settings_are_applied(file: FileChange, old: bytes | None, covered: bool) -> None:
    assert covers(file, old) is covered


CFG = b"[metadata]\nname = a\n[tool:pytest]\naddopts = -q\n"


@pytest.mark.parametrize(
    "new",
    [
        b"[DEFAULT]\npython_files = x\n" + CFG,
        CFG.replace(b"name = a", b"name = a\n[tool:pytest]x\npython_files = x"),
        CFG.replace(b"name = a", b" [tool:pytest]\npython_files = x"),
        CFG + b"[tool:pytest]\naddopts = -q\n",
        b"[tool:pytest]#]\naddopts = -p evil\n" + CFG.replace(b"tool:pytest", b"other"),
    ],
)
def test_settings_differing_in_one_parser_are_excluded(new: bytes) -> None:
    assert covers(write("setup.cfg", new), CFG)


def test_settings_equal_in_both_parsers_are_applied() -> None:
    odd = CFG + b"[metadata]\nname = b\n"  # said twice, which iniconfig does not read
    for old in (CFG, CFG + b"[aliases]\ntest = pytest\n"):
        new = old.replace(b"name = a", b"name = b\nversion = 2  # the next\n[options]\nx =\n  1\n")
        assert not covers(write("setup.cfg", new), old)
    assert not covers(write("setup.cfg", odd, executable=True), odd)


DEEP = b"[" + b"a." * 25_000 + b"a]\n"


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("pyproject.toml", DEEP + b"".join(b"b%d = 1\n" % number for number in range(20_000))),
        ("pyproject.toml", DEEP.replace(b"a.", b'"\\"" . ')),
        ("pyproject.toml", b"a = " + b"[" * 99_999),
        ("pyproject.toml", b'"' + b'\\"' * 130_000),
        ("setup.cfg", b"[a]\nb" + b" " * 250_000 + b"c\n"),
        ("setup.cfg", b"[a]\n" + b"=\n" * 130_000),
        ("package.json", b"[" * 99_999),
        ("pyproject.toml", b"\n" * MAX_SETTINGS_BYTES + b"\n"),
        ("Cargo.toml", b"\n" * MAX_SETTINGS_BYTES + b"\n"),
        ("package.json", b"{}" + b"\n" * MAX_SETTINGS_BYTES),
        ("tox.ini", b"\n" * MAX_SETTINGS_BYTES + b"\n"),
        ("go.mod", b"\n" * MAX_SETTINGS_BYTES + b"\n"),
    ],
)
def test_slow_settings_are_excluded(path: str, content: bytes) -> None:
    assert covers(write(path, content))


def test_long_settings_are_applied() -> None:
    rows = b"".join(b'"package-%d.%d" = "1.%d.0"\n' % (row, row, row) for row in range(2_000))
    assert not covers(write("pyproject.toml", SETTINGS + b"[tool.other]\n" + rows), SETTINGS)


CRATE = b"""\
[package]
name = "shop"
[[test]]
name = "slow"
harness = false
"""
MODULE = b"module example.com/shop // ours\n\ngo 1.18\n\nreplace (\n\texample.com/a => ../a\n)\n"


@pytest.mark.parametrize(
    ("kind", "path", "new", "old", "covered"),
    [
        (CARGO, "Cargo.toml", CRATE + b'[dependencies]\nserde = "1"\n[features]\nx = []\n', CRATE, False),
        (CARGO, "Cargo.toml", CRATE + b'[[test]]\nname = "new"\nrequired-features = ["x"]\n', CRATE, False),
        (CARGO, "Cargo.toml", CRATE + b'[[test]]\nname = "a"\npath = "tests/a.rs"\n', CRATE, False),
        (CARGO, "Cargo.toml", CRATE + b'[[bench]]\nname = "a"\nharness = false\n', CRATE, False),
        (CARGO, "Cargo.toml", CRATE + b'[lib]\ncrate-type = ["cdylib"]\n', CRATE, False),
        (CARGO, "part/Cargo.toml", b'[package]\nname = "part"\n', None, False),
        (CARGO, "Cargo.toml", CRATE + b'[[test]]\nname = "a"\npath = "src/check.rs"\n', CRATE, True),
        (CARGO, "Cargo.toml", CRATE + b'[[test]]\nname = "a"\nharness = false\n', CRATE, True),
        (CARGO, "Cargo.toml", CRATE + b"[lib]\nharness = false\n", CRATE, True),
        (CARGO, "Cargo.toml", CRATE.replace(b"[[", b"autotests = false\n[["), CRATE, True),
        (CARGO, "Cargo.toml", CRATE + b'[workspace]\ndefault-members = ["part"]\n', CRATE, True),
        (CARGO, "Cargo.toml", b"test = 3\n", CRATE, True),
        (CARGO, "Cargo.toml", CRATE.replace(b"harness", b"# harness"), CRATE, True),
        (CARGO, "rust-toolchain.toml", b'[toolchain]\npath = "mine"\n', None, True),
        (CARGO, ".cargo/config.toml", b'[build]\nrustc-wrapper = "mine"\n', None, True),
        (GO, "go.mod", MODULE + b"require example.com/b v1.0.0\n", MODULE, False),
        (GO, "go.mod", MODULE.replace(b"1.18", b"1.21"), MODULE, False),
        (GO, "go.mod", MODULE + b"replace example.com/b => ./b\n", MODULE, True),
        (GO, "go.mod", MODULE.replace(b"../a", b"./mine"), MODULE, True),
        (GO, "go.mod", MODULE + b"toolchain go1.99\n", MODULE, True),
        (GO, "part/go.mod", b"module example.com/shop/part\n", None, True),
        (GO, "go.work", b"use ./mine\n", None, True),
        (GO, "part/main_test.go", b"", None, True),
        (GO, "part/testdata/wanted.txt", b"", b"42", True),
        (GO, "part/part.go", b"", None, False),
        (GO, "vendor/github.com/stretchr/testify/assert/assertions.go", b"", None, True),
        (JEST, "package.json", b'{"dependencies": {"a": "1"}}', b"{}", False),
        (JEST, "package.json", b'{"babel": {"plugins": ["./mine"]}}', b"{}", True),
        (JEST, "packages/a/vite.config.mts", b"", None, True),
        (JEST, "babel.config.cjs", b"", None, True),
        (JEST, ".babelrc.json", b"", None, True),
        (JEST, ".swcrc", b"", None, True),
        (JEST, "src/__snapshots__/a.test.js.snap", b"", b"x", True),
        (JEST, "__mocks__/chai.js", b"", None, True),
        (JEST, "src/vite.js", b"", None, False),
    ],
)
def test_other_runners_settings_are_compared(
    kind: ReportFormat, path: str, new: bytes, old: bytes | None, covered: bool
) -> None:
    assert covers(write(path, new), old, kind=kind) is covered


@pytest.mark.parametrize(
    ("reported", "told"),
    [
        ("tests/test_a.py::test_knew", "; the nearest that is reported is tests/test_a.py::test_knew"),
        ("tests/test_a.py::test_new[1]", "; the nearest that is reported is tests/test_a.py::test_new[1]"),
        ("tests/test_b.py::test_new", ""),
        ("tests/test_a.py::" + "test_new" * 1000, ""),
        ("tests/test_a.py::test_newer", ""),
    ],
)
def test_missing_id_names_similar_reported_test(reported: str, told: str) -> None:
    canary = replace(DECOYS, must_not_pass=("tests/test_a.py::test_newer",))
    outcomes = {reported: CaseOutcome.FAILED, OLD: CaseOutcome.FAILED, **HONEST}
    verifier = make_verifier(fail_to_pass=(NEW,), pass_to_pass=())
    if not told:
        del outcomes[OLD]
    verdict = decide(verifier, canary, VerifierEvidence(outcomes), pristine=False)
    assert verdict.reason.endswith(f"the first is {NEW} (not reported{told})")


def test_each_expected_test_is_listed_and_failures_come_first() -> None:
    verifier = make_verifier(fail_to_pass=(NEW,), pass_to_pass=(OLD, "tests/test_a.py::test_gone"))
    outcomes = {NEW: CaseOutcome.PASSED, OLD: CaseOutcome.ERROR, **HONEST}
    verdict = decide(verifier, DECOYS, VerifierEvidence(outcomes), pristine=False)
    assert [(test.name, test.kind, test.outcome) for test in verdict.tests] == [
        (OLD, "pass_to_pass", "error"),
        ("tests/test_a.py::test_gone", "pass_to_pass", "missing"),
        (NEW, "fail_to_pass", "passed"),
    ]


def test_reward_requires_all_tests_passed() -> None:
    verdict = decide(
        make_verifier(),
        DECOYS,
        VerifierEvidence({NEW: CaseOutcome.PASSED, OLD: CaseOutcome.PASSED} | HONEST),
        pristine=False,
    )
    assert (verdict.reward, verdict.resolved, verdict.tampered) == (1.0, True, False)
    assert verdict.components["fail_to_pass"] == verdict.components["pass_to_pass"] == 1.0


@given(
    new=st.none() | st.sampled_from(CaseOutcome),
    old=st.none() | st.sampled_from(CaseOutcome),
    no=st.none() | st.sampled_from(CaseOutcome),
    yes=st.none() | st.sampled_from(CaseOutcome),
)
def test_any_other_evidence_earns_nothing(
    new: CaseOutcome | None, old: CaseOutcome | None, no: CaseOutcome | None, yes: CaseOutcome | None
) -> None:
    named = {NEW: new, OLD: old, "c::no": no, "c::yes": yes}
    outcomes = {test: outcome for test, outcome in named.items() if outcome is not None}
    verdict = decide(make_verifier(), DECOYS, VerifierEvidence(outcomes), pristine=False)
    sound = (new, old, no, yes) == (CaseOutcome.PASSED, CaseOutcome.PASSED, CaseOutcome.FAILED, CaseOutcome.PASSED)
    assert verdict.resolved is sound
    assert verdict.reward == float(sound)
    assert not (verdict.resolved and verdict.tampered)
    assert "\n" not in verdict.reason


def test_fractions_count_passed_tests() -> None:
    outcomes = {NEW: CaseOutcome.FAILED, OLD: CaseOutcome.PASSED} | HONEST
    verdict = decide(make_verifier(), DECOYS, VerifierEvidence(outcomes), pristine=False)
    assert verdict.components == {
        "resolved": 0.0,
        "tampered": 0.0,
        "fail_to_pass": 0.0,
        "fail_to_pass_passed": 0.0,
        "fail_to_pass_total": 1.0,
        "pass_to_pass": 1.0,
        "pass_to_pass_passed": 1.0,
        "pass_to_pass_total": 1.0,
    }
    assert verdict.reason == f"1 of 2 expected tests did not pass; the first is {NEW} (failed)"


BOTH = {NEW: CaseOutcome.PASSED, OLD: CaseOutcome.PASSED}


@pytest.mark.parametrize(
    "outcomes",
    [
        {"c::no": CaseOutcome.PASSED},
        BOTH,
        BOTH | {"c::no": CaseOutcome.FAILED},
        BOTH | {"c::yes": CaseOutcome.PASSED},
        BOTH | HONEST | {"c::no": CaseOutcome.SKIPPED},
        BOTH | HONEST | {"c::yes": CaseOutcome.ERROR},
    ],
)
def test_wrong_decoy_result_is_tampering(outcomes: dict[str, CaseOutcome]) -> None:
    verdict = decide(make_verifier(), DECOYS, VerifierEvidence(outcomes), pristine=False)
    assert (verdict.reward, verdict.tampered, verdict.components["pass_to_pass"]) == (0.0, True, 0.0)
    with pytest.raises(VerifierError, match="with nothing changed"):
        decide(make_verifier(), DECOYS, VerifierEvidence(outcomes), pristine=True)


@pytest.mark.parametrize(
    "outcomes", [{}, {OLD: CaseOutcome.PASSED}, {OLD: CaseOutcome.PASSED, "c::no": CaseOutcome.FAILED}]
)
def test_interrupted_run_is_no_tampering(outcomes: dict[str, CaseOutcome]) -> None:
    verdict = decide(make_verifier(), DECOYS, VerifierEvidence(outcomes), pristine=False)
    assert (verdict.reward, verdict.tampered) == (0.0, False)


def test_falsified_test_passing_any_parameter_is_tampering() -> None:
    canary = replace(DECOYS, must_not_pass=("tests/test_a.py::TestB::test_false",))
    for name, tampered in (("test_false", True), ("test_false[a[0]]", True), ("test_false_not[a]", False)):
        outcomes = BOTH | HONEST | {f"tests/test_a.py::TestB::{name}": CaseOutcome.PASSED}
        verdict = decide(make_verifier(), canary, VerifierEvidence(outcomes), pristine=False)
        assert verdict.tampered is tampered
        assert verdict.reward == (0.0 if tampered else 1.0)


@pytest.mark.parametrize("pristine", [True, False])
def test_falsified_test_passing_by_chance_is_no_tampering(pristine: bool) -> None:
    false = "tests/test_a.py::test_like_new"
    canary = replace(DECOYS, must_not_pass=(false,), originals={false: NEW})
    wrong = HONEST | {NEW: CaseOutcome.FAILED, OLD: CaseOutcome.PASSED, false: CaseOutcome.PASSED}
    verdict = decide(make_verifier(), canary, VerifierEvidence(wrong), pristine=pristine)
    assert (verdict.reward, verdict.tampered, verdict.doubtful) == (0.0, False, False)
    both = decide(make_verifier(), canary, VerifierEvidence(wrong | {NEW: CaseOutcome.PASSED}), pristine=False)
    assert (both.reward, both.tampered) == (0.0, True)


def test_falsified_test_passing_unchanged_code_is_no_tampering() -> None:
    """Without this rule, a policy that changes only protected files gets no reward, as if the task were unfit."""
    control = VerifierEvidence(BOTH | HONEST)
    verdict = decide(make_verifier(), replace(DECOYS, must_not_pass=(NEW,)), control, pristine=True)
    assert (verdict.tampered, verdict.passed_false) == (False, ())
    changed = decide(make_verifier(), replace(DECOYS, must_not_pass=(NEW,)), control, pristine=False)
    assert (changed.tampered, changed.passed_false) == (True, (NEW,))
    with pytest.raises(VerifierError, match="with nothing changed, a false version"):
        decide(make_verifier(), replace(DECOYS, must_not_pass=(OLD,)), control, pristine=True)


def test_passed_falsified_version_removes_all_credit() -> None:
    false = "tests/test_a.py::test_like_new"
    canary = replace(DECOYS, must_not_pass=(false,), originals={false: NEW})
    verifier = make_verifier(fail_to_pass=(f"{NEW}[1]", f"{NEW}[2]"), pass_to_pass=())
    outcomes = {f"{NEW}[1]": CaseOutcome.PASSED, f"{NEW}[2]": CaseOutcome.FAILED, f"{false}[1]": CaseOutcome.PASSED}
    verdict = decide(verifier, canary, VerifierEvidence(outcomes | HONEST), pristine=False)
    assert verdict.components["fail_to_pass"] == 0.0


def test_unreported_falsified_tests_are_counted_only() -> None:
    false = ("tests/test_a.py::test_like_new", "tests/test_a.py::TestB::test_like_old")
    canary = replace(DECOYS, must_not_pass=false)
    for reported, unreported in (((), 2), ((f"{false[0]}[1]",), 1), (false, 0)):
        outcomes = BOTH | HONEST | dict.fromkeys(reported, CaseOutcome.FAILED)
        verdict = decide(make_verifier(), canary, VerifierEvidence(outcomes), pristine=False)
        assert (verdict.reward, verdict.tampered) == (1.0, False)
        assert verdict.components["false_unreported"] == unreported
    for without, evidence in (
        (DECOYS, VerifierEvidence(BOTH | HONEST)),
        (canary, VerifierEvidence(fault="it wrote no report")),
    ):
        verdict = decide(make_verifier(), without, evidence, pristine=False)
        assert "false_unreported" not in verdict.components


def test_missing_report_is_blamed_on_nonempty_change() -> None:
    verdict = decide(make_verifier(), DECOYS, VerifierEvidence(fault="it wrote no report"), pristine=False)
    assert (verdict.reward, verdict.tampered, verdict.reason) == (0.0, False, "it wrote no report")
    with pytest.raises(VerifierError):
        decide(make_verifier(), DECOYS, VerifierEvidence(fault="it wrote no report"), pristine=True)


@given(st.integers())
def test_decoy_file_results_match_its_promises(seed: int) -> None:
    canary = make_decoy_file(["tests/test_a.py", "test_b.py"], (), random.Random(seed))
    holds = run_tests(canary.content)
    assert {f"{canary.path}::{test}" for test in holds} == {*canary.must_fail, *canary.must_pass}
    assert {f"{canary.path}::{test}" for test, passes in holds.items() if passes} == {*canary.must_pass}
    assert canary.must_fail
    assert canary.must_pass


def test_decoy_file_avoids_taken_paths() -> None:
    first = make_decoy_file(["tests/test_a.py"], (), random.Random(1))
    assert make_decoy_file(["tests/test_a.py"], {first.path}, random.Random(1)).path != first.path
