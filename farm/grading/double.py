"""Expected tests doubled where they stand, under another name and with another wanted value.

A double is the very text of its original, decorators, fixtures and parameters included, but for a letter or a number of
what it wants. No sound program passes both, and nothing but what a test says tells which of them is expected: doubles
stand before and behind it, and those of one test differ in the same place, their names too. A test that wants no
literal is spoilt instead: one false claim more at its end, made in its own way of asserting.
"""

import ast
import random
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice

from farm.grading.claims import false_claim, imported_words, ways_of
from farm.grading.literal import (
    differ,
    is_literal,
    leaves_of,
    number_of,
    numbers_in,
    other_number,
    other_string,
    word_of,
    words_in,
)
from farm.grading.source import Function, function_of, functions, parse_tests, pristine, words_of_one

LEAST_DOUBLES, MOST_DOUBLES = 2, 3
LEAST_WORDS = 6
"""Words that the names of a file's own tests must have if names of its doubles are made of no others."""
LEAST_PART = 8
"""Characters of a string that a test looks for in another: a shorter one may be there by chance once it is altered."""
MOST_SPOILT = 3
_KNOWS_ITS_LINES = re.compile(rb"lineno|traceback|getsource|stack\(|currentframe|exc_info|\bline [0-9]")
"""A file that may look at its own line numbers, where nothing is put between its tests."""


@dataclass(frozen=True, slots=True)
class _Edit:
    """Bytes ``start`` to ``end`` of a file give way to ``text``."""

    start: int
    end: int
    text: bytes


class _Text:
    """A file by lines and columns, which the syntax tree counts from 1 and in bytes."""

    def __init__(self, source: bytes, module: ast.Module) -> None:
        self.source = source
        self.functions = list(functions(module.body))
        self.last_line = module.body[-1].end_lineno
        self.imported = imported_words(module.body)
        self.numbers, self.words = numbers_in(source), words_in(source)
        self.knows_its_lines = _KNOWS_ITS_LINES.search(source) is not None
        own = words_of_one(source)
        self.vocabulary = own if len(own) >= LEAST_WORDS else ()
        self._starts = [0]
        for line in source.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def at(self, line: int, column: int = 0) -> int:
        return self._starts[line - 1] + column

    def span(self, node: ast.expr) -> tuple[int, int]:
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno or 0, node.end_col_offset or 0)

    def start(self, function: Function) -> int:
        return self.at(min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)]))

    def indent(self, function: Function) -> bytes:
        """What stands before each of its statements; nothing where the first is on the line of its name."""
        first = function.body[0]
        before = self.source[self.at(first.lineno) : self.at(first.lineno, first.col_offset)]
        return b"" if before.strip() else before

    def block(self, function: Function) -> tuple[int, int] | None:
        """All lines of a function; None where something else stands on them."""
        last = function.end_lineno or function.lineno
        start, end = self.start(function), min(self.at(last + 1), len(self.source))
        before = self.source[start : start + function.col_offset]
        behind = self.source[self.at(last, function.end_col_offset or 0) : end].strip()
        return None if before.strip() or (behind and not behind.startswith(b"#")) else (start, end)


@dataclass(frozen=True, slots=True)
class Doubled:
    """A test file with false tests in it. ``false``: what pytest calls them in it. ``late``: the tests, without their
    parameters, that run behind a double of theirs. ``originals``: of each double, which a wrong program may happen to
    pass in the place of this."""

    content: bytes
    false: tuple[str, ...]
    late: tuple[str, ...] = ()
    originals: Mapping[str, str] = field(default_factory=dict)


