"""Mutation operators: find the places of a source file that a fault fits, and return the faults as byte edits.

The places are found with libcst. Bytes outside the edits stay the same, comments and layout included.
"""

from dataclasses import dataclass

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper

from farm.core.nesting_limit import TooDeep
from farm.grading.decoys.python_source import check_source_depth
from farm.task_generation.mutation.edits import ByteEdit

_COMPARISONS: dict[type[cst.BaseCompOp], bytes] = {
    cst.LessThan: b"<=",
    cst.LessThanEqual: b"<",
    cst.GreaterThan: b">=",
    cst.GreaterThanEqual: b">",
    cst.Equal: b"!=",
    cst.NotEqual: b"==",
    cst.Is: b"is not",
    cst.IsNot: b"is",
    cst.In: b"not in",
    cst.NotIn: b"in",
}
_BINARY: dict[type[cst.CSTNode], bytes] = {
    cst.Add: b"-",
    cst.Subtract: b"+",
    cst.Multiply: b"+",
    cst.Divide: b"//",
    cst.FloorDivide: b"/",
    cst.Modulo: b"//",
    cst.Power: b"*",
    cst.LeftShift: b">>",
    cst.RightShift: b"<<",
    cst.BitAnd: b"|",
    cst.BitOr: b"&",
    cst.BitXor: b"|",
    cst.AddAssign: b"-=",
    cst.SubtractAssign: b"+=",
    cst.MultiplyAssign: b"+=",
    cst.BitAndAssign: b"|=",
    cst.BitOrAssign: b"&=",
}
REMOVED_METHOD = "removed method"
_MAX_STRING_CHARS = 40
_EXITS = (cst.Return, cst.Raise, cst.Break, cst.Continue)


@dataclass(frozen=True, slots=True)
class Site:
    """A place in ``function`` (qualified name) that a fault of the kind ``operator`` fits.

    The tests that execute a line from ``first`` to ``last``, counted from 1, may notice the fault.
    """

    operator: str
    function: str
    first: int
    last: int
    edits: tuple[ByteEdit, ...]


def find_sites(source: bytes) -> list[Site]:
    """Return the sites in functions and methods by position and operator.

    Empty if libcst cannot parse the source, or if it is nested too deeply.
    """
    try:
        check_source_depth(source)  # libcst needs minutes for deep nesting, and its own limit is the stack
        wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
        if wrapper.module.encoding.lower().replace("_", "-") not in ("utf-8", "ascii", "us-ascii"):
            return []
        visitor = _Finder(source, wrapper)
        wrapper.module.visit(visitor)
    except (cst.ParserSyntaxError, SyntaxError, UnicodeDecodeError, TooDeep):
        return []
    return sorted(visitor.sites, key=lambda site: (site.first, site.edits, site.operator))


