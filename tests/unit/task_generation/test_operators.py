"""Each operator changes what it says and nothing else."""

import ast
import gc
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import libcst
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farm.task_generation.mutation.edits import ByteEdit, apply_edits, function_dump, functions_of, parse_source
from farm.task_generation.mutation.operators import Site, find_sites

SOURCE = '''\
import os


class Stack(Base):
    """A stack."""

    limit = 3

    def push(self, item, times: int = 1) -> "int":
        """Put it on top."""
        # A guard.
        if item is None:
            return 0
        if times < 1 and not self.closed:  # told
            raise ValueError("too few")
        elif self.full:
            self.grow()
        else:
            self.size -= 2
        self.items = [item] * times
        self.last = item
        return len(self.items)

    @property
    def top(self):
        try:
            return self.items[-1]
        except (IndexError, KeyError):
            value = None
        except TypeError:
            value = "none"
        return value if value else self.default

    def read(self):
        try:
            return os.read(self.fd, 10)
        except OSError:
            self.fd = None
            return b""
'''


def changed(source: str, operator: str, function: str | None = None) -> set[str]:
    """Return the changed lines for each site of the operator."""
    content = source.encode()
    found = set()
    for site in sites(source, operator):
        if function in (None, site.function):
            after = apply_edits(content, site.edits).decode()
            libcst.parse_module(after)
            before = source.splitlines()
            lines = [line for line in after.splitlines() if line not in before]
            gone = [line for line in before if line not in after.splitlines()]
            found.add("; ".join(line.strip() for line in (lines or [f"- {line.strip()}" for line in gone])))
    return found


def sites(source: str, operator: str | None = None) -> list[Site]:
    return [site for site in find_sites(source.encode()) if operator in (None, site.operator)]


def test_condition_faults() -> None:
    found = changed(SOURCE, "condition", "Stack.push")
    assert "if not (item is None):" in found
    assert "if item is not None:" in found
    assert "if times <= 1 and not self.closed:  # told" in found
    assert "if times < 1 or not self.closed:  # told" in found
    assert "if times < 1:  # told" in found
    assert "if not self.closed:  # told" in found
    assert "elif not (self.full):" in found
    assert "if not (times < 1 and not self.closed):  # told" in found


def test_negation_is_removed() -> None:
    assert "if ready:" in changed("def f(ready):\n    if not ready:\n        g()\n", "condition")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a < b", "a <= b"),
        ("a <= b", "a < b"),
        ("a > b", "a >= b"),
        ("a >= b", "a > b"),
        ("a == b", "a != b"),
        ("a != b", "a == b"),
        ("a is b", "a is not b"),
        ("a is not b", "a is b"),
        ("a in b", "a not in b"),
        ("a not in b", "a in b"),
        ("a or b", "a and b"),
    ],
)
def test_comparison_faults(before: str, after: str) -> None:
    assert f"return {after}" in changed(f"def f(a, b):\n    return {before}\n", "condition")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a + b", "a - b"),
        ("a - b", "a + b"),
        ("a * b", "a + b"),
        ("a / b", "a // b"),
        ("a // b", "a / b"),
        ("a % b", "a // b"),
        ("a ** b", "a * b"),
        ("a << b", "a >> b"),
        ("a & b", "a | b"),
        ("a | b", "a & b"),
        ("a ^ b", "a | b"),
        ("a - b", "b - a"),
    ],
)
def test_operator_faults(before: str, after: str) -> None:
    assert f"return {after}" in changed(f"def f(a, b):\n    return {before}\n", "operator")


def test_assignment_operator_faults() -> None:
    assert "self.size += 2" in changed(SOURCE, "operator", "Stack.push")


def test_constant_faults() -> None:
    found = changed(SOURCE, "constant")
    assert {"return 1", 'raise ValueError("too fe")', "self.size -= 3", "self.size -= 1", 'value = "non"'} <= found
    assert changed("def f():\n    return True\n", "constant") == {"return False"}
    assert not any("A stack" in line or "limit" in line or "times: int" in line for line in found)


def test_removed_assignments() -> None:
    found = changed(SOURCE, "removed assignment")
    assert {"- self.last = item", "- self.items = [item] * times", "pass"} <= found


def test_removed_calls() -> None:
    assert changed(SOURCE, "removed call") == {"pass"}


def test_removed_branches() -> None:
    found = changed(SOURCE, "removed branch")
    assert "- # A guard.; - if item is None:; - return 0" in found
    assert "- elif self.full:; - self.grow()" in found
    assert "- else:; - self.size -= 2" in found


def test_swapped_bodies() -> None:
    source = "def f(a):\n    if a:\n        x = 1\n    else:\n        y = 2\n        z = 3\n    return 4 if a else 5\n"
    (both, choice) = (apply_edits(source.encode(), site.edits).decode() for site in sites(source, "swapped bodies"))
    assert both.startswith("def f(a):\n    if a:\n        y = 2\n        z = 3\n    else:\n        x = 1\n")
    assert choice.endswith("return 5 if a else 4\n")


