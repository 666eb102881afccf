"""Tests of ours in Go, Rust and JavaScript, some of which must fail: how they read, and a file of them."""

import posixpath
import random
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from farm.core.task import ReportFormat
from farm.core.test_frameworks import container_of_test
from farm.grading.decoys.canary_file import DecoyFile

Claim = tuple[str, int, int]
"""The words of a test's name joined by underscores, what it computes and what it wants; unequal: it must fail."""

_PACKAGE = re.compile(rb"^package\s+(\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ForeignDecoy:
    """A canary, and the holder by which it is run."""

    canary: DecoyFile
    holder: str


def make_foreign_decoy(
    kind: ReportFormat,
    expected: Sequence[str],
    tests: Mapping[str, bytes],
    taken: Collection[str],
    rng: random.Random,
    words: Sequence[str],
) -> ForeignDecoy | None:
    """None for a kind that has no canary, and where no test file shows where one would be found."""
    language = LANGUAGES.get(kind)
    beside = sorted(path for path in tests if language is not None and language.fits(path, tests[path]))
    if language is None or not beside:
        return None
    sibling = rng.choice(beside)
    names = ["_".join(rng.sample(words, 3)) for _ in range(rng.randint(3, 6))]
    wrong = set(rng.sample(names, rng.randint(1, len(names) - 1)))
    claims = [make_claim(name, rng, wrong=name in wrong) for name in dict.fromkeys(names)]
    while (path := language.path(sibling, "_".join(rng.sample(words, 2)))) in taken:
        continue
    held = language.holder(path, {container_of_test(test) for test in expected})
    if held is None:
        return None
    content = "\n".join(filter(None, (language.head(tests[sibling]), *(language.test(claim, rng) for claim in claims))))
    failing = tuple(f"{held}::{language.name(name)}" for name, seen, wanted in claims if seen != wanted)
    passing = tuple(f"{held}::{language.name(name)}" for name, seen, wanted in claims if seen == wanted)
    return ForeignDecoy(DecoyFile(path, content.encode(), failing, passing), held)


def make_claim(name: str, rng: random.Random, *, wrong: bool) -> Claim:
    seen = rng.randint(20, 900)
    return name, seen, seen + (rng.randint(1, 9) if wrong else 0)


def words_in(expected: Iterable[str]) -> list[str]:
    """Lower-case words that expected tests are named with."""
    found = (word.lower() for test in expected for word in re.findall(r"[A-Z]?[a-z]{3,}", test.partition("::")[2]))
    return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Language:
    """``fits``: a test file by which another is found. ``path``: one beside it. ``holder``: what runs it, where the
    holders of expected tests are these. ``head``: what such a file begins with. ``test``: one test, whole lines of it.
    ``name``: what that is called in a report. ``looks``: what a file that holds tests says somewhere."""

    fits: Callable[[str, bytes], bool]
    path: Callable[[str, str], str]
    holder: Callable[[str, Collection[str]], str | None]
    head: Callable[[bytes], str]
    test: Callable[[Claim, random.Random], str]
    name: Callable[[str], str]
    looks: re.Pattern[bytes]


def _parts(number: int, rng: random.Random) -> list[int]:
    """Three numbers whose sum it is."""
    one, two = sorted(rng.sample(range(1, number), 2))
    return [one, two - one, number - two]


def _sum(number: int, rng: random.Random) -> str:
    return " + ".join(map(str, _parts(number, rng)))


def _own_path(path: str, _: Collection[str]) -> str:
    return path


def _same(name: str) -> str:
    return name


def _go_name(name: str) -> str:
    return "Test" + "".join(word.capitalize() for word in name.split("_"))


def _go_head(sibling: bytes) -> str:
    package = _PACKAGE.search(sibling)
    assert package is not None  # it fits
    return f'package {package[1].decode()}\n\nimport "testing"\n'


def _go_test(claim: Claim, rng: random.Random) -> str:
    name, seen, wanted = claim
    word = name.split("_")[0]
    parts = ", ".join(map(str, _parts(seen, rng)))
    body = rng.choice((
        f'\tif got := {_sum(seen, rng)}; got != {wanted} {{\n\t\tt.Errorf("got %d", got)\n\t}}',
        f'\t{word}Sum := {_sum(seen, rng)}\n\tif {word}Sum != {wanted} {{\n\t\tt.Fatalf("got %d", {word}Sum)\n\t}}',
        f"\tgot := 0\n\tfor _, {word}Part := range []int{{{parts}}} {{\n\t\tgot += {word}Part\n\t}}\n"
        f'\tif got != {wanted} {{\n\t\tt.Errorf("got %d, want {wanted}", got)\n\t}}',
    ))  # one form a line  # fmt: skip
    return f"func {_go_name(name)}(t *testing.T) {{\n{body}\n}}\n"


def _go_package(path: str, packages: Collection[str]) -> str | None:
    """The expected package whose import path ends in the file's directory, where there is just one; or any."""
    directory = posixpath.dirname(path)
    found = [name for name in packages if name and (not directory or f"/{name}".endswith(f"/{directory}"))]
    if found and (directory or len(packages) == 1):
        return min(found, key=len)
    return "" if "" in packages else None


def _rust_test(claim: Claim, rng: random.Random) -> str:
    name, seen, wanted = claim
    word = name.split("_")[0]
    parts = ", ".join(map(str, _parts(seen, rng)))
    body = rng.choice((
        f"    assert_eq!({_sum(seen, rng)}, {wanted});",
        f"    let {word}_sum = {_sum(seen, rng)};\n    assert_eq!({word}_sum, {wanted});",
        f"    let {word}_parts = vec![{parts}];\n    assert_eq!({word}_parts.iter().sum::<i32>(), {wanted});",
        f"    let {word}_sum: i32 = [{parts}].iter().sum();\n    assert!({word}_sum == {wanted});",
    ))  # one form a line  # fmt: skip
    return f"#[test]\nfn {name}() {{\n{body}\n}}\n"


def _script_head(sibling: bytes) -> str:
    globals_of = next((name for name in ("vitest", "@jest/globals") if name.encode() in sibling), None)
    if globals_of is None:
        return ""
    names = "{ expect, test }"
    module = b"import " in sibling
    return f"import {names} from '{globals_of}';\n" if module else f"const {names} = require('{globals_of}');\n"


def _script_name(name: str) -> str:
    return name.replace("_", " ")


def _script_test(claim: Claim, rng: random.Random) -> str:
    name, seen, wanted = claim
    word = name.split("_")[0]
    parts = ", ".join(map(str, _parts(seen, rng)))
    matcher = rng.choice(("toBe", "toEqual", "toStrictEqual"))
    body = rng.choice((
        f"  expect({_sum(seen, rng)}).{matcher}({wanted});",
        f"  const {word}Sum = {_sum(seen, rng)};\n  expect({word}Sum).{matcher}({wanted});",
        f"  const {word}Parts = [{parts}];\n  expect({word}Parts.reduce((a, b) => a + b, 0)).{matcher}({wanted});",
    ))  # one form a line  # fmt: skip
    return f"test('{_script_name(name)}', () => {{\n{body}\n}});\n"


def _same_endings(sibling: str, stem: str) -> str:
    """``src/sum.test.js`` → ``src/STEM.test.js``; also where a directory says that these are tests."""
    directory, name = posixpath.split(sibling)
    return posixpath.join(directory, stem + name[name.index(".") :])


LANGUAGES: Mapping[ReportFormat, Language] = {
    ReportFormat.GO: Language(
        lambda path, content: path.endswith("_test.go") and _PACKAGE.search(content) is not None,
        lambda sibling, stem: posixpath.join(posixpath.dirname(sibling), f"{stem}_test.go"),
        _go_package,
        _go_head,
        _go_test,
        _go_name,
        re.compile(rb"\*testing\.T\b"),
    ),
    ReportFormat.CARGO: Language(
        lambda path, _: path.endswith(".rs") and posixpath.basename(posixpath.dirname(path)) == "tests",
        lambda sibling, stem: posixpath.join(posixpath.dirname(sibling), f"{stem}.rs"),
        _own_path,
        lambda _: "",
        _rust_test,
        _same,
        re.compile(rb"#\[(\w+::)*test\b"),
    ),
    ReportFormat.JEST: Language(
        lambda path, _: (
            re.search(r"\.(test|spec)\.[cm]?[jt]sx?$|(^|/)__tests__/[^/]+\.[cm]?[jt]sx?$", path) is not None
        ),
        _same_endings,
        _own_path,
        _script_head,
        _script_test,
        _script_name,
        re.compile(rb"\b(test|it)\s*\("),
    ),
}