def plant_doubles(
    source: bytes,
    mended: Collection[str],
    others: Collection[str],
    words: Sequence[str],
    rng: random.Random,
    *,
    before: bool,
) -> Doubled | None:
    """A test file with a few of its tests doubled: those of ``mended``, which the change is to mend, where one is fit,
    also more than once each; else ``others``. ``before``: also before their originals.

    Only tests that end in a comparison are doubled: whatever they do, their double does as well before it fails. In
    each way of asserting that can be turned off one is spoilt, and in any case one where none is doubled.
    None where there is none, or the file cannot be parsed.
    """
    text = _read(source)
    if text is None:
        return None
    most = rng.randint(LEAST_DOUBLES, MOST_DOUBLES)
    chosen = (_fit(text, mended, most, rng) * most or _fit(text, others, most, rng))[:most]
    spoilt = _to_spoil(text, mended, rng, always=not chosen) or _to_spoil(text, others, rng, always=not chosen)
    inherited = "\n".join([*mended, *others]).encode()  # tests that a class has from another file are named here alone
    edits: list[_Edit] = []
    made: set[bytes] = set()
    false: list[str] = []
    late: set[str] = set()
    originals: dict[str, str] = {}
    for name, function, body, seed, claim in [*((*one, "") for one in chosen), *spoilt]:
        known = b"\n".join([source, inherited, *(edit.text for edit in edits)])
        place = random.Random(seed)
        other = _new_name(function.name, known, text.vocabulary or words, place, rng, behind=not before)
        double = _spoilt(text, function, other, claim) if claim else _double(text, function, other, place, rng)
        where = None if double is None else _place(text, function, body, rng, before=before)
        if where is None or double is None or (same := double.replace(other.encode(), b"")) in made:
            continue
        made.add(same)
        gap = b"\n" if "::" in name else b"\n\n"
        double = double + gap if where == text.start(function) else gap + double
        edits.append(_Edit(where, where, double if source[:where].endswith(b"\n") else b"\n" + double))
        false.append(name.removesuffix(function.name) + other)
        if not claim:
            originals[false[-1]] = name
        if where <= text.start(function) or ("::" in name and other < function.name):  # unittest sorts its methods
            late.add(name)
    return Doubled(_edited(source, 0, edits), tuple(false), tuple(late), originals) if false else None


def make_false(source: bytes, tests: Collection[str], rng: random.Random) -> tuple[bytes, tuple[str, ...]]:
    """The file with these of its tests asking for something else under their own names, and those names."""
    text = _read(source)
    names = {function_of(test) for test in tests}
    made: dict[str, _Edit] = {}
    for name, function, _ in text.functions if text is not None else ():
        block = text.block(function) if text is not None and name in names else None
        if text is None or block is None:
            continue
        false = _double(text, function, function.name, rng, rng)
        if false is None and not _ends_early(function):
            ways = _ways_of(function, text.imported)
            false = _spoilt(text, function, function.name, false_claim(rng.choice(ways) if ways else None, rng))
        if false is not None:
            made[name] = _Edit(*block, false)
    return _edited(source, 0, list(made.values())), tuple(made)


def _fit(
    text: _Text, tests: Collection[str], most: int, rng: random.Random
) -> list[tuple[str, Function, Sequence[ast.stmt], int]]:
    """Some that can be doubled, in any order, each with a number from which it follows where it is altered."""
    names = {function_of(test) for test in tests}
    found = [known for known in text.functions if known[0] in names]
    rng.shuffle(found)
    able = ((*known, rng.getrandbits(32)) for known in found if _alterations(text, known[1], rng, rng))
    return list(islice(able, most))


def _to_spoil(
    text: _Text, tests: Collection[str], rng: random.Random, *, always: bool
) -> list[tuple[str, Function, Sequence[ast.stmt], int, str]]:
    """As ``_fit`` has them, with a claim each: one for every way of asserting, and ``always`` one."""
    names = {function_of(test) for test in tests}
    able = [one for one in text.functions if one[0] in names and not _ends_early(one[1]) and text.indent(one[1])]
    rng.shuffle(able)
    by_way = {way: one for one in able for way in _ways_of(one[1], text.imported)}
    ways = rng.sample(sorted(by_way), min(len(by_way), MOST_SPOILT))
    chosen = [(by_way[way], false_claim(way, rng)) for way in ways]
    if not chosen and always:
        chosen = [(one, false_claim(None, rng)) for one in able[:1]]
    return [(*one, rng.getrandbits(32), claim) for one, claim in chosen]