def test_shuffled_statements() -> None:
    source = 'def f():\n    """Doc."""\n    a = 1  # one\n    b = a\n    return b\n'
    (site,) = sites(source, "shuffled statements")
    assert apply_edits(source.encode(), site.edits).decode() == source.replace("a = 1  #", "b = a  #").replace(
        "    b = a\n    return", "    a = 1\n    return"
    )


def test_removed_handlers() -> None:
    found = changed(SOURCE, "removed handler")
    assert "- except (IndexError, KeyError):; - value = None" in found
    assert '- except TypeError:; - value = "none"' in found
    assert "raise" in found


def test_removed_methods() -> None:
    removed = {site.function: apply_edits(SOURCE.encode(), site.edits) for site in sites(SOURCE, "removed method")}
    assert removed.keys() == {"Stack.push", "Stack.top", "Stack.read"}
    assert b"@property" not in removed["Stack.top"]
    assert [name for name, _ in functions_of(ast.parse(removed["Stack.top"]))] == ["Stack.push", "Stack.read"]


def test_sites_have_their_lines() -> None:
    lines = SOURCE.splitlines()
    for site in sites(SOURCE, "constant"):
        assert 1 <= site.first <= site.last <= len(lines)
    (guard,) = (site for site in sites(SOURCE, "removed branch") if site.first == 12)
    assert lines[guard.first - 1].strip() == "if item is None:"


def test_every_change_stays_in_one_function() -> None:
    tree = ast.parse(SOURCE)
    names = {name for name, _ in functions_of(tree)}
    for site in sites(SOURCE):
        after = parse_source(apply_edits(SOURCE.encode(), site.edits))
        assert after is not None
        for name in names - {site.function}:
            assert function_dump(after, name) == function_dump(tree, name)


def test_function_dump_ignores_layout() -> None:
    one = ast.parse("def f(a):\n    return a  # told\n")
    other = ast.parse("def f( a ):\n\n    return (a)\n")
    assert (
        function_dump(one, "f")
        == function_dump(other, "f")
        != function_dump(ast.parse("def f(a):\n    return -a\n"), "f")
    )


def test_positions_are_bytes() -> None:
    source = 'def f(a):\n    b = "äöü"\n    return a < b\n'
    assert "return a <= b" in changed(source, "condition")


def test_windows_line_ends_are_kept() -> None:
    source = SOURCE.replace("\n", "\r\n").encode()
    for site in find_sites(source):
        assert b"\n" not in apply_edits(source, site.edits).replace(b"\r\n", b"")


@pytest.mark.parametrize(
    "source", [b"def f(:\n", b"\xff\xfe", b"# -*- coding: latin-1 -*-\ndef f():\n    return 1\n", b""]
)
def test_unreadable_source_has_no_sites(source: bytes) -> None:
    assert find_sites(source) == []


def test_overlapping_edits_are_refused() -> None:
    with pytest.raises(ValueError, match="overlap"):
        apply_edits(b"abcdef", [ByteEdit(0, 3, b""), ByteEdit(2, 4, b"")])


@given(st.lists(st.integers(0, 40), min_size=2, max_size=8, unique=True))
@settings(max_examples=50, deadline=None)
def test_edits_are_applied_in_any_order(cuts: list[int]) -> None:
    source = bytes(range(65, 106))
    cuts.sort()
    edits = [ByteEdit(start, end, b"-") for start, end in zip(cuts[::2], cuts[1::2], strict=False)]
    assert apply_edits(source, edits) == apply_edits(source, edits[::-1])
    assert apply_edits(source, []) == source


def test_site_order_is_stable() -> None:
    assert find_sites(SOURCE.encode()) == find_sites(SOURCE.encode())
    assert textwrap.dedent(SOURCE) == SOURCE


def test_sites_are_found_while_another_thread_parses() -> None:
    """Python 3.11 raises SystemError if two threads build syntax trees; a garbage collection switches threads."""
    numbers = ", ".join(f"{number}, 2.5, 'text {number}'" for number in range(100))
    other = "\n".join(f"def f{number}(a, b): return [a and (b or a)]" for number in range(400))
    done = threading.Event()

    def parse() -> None:
        while not done.is_set():
            assert parse_source(other)

    def collected(phase: str, info: dict[str, int]) -> None:
        for _ in range(3):
            pass

    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.callbacks.append(collected)
    gc.set_threshold(10)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as executor:
            parsing = executor.submit(parse)
            try:
                found = find_sites(f"def f():\n    return [{numbers}]\n".encode())
            finally:
                done.set()
            parsing.result()
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*threshold)
        gc.callbacks.remove(collected)
    assert len(found) > 200


@pytest.mark.parametrize("depth", [150, 900, 3000, 30_000])
@pytest.mark.parametrize("kind", ["sum", "attributes"])
def test_too_deep_source_has_no_sites(kind: str, depth: int) -> None:
    nested = {"sum": "1+" * depth + "1", "attributes": "a" + ".b" * depth}[kind]
    source = f"def f(a):\n    x = {nested}\n    return a > 3\n".encode()
    assert find_sites(source) == []
    assert parse_source(source) is None
    assert find_sites(source.replace(nested.encode(), b"1"))
