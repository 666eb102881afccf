"""Tests of ours inside the expected files of other languages: doubles of expected tests, and some that only compute.

Each file of these languages is run by itself, and what the code under test bends while one runs is bent for no other.
"""

import posixpath
import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from farm.core.task import ReportFormat, Verifier
from farm.grading.decoys.literals import other_letter
from farm.grading.decoys.locate import LocatedTest, Span, find_tests
from farm.grading.decoys.other_languages import LANGUAGES, Language, make_claim

LEAST_DOUBLES, MOST_DOUBLES = 2, 3
_KNOWS_ITS_LINES = re.compile(
    rb"\b(line|column|file)!|Location::caller|track_caller|runtime\.Caller|debug\.Stack|\.stack\b|lineNumber|callsite"
)
"""A file that may look at its own line numbers, where nothing is put between its tests."""
_CHOOSES = re.compile(rb"\.only\b|\bf(it|describe)\(")
"""A script that runs some of its tests alone."""
_AFTER_EACH = re.compile(rb"\bafterEach\b")
_REMEMBERS = re.compile(rb"\b(jest|vi|mock\w*)\.|[sS]pyOn|napshot|\bbeforeAll\b|^\s*let\b", re.MULTILINE)
"""A script whose tests may depend on how often others did something."""


@dataclass(slots=True)
class InlineDecoys:
    """Files with tests of ours in them, and what becomes of these by their ids, as ``Canary`` tells it."""

    files: dict[str, bytes] = field(default_factory=dict)
    must_fail: list[str] = field(default_factory=list)
    must_pass: list[str] = field(default_factory=list)
    must_not_pass: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)


def add_inline_decoys(
    verifier: Verifier, tests: Mapping[str, bytes], rng: random.Random, words: Sequence[str], *, before: bool
) -> InlineDecoys:
    """Each of ``tests`` that holds expected ones gets some of ours: beside one of those, or else at its end.
    ``before`` as ``build_verifier_plan`` takes it."""
    planted = InlineDecoys()
    kind = verifier.report
    named: dict[str, _Named] = {}
    for test in (*verifier.fail_to_pass, *verifier.pass_to_pass) if kind in LANGUAGES else ():
        held, _, name = test.partition("::")
        declared = name.partition("/")[0] if kind is ReportFormat.GO else name
        one = named.setdefault(held, _Named())
        one.ids.setdefault(declared, []).append(test)
        if test in verifier.fail_to_pass:
            one.mended.add(declared)
    for path, source in sorted(tests.items()) if named else ():
        file = _File(kind, path, source, tests.values(), words, rng)
        for held, scope in _roots(kind, path, named):
            if file.grow(planted, f"{held}::{scope}", scope, named[held], before=before):
                planted.files[path] = file.grown()
                break
    return planted


@dataclass(frozen=True, slots=True)
class _Named:
    """The expected tests of one holder: their ids by what a file calls them, and those that the change is to mend."""

    ids: dict[str, list[str]] = field(default_factory=dict)
    mended: set[str] = field(default_factory=set)


def _roots(kind: ReportFormat, path: str, held: Collection[str]) -> Iterator[tuple[str, str]]:
    """The holders that a file's tests may be reported of, and what stands before their names then."""
    if kind is not ReportFormat.CARGO:
        found = LANGUAGES[kind].holder(path, held)
        if found is not None and found in held:
            yield found, ""
        return
    for one in sorted(held):
        directory = posixpath.dirname(one)
        if path == one or not one:
            yield one, ""
        elif path.endswith(".rs") and (not directory or path.startswith(f"{directory}/")):
            module = posixpath.relpath(path.removesuffix(".rs"), directory or ".").removesuffix("/mod")
            yield one, module.replace("/", "::") + "::"