class _Finder(cst.CSTVisitor):
    def __init__(self, source: bytes, wrapper: MetadataWrapper) -> None:
        super().__init__()
        self.sites: list[Site] = []
        self._source = source
        self._spans = wrapper.resolve(ByteSpanPositionProvider)
        self._scope: list[tuple[str, bool]] = []
        self._statements: list[int] = []
        self._line_starts = [0, *(at + 1 for at, byte in enumerate(source) if byte == 10)]

    # Positions

    def _span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the byte span without white space around it, which the span of a keyword operator includes."""
        span = self._spans[node]
        start, end = span.start, span.start + span.length
        while end > start and self._source[end - 1 : end].isspace():
            end -= 1
        while start < end and self._source[start : start + 1].isspace():
            start += 1
        return start, end

    def _text(self, node: cst.CSTNode) -> bytes:
        start, end = self._span(node)
        return self._source[start:end]

    def _line(self, at: int) -> int:
        low, high = 0, len(self._line_starts)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._line_starts[middle] <= at else (low, middle)
        return low + 1

    def _whole_lines(self, start: int, end: int) -> tuple[int, int]:
        """Extend a byte span to whole lines, comments right above included."""
        first = self._line(start) - 1
        while first and self._source[self._line_starts[first - 1] : self._line_starts[first]].lstrip()[:1] == b"#":
            first -= 1
        newline = self._source.find(b"\n", end)
        return self._line_starts[first], len(self._source) if newline < 0 else newline + 1

    @property
    def _function(self) -> str:
        return ".".join(name for name, _ in self._scope)

    @property
    def _in_function(self) -> bool:
        return any(is_function for _, is_function in self._scope)

    def _add(self, operator: str, *edits: ByteEdit, lines: tuple[int, int] | None = None, function: str = "") -> None:
        """Add a site. ``lines``: byte span of the executed lines, by default from the statement to the last edit."""
        if not self._in_function and not function:
            return
        start = self._statements[-1] if self._statements else min(edit.start for edit in edits)
        start, end = lines or (start, max(edit.end for edit in edits))
        self.sites.append(
            Site(operator, function or self._function, self._line(start), self._line(max(start, end - 1)), edits)
        )

    def _replace(self, operator: str, node: cst.CSTNode, text: bytes) -> None:
        start, end = self._span(node)
        if self._source[start:end] != text:
            self._add(operator, ByteEdit(start, end, text))

    # Scopes and ignored nodes

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        self._scope.append((node.name.value, True))
        node.body.visit(self)
        self._scope.pop()
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        self._scope.append((node.name.value, False))
        self._visit_methods(node)
        node.body.visit(self)
        self._scope.pop()
        return False

    def visit_Annotation(self, node: cst.Annotation) -> bool:
        return False

    def visit_Parameters(self, node: cst.Parameters) -> bool:
        return False

    def visit_Assert(self, node: cst.Assert) -> bool:
        return False

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> bool:
        self._statements.append(self._span(node)[0])
        return not _is_string_statement(node)

    def leave_SimpleStatementLine(self, original_node: cst.SimpleStatementLine) -> None:
        self._statements.pop()

    # Conditions

    def visit_If(self, node: cst.If) -> bool:
        self._statements.append(self._span(node)[0])
        self._negate(node.test)
        self._visit_branches(node)
        node.test.visit(self)
        self._statements.pop()
        node.body.visit(self)
        if node.orelse is not None:
            node.orelse.visit(self)
        return False

    def visit_While(self, node: cst.While) -> bool:
        self._statements.append(self._span(node)[0])
        node.test.visit(self)
        self._statements.pop()
        node.body.visit(self)
        if node.orelse is not None:
            node.orelse.visit(self)
        return False

    def visit_IfExp(self, node: cst.IfExp) -> None:
        self._negate(node.test)
        self._swap("swapped bodies", node.body, node.orelse)

    def _negate(self, test: cst.BaseExpression) -> None:
        if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            self._replace("condition", test, self._text(test.expression))
        else:
            self._replace("condition", test, b"not (" + self._text(test) + b")")

    def visit_BooleanOperation(self, node: cst.BooleanOperation) -> None:
        self._replace("condition", node.operator, b"or" if isinstance(node.operator, cst.And) else b"and")
        for side in (node.left, node.right):
            if not node.lpar:
                self._replace("condition", node, self._text(side))

    def visit_Comparison(self, node: cst.Comparison) -> None:
        for target in node.comparisons:
            self._replace("condition", target.operator, _COMPARISONS[type(target.operator)])

    # Operators and constants

    def visit_BinaryOperation(self, node: cst.BinaryOperation) -> None:
        self._visit_operator(node.operator)
        if isinstance(node.operator, cst.Subtract | cst.Divide | cst.FloorDivide):
            self._swap("operator", node.left, node.right)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self._visit_operator(node.operator)

    def _visit_operator(self, operator: cst.CSTNode) -> None:
        text = _BINARY.get(type(operator))
        if text is not None:
            self._replace("operator", operator, text)

    def visit_Integer(self, node: cst.Integer) -> None:
        value = int(node.value, 0)
        self._replace("constant", node, str(value + 1).encode())
        if value > 1:
            self._replace("constant", node, str(value - 1).encode())

    def visit_Name(self, node: cst.Name) -> None:
        if node.value in ("True", "False"):
            self._replace("constant", node, b"False" if node.value == "True" else b"True")

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        if "\\" in node.value or len(node.quote) != 1 or not 0 < len(node.raw_value) <= _MAX_STRING_CHARS:
            return
        body, quote = node.value[:-1], node.value[-1]
        self._replace("constant", node, (body[:-1] + quote).encode())

    def visit_FormattedString(self, node: cst.FormattedString) -> bool:
        return False

    # Statements

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:
        for index, statement in enumerate(node.body):
            only = len(node.body) == 1
            if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
                small = statement.body[0]
                if isinstance(small, cst.Assign | cst.AugAssign):
                    self._remove("removed assignment", statement, only)
                elif isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
                    self._remove("removed call", statement, only)
            after = node.body[index + 1] if index + 1 < len(node.body) else None
            if after is not None and _may_move(statement) and _may_move(after):
                self._swap("shuffled statements", statement, after)

    def _remove(self, operator: str, node: cst.CSTNode, only: bool) -> None:
        start, end = self._span(node)
        edit = ByteEdit(start, end, b"pass") if only else ByteEdit(*self._whole_lines(start, end), b"")
        self._add(operator, edit, lines=(start, end))

    def _swap(self, operator: str, one: cst.CSTNode, other: cst.CSTNode) -> None:
        first, second = self._span(one), self._span(other)
        if self._source[slice(*first)] == self._source[slice(*second)]:
            return
        edits = ByteEdit(*first, self._source[slice(*second)]), ByteEdit(*second, self._source[slice(*first)])
        self._add(operator, *edits, lines=(min(first[0], second[0]), max(first[1], second[1])))

    # Branches and handlers

    def _visit_branches(self, node: cst.If) -> None:
        start, end = self._span(node)
        orelse = node.orelse
        if orelse is None:
            if self._source[start : start + 2] == b"if" and _is_guard(node):
                self._add(
                    "removed branch",
                    ByteEdit(*self._whole_lines(start, end), b""),
                    lines=(start, self._condition_end(node)),
                )
            return
        if not isinstance(node.body, cst.IndentedBlock):
            return
        if isinstance(orelse, cst.Else):
            inner = self._span(orelse)
            self._add("removed branch", ByteEdit(*self._whole_lines(*inner), b""), lines=self._span(orelse.body))
            if isinstance(orelse.body, cst.IndentedBlock) and isinstance(node.body, cst.IndentedBlock):
                self._swap("swapped bodies", node.body, orelse.body)
            return
        first, last = self._span(orelse)
        if orelse.orelse is not None:
            last = self._line_starts[self._line(self._span(orelse.orelse)[0]) - 1] - 1
        cut = self._line_starts[self._line(first) - 1], min(last + 1, len(self._source))
        self._add("removed branch", ByteEdit(*cut, b""), lines=self._span(orelse.test))

    def _condition_end(self, node: cst.If) -> int:
        """Return the position behind the condition."""
        return self._span(node.test)[1]

    def visit_Try(self, node: cst.Try) -> None:
        for handler in node.handlers:
            if not isinstance(handler.body, cst.IndentedBlock):
                continue
            body = self._span(handler.body)
            if len(node.handlers) > 1 or (node.finalbody is not None and node.orelse is None):
                self._add("removed handler", ByteEdit(*self._whole_lines(*self._span(handler)), b""), lines=body)
            elif self._source[slice(*body)] != b"raise":
                self._add("removed handler", ByteEdit(*body, b"raise"), lines=body)

    # Methods

    def _visit_methods(self, node: cst.ClassDef) -> None:
        if len(node.body.body) < 2:
            return
        for statement in node.body.body:
            if not isinstance(statement, cst.FunctionDef) or statement.name.value == "__init__":
                continue
            start, end = self._span(statement)
            for decorator in statement.decorators:
                start = min(start, self._span(decorator)[0])
            name = f"{self._function}.{statement.name.value}"
            edit = ByteEdit(*self._whole_lines(start, end), b"")
            self._add(REMOVED_METHOD, edit, lines=self._span(statement.body), function=name)


def _is_string_statement(node: cst.SimpleStatementLine) -> bool:
    """Return whether the statement is a docstring or another bare string."""
    small = node.body[0]
    return isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString | cst.ConcatenatedString)


def _may_move(node: cst.CSTNode) -> bool:
    if not isinstance(node, cst.SimpleStatementLine) or _is_string_statement(node):
        return False
    return not isinstance(node.body[-1], (*_EXITS, cst.Import, cst.ImportFrom, cst.Pass, cst.Global, cst.Nonlocal))


def _is_guard(node: cst.If) -> bool:
    """Return whether the body is a few statements that leave the block, so that the rest makes sense without it."""
    block = node.body
    if not isinstance(block, cst.IndentedBlock) or len(block.body) > 3:
        return False
    last = block.body[-1]
    return isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], _EXITS)