@lru_cache(maxsize=256)
def _read(source: bytes) -> _Text | None:
    """The same file is doubled for each grading of its task. None where its lines are not the syntax tree's."""
    module = None if b"\r" in source or b"\f" in source else pristine(source)
    try:
        return _Text(source, module) if module is not None and module.body and source.decode() else None
    except UnicodeDecodeError:
        return None


def _edited(source: bytes, offset: int, edits: Sequence[_Edit]) -> bytes:
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        source = source[: edit.start - offset] + edit.text + source[edit.end - offset :]
    return source


def _place(
    text: _Text, function: Function, body: Sequence[ast.stmt], rng: random.Random, *, before: bool
) -> int | None:
    """Beside the test or one of the functions around it; at the end of a file that knows its lines."""
    if text.knows_its_lines:
        return len(text.source) if body[-1].end_lineno == text.last_line else None
    at = body.index(function)
    behind = [block[1] for block in _blocks(text, body[at:])]
    if not behind:
        return None
    ahead = []
    if before:
        needed = {node.id for part in _evaluated(function) for node in ast.walk(part) if isinstance(node, ast.Name)}
        ahead = [text.start(function)]
        for statement, block in zip(reversed(body[:at]), _blocks(text, reversed(body[:at])), strict=False):
            if not isinstance(statement, Function) or statement.name in needed:
                break
            ahead.append(block[0])
    return rng.choice(rng.choice([behind, ahead]) or behind)


def _blocks(text: _Text, statements: Iterable[ast.stmt]) -> Iterator[tuple[int, int]]:
    """Of the functions that come first."""
    for statement in statements:
        block = text.block(statement) if isinstance(statement, Function) else None
        if block is None:
            return
        yield block


def _evaluated(function: Function) -> Iterator[ast.expr]:
    """What is evaluated where a function is defined."""
    arguments = function.args
    yield from function.decorator_list
    yield from (part for part in (*arguments.defaults, *arguments.kw_defaults) if part is not None)
    everyone = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
    yield from (one.annotation for one in everyone if one is not None and one.annotation is not None)
    if function.returns is not None:
        yield function.returns


def _new_name(
    name: str, source: bytes, words: Sequence[str], place: random.Random, rng: random.Random, *, behind: bool
) -> str:
    """Another name like ``name`` that does not occur in ``source``, with a word of other tests in the place of one of
    its own: nothing tells which was there first. ``behind``: as letters are sorted.

    A name that has no word to spare, or none for which another would do, gets one more.
    """
    between = "_" if "_" in name else ""
    parts = name.split("_") if between else re.findall(r"[A-Z]?[^A-Z]+|[A-Z]", name)
    at = place.randrange(1, len(parts)) if len(parts) > 1 else 1
    own = len(parts[min(at, len(parts) - 1)])
    rather_longer = rng.random() < 0.5
    shuffled = sorted(rng.sample(words, len(words)), key=lambda word: (len(word) < own) is rather_longer)
    others = [word if between else word.capitalize() for word in shuffled]
    for word in others:
        made = between.join([*parts[:at], word, *parts[at + 1 :]])
        if made.encode() not in source and not (behind and made < name):
            return made
    while name.encode() in source:
        name = f"{name}{between}{rng.choice(others)}"
    return name


def _double(text: _Text, function: Function, name: str, place: random.Random, rng: random.Random) -> bytes | None:
    """``place`` says where it is altered, ``rng`` how."""
    block = text.block(function)
    edits = None if block is None else _alterations(text, function, place, rng)
    if block is None or not edits:
        return None
    at = text.source.index(function.name.encode(), text.at(function.lineno, function.col_offset) + len(b"def "))
    edits = [*edits, _Edit(at, at + len(function.name.encode()), name.encode())]
    made = _edited(text.source[slice(*block)], block[0], edits)
    made = made if made.endswith(b"\n") else made + b"\n"
    return made if _is_one_function(made, name, indented=function.col_offset > 0) else None