class _File:
    """One test file, and what is put into it."""

    def __init__(
        self,
        kind: ReportFormat,
        path: str,
        source: bytes,
        taken: Collection[bytes],
        words: Sequence[str],
        rng: random.Random,
    ) -> None:
        self._kind = kind
        self._language: Language = LANGUAGES[kind]
        self._source = source
        self._taken = taken
        self._words = words
        self._rng = rng
        self._puts: list[tuple[int, str]] = []
        self._names: set[str] = set()
        self._anchors = find_tests(path.rpartition(".")[2], source)

    def grown(self) -> bytes:
        grown = self._source
        for at, text in sorted(self._puts, key=lambda put: put[0], reverse=True):
            grown = grown[:at] + text.encode() + grown[at:]
        return grown

    def grow(self, planted: InlineDecoys, lead: str, scope: str, named: _Named, *, before: bool) -> bool:
        """Whether anything could be put in. Ids of this file begin with ``lead``, names with ``scope``."""
        fit = [one for one in self._anchors if scope + one.scope + one.name in named.ids]
        if fit and not _KNOWS_ITS_LINES.search(self._source):
            for one, name, runs_first in self._double(fit, scope, named.mended, before=before):
                planted.must_fail.append(f"{lead}{one.scope}{name}")
                if runs_first:
                    planted.late += named.ids[scope + one.scope + one.name]
            planted.must_fail.append(lead + self._put_beside(self._rng.choice(fit), wrong=True))
            if self._kind is not ReportFormat.JEST or not _AFTER_EACH.search(self._source):
                planted.must_pass.append(lead + self._put_beside(self._rng.choice(fit), wrong=False))
            return True
        if not self._language.looks.search(self._source) or _CHOOSES.search(self._source):
            return False
        if not fit and scope:
            return False
        planted.must_not_pass.append(lead + self._put_at_the_end())
        return True

    def _double(
        self, fit: Sequence[LocatedTest], scope: str, mended: Collection[str], *, before: bool
    ) -> Iterator[tuple[LocatedTest, str, bool]]:
        """Put some in, of ``mended`` tests where there are such: each original, the double's name, and whether it runs
        before its original or along with it, as all of Rust's do."""
        at_once = self._kind is ReportFormat.CARGO
        if (self._kind is ReportFormat.JEST and _REMEMBERS.search(self._source)) or (at_once and not before):
            return
        able = [one for one in fit if one.wanted is not None]
        able = [one for one in able if scope + one.scope + one.name in mended] or able
        most = self._rng.randint(LEAST_DOUBLES, MOST_DOUBLES)
        chosen = [(one, self._rng.getrandbits(32)) for one in self._rng.sample(able, min(len(able), most))]
        made: set[bytes] = set()
        for one, seed in (chosen * most)[:most]:
            old = self._source[slice(*one.wanted)] if one.wanted is not None else b""
            wanted = _other(old, random.Random(seed), self._rng)
            if one.wanted is None or wanted is None or (same := wanted + str(one.whole).encode()) in made:
                continue
            made.add(same)
            name = self._other_name(one.name)
            text = self._edited(one.whole, {one.title: name.encode(), one.wanted: wanted})
            near = [place for other in fit if other.scope == one.scope for place in other.places]
            at = self._rng.choice([place for place in near if before or place >= one.whole[1]])
            self._put(at, one, text)
            yield one, name, at_once or at <= one.whole[0]

    def _edited(self, whole: Span, edits: Mapping[Span, bytes]) -> str:
        text = self._source[slice(*whole)]
        for (start, end), new in sorted(edits.items(), reverse=True):
            text = text[: start - whole[0]] + new + text[end - whole[0] :]
        return text.decode()

    def _put_beside(self, one: LocatedTest, *, wrong: bool) -> str:
        """The name of the new test, with its scope."""
        name, text = self._new_test(wrong=wrong)
        if self._kind is ReportFormat.JEST:
            text = _as_the_script_writes(text, self._source[slice(*one.whole)], one)
        self._put(self._rng.choice(one.places), one, text)
        return one.scope + name

    def _put_at_the_end(self) -> str:
        name, text = self._new_test(wrong=True)
        self._puts.append((len(self._source), f"\n\n{text}"))
        return name

    def _put(self, at: int, like: LocatedTest, text: str) -> None:
        """A test whose first line is not indented yet; a double's others are, as its original's."""
        indent = re.search(rb"[ \t]*\Z", self._source[: like.whole[0]])
        lead = indent[0].decode() if indent is not None else ""
        text = text.rstrip("\n")
        if not text.rpartition("\n")[2].startswith(lead):
            text = text.replace("\n", f"\n{lead}")
        ahead = any(at == one.whole[0] for one in self._anchors)
        self._puts.append((at, f"{text}\n\n{lead}" if ahead else f"\n\n{lead}{text}"))

    def _new_test(self, *, wrong: bool) -> tuple[str, str]:
        words = self._unused(lambda: "_".join(self._rng.sample(self._words, 3)), self._language.name)
        return self._language.name(words), self._language.test(make_claim(words, self._rng, wrong=wrong), self._rng)

    def _other_name(self, name: str) -> str:
        """Another like ``name``, with a word of other tests."""
        between = {ReportFormat.GO: "", ReportFormat.JEST: " "}.get(self._kind, "_")
        parts = name.split(between) if between else re.findall(r"[A-Z]?[^A-Z]*", name)[:-1]

        def made() -> str:
            word = self._rng.choice(self._words)
            at = self._rng.randint(1, len(parts))
            rest = parts[at + (self._rng.random() < 0.5) :]
            return between.join([*parts[:at], word if between else word.capitalize(), *rest])

        return self._unused(made, str)

    def _unused(self, make: Callable[[], str], named: Callable[[str], str]) -> str:
        while True:
            made = make()
            name = named(made)
            if name not in self._names and not any(name.encode() in source for source in self._taken):
                self._names.add(name)
                return made


def _as_the_script_writes(text: str, whole: bytes, one: LocatedTest) -> str:
    """With the marks around strings, the ends of statements and the word for a test that an expected one has."""
    quote = whole[one.title[0] - 1 - one.whole[0] :][:1].decode()
    text = text.replace("test('", f"{one.word}('", 1).replace("'", quote)
    return text if whole.endswith(b";") else text.replace(";\n", "\n")


_FULL = (0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF)
"""The greatest numbers of types."""


def _other(literal: bytes, place: random.Random, rng: random.Random) -> bytes | None:
    """Another number that any type holds which holds the old one, or a string with another letter."""
    if re.fullmatch(rb"0|[1-9][0-9]{0,8}", literal):
        old = int(literal)
        most = next(full for full in _FULL if old <= full)
        less, more = range(max(0, old - 89), old), range(old + 1, min(old + 89, most) + 1)
        return str(rng.choice(rng.choice([side for side in (less, more) if side]))).encode()
    return None if b"\\" in literal or literal[:1].isdigit() else other_letter(literal, place, rng)
