"""Files cut into chunks."""

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxes.search.index.chunks import LONGEST, WINDOW, Chunk, cut
from sandboxes.search.index.languages import outlines_of


def chunks_of(path: str, text: str) -> list[Chunk]:
    text = textwrap.dedent(text)
    return cut(text, text.split("\n"), outlines_of(path))


PYTHON = """\
import os

# What the shop sells.
GOODS = 3


# Sells one.
# Or none.
@decorated
@twice(
    3
)
async def sell(
    what,
):
    def inner():
        return what
    return inner


class Shop(Base):
    '''Where it is sold.'''

    size = 3

    def open(self):
        return 1

    class Door:
        def shut(self): return 2

    colour = 4


if GOODS:
    def late():
        return 5

main()
"""


def test_python_is_chunked_by_definition() -> None:
    assert [(c.first, c.last, c.name) for c in chunks_of("a.py", PYTHON)] == [
        (1, 4, ""),
        (7, 18, "sell"),
        (21, 24, "Shop"),
        (26, 27, "Shop.open"),
        (29, 29, "Shop.Door"),
        (30, 30, "Shop.Door.shut"),
        (32, 32, "Shop"),
        (35, 35, ""),
        (36, 37, "late"),
        (39, 39, ""),
    ]


def test_python_with_syntax_error_is_chunked_by_indentation() -> None:
    text = """\
import os

class A:
    x = 1

    def f(self):
        return (

    def g(self):
        return 2

y = 3
"""
    assert [(c.first, c.last, c.name) for c in chunks_of("a.py", text)] == [
        (1, 1, ""),
        (3, 4, "A"),
        (6, 7, "A.f"),
        (9, 10, "A.g"),
        (12, 12, ""),
    ]


JAVASCRIPT = """\
import x from 'y';
function f(a) {
  return a;
}
const g = async (b) => {
  return b;
};
class C extends D {
  m() {
    return 1;
  }
}
export default function h() {}
"""
TYPESCRIPT = """\
interface I {
  a: string;
}
type T = I;
enum E { A }
class C<T> {
  private m(): T { }
}
"""
GO = """\
package p

type S struct {
	A int
}

func (s *S) M() {}

func F() int {
	return 1
}
"""
RUST = """\
struct S;
impl S {
    fn m(&self) -> u8 {
        1
    }
}
fn f() {}
trait T { fn t(); }
"""
JAVA = """\
package p;
public class A {
  public A() {
  }
  int m(int x) {
    return x;
  }
}
"""
C = """\
#include <x.h>
struct s { int a; };
static char *f(struct s *p) {
  return 0;
}
"""
CPP = """\
namespace n {
class C {
 public:
  int m() { return 1; }
};
int C::k() { return 2; }
}
"""


@pytest.mark.parametrize(
    ("path", "text", "names"),
    [
        ("a.js", JAVASCRIPT, {"f", "g", "C", "C.m", "h"}),
        ("a.ts", TYPESCRIPT, {"I", "T", "E", "C", "C.m"}),
        ("a.tsx", "export const View = () => {\n  return <div>text</div>;\n};\n", {"View"}),
        ("a.go", GO, {"S", "M", "F"}),
        ("a.rs", RUST, {"S", "S.m", "f", "T"}),
        ("A.java", JAVA, {"A", "A.A", "A.m"}),
        ("a.c", C, {"s", "f"}),
        ("a.cpp", CPP, {"n", "n.C", "n.C.m", "n.k"}),
    ],
)
def test_other_languages_are_chunked_by_definition(path: str, text: str, names: set[str]) -> None:
    assert {chunk.name for chunk in chunks_of(path, text)} - {""} == names


def test_text_without_parser_is_chunked_into_windows() -> None:
    text = "\n".join(f"word {number}" for number in range(100))
    found = chunks_of("notes.rst", text)
    assert [(c.first, c.last, c.name) for c in found] == [(1, 34, ""), (35, 67, ""), (68, 100, "")]
    assert all(c.last - c.first < WINDOW for c in found)


def test_long_definition_becomes_several_chunks_with_its_name() -> None:
    body = "".join(f"    x{number} = {number}\n" for number in range(299))
    found = chunks_of("a.py", f"def long():\n{body}")
    assert [(c.first, c.last, c.name) for c in found] == [(1, 100, "long"), (101, 200, "long"), (201, 300, "long")]
    assert all(c.last - c.first < LONGEST for c in found)


@pytest.mark.parametrize(
    "text",
    [
        "x" + "(" * 100_000,
        "-" * 100_000 + "1",
        "x" + ".a" * 100_000,
        "x = " + "[" * 5000 + "]" * 5000,
        "1" + "+1" * 200_000,
        "if x:\n pass\n" + "elif x:\n pass\n" * 5000,
        "def f(): 'a\0b'",
        "def f():\n\tx\n        y",
        "\ufeffdef f():\n  pass",
        "class A:\n" + "".join(f"{' ' * n}class A{n}:\n" for n in range(1, 90)) + " " * 90 + "pass",
    ],
    ids=range(10),
)
def test_hostile_text_is_chunked(text: str) -> None:
    found = chunks_of("a.py", text)
    assert found
    assert found[-1].last <= text.count("\n") + 1


LINES = st.lists(
    st.sampled_from([
        "", "x = 1", "    y = 2", "def f():", "    def g(self):", "class A:", "    return 1", "# said", "    # said",
        "@made", ")", "async def h(): pass", "function f() {", "}", "if x:", "\tz",
    ]),
    max_size=40,
)  # a table, read across  # fmt: skip


@given(LINES, st.sampled_from(["a.py", "a.js", "a.go", "a.txt"]))
def test_each_line_with_word_is_in_one_chunk(lines: list[str], path: str) -> None:
    covered = [
        n for chunk in cut("\n".join(lines), lines, outlines_of(path)) for n in range(chunk.first, chunk.last + 1)
    ]
    assert len(covered) == len(set(covered))
    assert {n for n, line in enumerate(lines, 1) if any(map(str.isalnum, line))} <= set(covered)
    assert covered == sorted(covered)