def _spoilt(text: _Text, function: Function, name: str, claim: str) -> bytes | None:
    block = text.block(function)
    if block is None:
        return None
    at = text.source.index(function.name.encode(), text.at(function.lineno, function.col_offset) + len(b"def "))
    made = _edited(text.source[slice(*block)], block[0], [_Edit(at, at + len(function.name.encode()), name.encode())])
    made = made if made.endswith(b"\n") else made + b"\n"
    made += b"".join(text.indent(function) + line.encode() + b"\n" for line in claim.split("\n"))
    return made if _is_one_function(made, name, indented=function.col_offset > 0) else None


@lru_cache(maxsize=8192)
def _ways_of(function: Function, imported: frozenset[str]) -> tuple[str, ...]:
    return tuple(ways_of(function, imported))


@lru_cache(maxsize=8192)
def _ends_early(function: Function) -> bool:
    return any(isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) for node in ast.walk(function))


def _is_one_function(block: bytes, name: str, *, indented: bool) -> bool:
    """Whole lines of one function are put between whole statements: all else stays what it was."""
    module = parse_tests(b"class _:\n" + block if indented else block)
    match module.body if module is not None else []:
        case [ast.ClassDef(body=[only])] if indented:
            pass
        case [only]:
            pass
        case _:
            return False
    return isinstance(only, Function) and only.name == name


def _alterations(text: _Text, function: Function, place: random.Random, rng: random.Random) -> Sequence[_Edit] | None:
    if _ends_early(function):
        return None
    match function.body[-1]:
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
            pass
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="assertEqual"), args=[left, right, *_])):
            pass
        case ast.Assert(test=ast.Compare(left=ast.Constant(value=str(part)) as left, ops=[ast.In()], comparators=[_])):
            edit = _alter(text, left, place, rng) if len(part) >= LEAST_PART else None
            return [edit] if edit is not None else None
        case _:
            return None
    for wanted, seen in ((right, left), (left, right)):
        if isinstance(wanted, ast.Name):
            rows = _rows(function, wanted.id)
            found = [_alter(text, row, place, rng) for row in rows]
            edits = [edit for edit in found if edit is not None]
            if rows and len(edits) == len(rows):
                return edits
        elif not is_literal(seen) and (edit := _alter(text, wanted, place, rng)):
            return [edit]
    return None


def _rows(function: Function, name: str) -> Sequence[ast.expr]:
    """What a name stands for, its one value or a parameter's, where it serves for nothing but the comparison."""
    uses = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == name]
    for statement in function.body if len(uses) == 2 else ():
        match statement:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name and is_literal(value):
                return (value,)
    if len(uses) != 1:
        return ()
    for decorator in function.decorator_list:
        match decorator:
            case ast.Call(
                func=ast.Attribute(attr="parametrize"),
                args=[ast.Constant(value=str(joined)), ast.List(elts=rows) | ast.Tuple(elts=rows)],
                keywords=[],
            ):
                names = [part.strip() for part in joined.split(",") if part.strip()]
            case _:
                continue
        if name in names:
            found = [_cell(row, names.index(name), len(names)) for row in rows]
            cells = [cell for cell in found if cell is not None]
            return cells if len(cells) == len(found) else ()
    return ()


def _cell(row: ast.expr, index: int, count: int) -> ast.expr | None:
    match row:
        case ast.Call(func=ast.Attribute(attr="param"), args=cells):
            pass
        case ast.Tuple(elts=cells) | ast.List(elts=cells) if count > 1:
            pass
        case _:
            cells = [row]
    fit = len(cells) == count and not any(isinstance(cell, ast.Starred) for cell in cells)
    return cells[index] if fit else None


def _alter(text: _Text, wanted: ast.expr, place: random.Random, rng: random.Random) -> _Edit | None:
    """Make a literal another one of the same type; None where it holds no number and no letter."""
    leaves = list(leaves_of(wanted)) if is_literal(wanted) else []
    place.shuffle(leaves)
    for leaf in leaves:
        start, end = text.span(leaf)
        old = text.source[start:end]
        if isinstance(leaf.value, int | float):
            new = number_of(old, text.numbers, rng) or other_number(old, rng)
        else:
            new = word_of(old, text.words, place, rng) or other_string(old, place, rng)
        if new is not None and differ(leaf.value, new):
            return _Edit(start, end, new)
    return None
