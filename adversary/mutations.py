"""Make mutants: small changes of a program, one at a time, from its syntax tree.

Texts for the reader, annotations and decorators stay as they are. `sample` draws mutants with a seed, in
proportion to the code of each module, so that nobody chooses them.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import itertools
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
COMPARISON: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
#: Names exchanged for each other, wherever they are called.
TWINS = [("min", "max"), ("amin", "amax"), ("argmin", "argmax"), ("minimum", "maximum"), ("mean", "sum")]
TWINS += [("any", "all"), ("floor", "ceil"), ("zeros", "ones"), ("zeros_like", "ones_like"), ("sin", "cos")]
TWINS += [("clamp_min", "clamp_max"), ("head", "tail"), ("first", "last"), ("cumsum", "cumprod")]
SWAPPED = {a: b for one, other in TWINS for a, b in ((one, other), (other, one))}
#: Calls replaced by what they are applied to.
REMOVED = {
    "detach",
    "abs",
    "clamp",
    "clamp_min",
    "clamp_max",
    "clip",
    "sqrt",
    "square",
    "exp",
    "log",
    "log1p",
}
REMOVED |= {"expm1", "flip", "sort", "sorted", "reversed", "clone", "copy", "cumsum", "contiguous", "double"}
REMOVED |= {"softmax", "log_softmax", "sigmoid", "tanh", "floor", "ceil", "round", "isfinite", "unique"}
REMOVED |= {"drop_nulls", "strip", "lower"}
#: Calls whose arguments are words for the reader.
TALK = {"warn", "print", "debug", "info", "warning", "echo", "warn_once"}
#: Calls whose first two arguments cannot be taken for each other, or may be.
UNALIKE = {
    "isinstance",
    "getattr",
    "hasattr",
    "setattr",
    "zip",
    "cast",
    "issubclass",
    "partial",
    "map",
    "field",
}
COMMUTATIVE = {"min", "max", "minimum", "maximum", "equal", "array_equal", "addcmul", "addcmul_", "logaddexp"}
#: Functions that only describe.
DESCRIBING = {"__repr__", "__str__", "extra_repr"}


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    file: str
    line: int
    operator: str
    before: str
    after: str
    #: Characters of the file replaced, and the text put there.
    start: int = 0
    end: int = 0
    text: str = ""
    #: First and last line of the statement (of the function for a default, of the file for a constant).
    reach: tuple[int, int] = (0, 0)

    @property
    def key(self) -> str:
        """Identify the change by its text, whatever the line."""
        return f"{self.file} | {self.operator} | {self.before} | {self.after}"

    def apply(self, source: str) -> str:
        """Return the changed source."""
        return source[: self.start] + self.text + source[self.end :]


def call_name(node: ast.AST) -> str:
    """Return the last part of the name of a called function, or an empty string."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def copy_with(node: ast.AST, **changes: Any) -> ast.AST:
    """Return a shallow copy of a node with other fields."""
    return type(node)(**{**dict(ast.iter_fields(node)), **changes})


def of_binary(node: ast.BinOp) -> Iterator[tuple[str, ast.AST]]:
    """Exchange an arithmetic operator, unless it joins texts or types."""
    sides = (node.left, node.right)
    words = any(isinstance(s, ast.JoinedStr | ast.List | ast.Tuple) for s in sides)
    words |= any(isinstance(s, ast.Constant) and isinstance(s.value, str | None) for s in sides)
    if type(node.op) in ARITHMETIC and not words:
        yield "arithmetic", copy_with(node, op=ARITHMETIC[type(node.op)]())


def of_comparison(node: ast.Compare) -> Iterator[tuple[str, ast.AST]]:
    """Exchange a comparison for the nearest other one."""
    for i, op in enumerate(node.ops):
        yield "comparison", copy_with(node, ops=[*node.ops[:i], COMPARISON[type(op)](), *node.ops[i + 1 :]])


def of_constant(node: ast.Constant) -> Iterator[tuple[str, ast.AST]]:
    """Flip a flag, add one to an integer, double a float."""
    if isinstance(node.value, bool):
        yield "flag", ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield "constant", ast.Constant(node.value + 1)
    elif isinstance(node.value, float):
        yield "constant", ast.Constant(2 * node.value if node.value else 1.0)


def of_boolean(node: ast.BoolOp) -> Iterator[tuple[str, ast.AST]]:
    """Exchange `and` and `or`."""
    yield "boolean", copy_with(node, op=ast.And() if isinstance(node.op, ast.Or) else ast.Or())


def of_unary(node: ast.UnaryOp) -> Iterator[tuple[str, ast.AST]]:
    """Drop a minus, a `not` or a `~`."""
    yield "unary", node.operand


def of_call(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    """Swap two arguments, exchange a function for its twin, or drop the call."""
    name = call_name(node)
    first_two = node.args[:2]
    plain = not any(isinstance(a, ast.Starred | ast.Constant | ast.JoinedStr) for a in first_two)
    if len(first_two) == 2 and plain and name not in UNALIKE | COMMUTATIVE:
        yield "swapped arguments", copy_with(node, args=[*first_two[::-1], *node.args[2:]])
    if name in SWAPPED and (isinstance(node.func, ast.Attribute) or SWAPPED[name] in dir(builtins)):
        twin = SWAPPED[name]
        func = ast.Name(twin) if isinstance(node.func, ast.Name) else copy_with(node.func, attr=twin)
        yield "twin", copy_with(node, func=func)
    if name in REMOVED:
        module = isinstance(node.func, ast.Name) or getattr(node.func.value, "id", "") in (
            "torch",
            "np",
            "math",
            "F",
        )
        if module and node.args:
            yield "removed call", node.args[0]
        elif not module:
            yield "removed call", node.func.value
    for i, keyword in enumerate(node.keywords):
        if keyword.arg in ("dim", "axis", "keepdim", "generator", "dtype", "weights", "descending", "stable"):
            yield "removed keyword", copy_with(node, keywords=node.keywords[:i] + node.keywords[i + 1 :])


def of_condition(node: ast.If | ast.IfExp | ast.While) -> Iterator[tuple[str, ast.AST]]:
    """Negate a condition; switch off a check that raises."""
    body = node.body if isinstance(node.body, list) else [node.body]
    if isinstance(body[-1], ast.Raise):
        yield "dropped check", copy_with(node, test=ast.Constant(False))
    else:
        yield "negated condition", copy_with(node, test=ast.UnaryOp(ast.Not(), node.test))


def of_statement(node: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    """Remove a statement whose absence may go unnoticed."""
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    stored = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    if called or stored or isinstance(node, ast.AugAssign | ast.Continue | ast.Break):
        yield "removed statement", ast.Pass()
    if isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
        yield "arithmetic", copy_with(node, op=ARITHMETIC[type(node.op)]())


OPERATORS: dict[type | tuple[type, ...], Callable[[Any], Iterator[tuple[str, ast.AST]]]] = {
    ast.BinOp: of_binary,
    ast.Compare: of_comparison,
    ast.Constant: of_constant,
    ast.BoolOp: of_boolean,
    ast.UnaryOp: of_unary,
    ast.Call: of_call,
    (ast.If, ast.IfExp, ast.While): of_condition,
    (ast.AugAssign, ast.Expr, ast.Assign, ast.Continue, ast.Break): of_statement,
}


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.AST]]:
    """Yield the operator, the node to replace and its replacement, for one node."""
    for kinds, operator in OPERATORS.items():
        if isinstance(node, kinds):
            for name, new in operator(node):
                if isinstance(node, ast.If | ast.While):  # only the condition, not the block below it
                    yield name, node.test, new.test
                else:
                    yield name, node, new


def is_words(node: ast.AST) -> bool:
    """Tell whether a node holds only text for the reader or for the type checker."""
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert):
        return True
    if isinstance(node, ast.FunctionDef) and node.name in DESCRIBING:
        return True
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return True
    if call_name(node) in {"TypeVar", "ParamSpec", "NewType", "Literal"}:
        return True
    return call_name(node) in TALK or (isinstance(node, ast.Expr) and call_name(node.value) in TALK)


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the children that are code: no annotations, no decorators."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child


def span(node: ast.stmt, scope: ast.AST) -> tuple[int, int]:
    """Return the lines whose execution says that a statement (or the head of a block) was executed."""
    if isinstance(
        scope, ast.Module | ast.ClassDef
    ):  # runs at import: any line of the module may depend on it
        return (
            (1, sys.maxsize) if not isinstance(node, ast.FunctionDef) else (node.lineno, node.end_lineno or 0)
        )
    if isinstance(node, ast.FunctionDef):
        return node.lineno, node.end_lineno or 0
    body = getattr(node, "body", None)
    return node.lineno, max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno


def walk(node: ast.AST, statement: ast.stmt, scope: ast.AST) -> Iterator[tuple[ast.AST, ast.stmt, ast.AST]]:
    """Yield all nodes that may change, each with its statement and the function or class around that."""
    for child in parts(node):
        if is_words(child):
            continue
        inside = child if isinstance(child, ast.stmt) else statement
        around = scope
        if isinstance(child, ast.stmt) and isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            around = node
        yield child, inside, around
        yield from walk(child, inside, around)


def fingerprint(code: CodeType) -> tuple[Any, ...]:
    """Return what a code object does, without its line numbers."""
    constants = tuple(
        fingerprint(c) if isinstance(c, CodeType) else (type(c), repr(c)) for c in code.co_consts
    )
    return code.co_code, code.co_names, code.co_varnames, constants


def mutants(source: str, file: str) -> list[Mutant]:
    """Make all mutants of a source; some may not compile or be the same program."""
    # ast counts columns in bytes; the sources are cut as text
    lines = source.splitlines(keepends=True)
    begins = [0]
    for line in lines:
        begins.append(begins[-1] + len(line))

    def position(line: int, column: int) -> int:
        return begins[line - 1] + len(lines[line - 1].encode()[:column].decode())

    tree = ast.parse(source)
    found = []
    for node, statement, scope in walk(tree, tree, tree):
        for operator, old, new in changes(node):
            start = position(old.lineno, old.col_offset)
            end = position(old.end_lineno, old.end_col_offset)
            text = ast.unparse(ast.fix_missing_locations(new))
            text = f"({text})" if isinstance(new, ast.expr) else text
            before = " ".join(source[start:end].split())
            words = context(before, text, source, (start, end))
            found.append(Mutant(file, old.lineno, operator, *words, start, end, text, span(statement, scope)))
    return list({m.key: m for m in found}.values())


def valid(ordered: list[Mutant], source: str) -> Iterator[Mutant]:
    """Leave out mutants that do not compile, or are the same program as the original or one before."""
    seen = {fingerprint(compile(source, "original", "exec"))}
    for mutant in ordered:
        with contextlib.suppress(SyntaxError, ValueError):
            program = fingerprint(compile(mutant.apply(source), "original", "exec"))
            if program not in seen:
                seen.add(program)
                yield mutant


def context(before: str, after: str, source: str, cut: tuple[int, int], around: int = 30) -> tuple[str, str]:
    """Return the text before and after a change, with some of the line around it."""
    left = source[source.rfind("\n", 0, cut[0]) + 1 : cut[0]].lstrip()[-around:]
    stop = source.find("\n", cut[1])
    right = source[cut[1] : stop if stop >= 0 else None][:around].rstrip()
    return f"{left}{before}{right}", f"{left}{after}{right}"


def sample(sources: dict[str, str], number: int, seed: int) -> list[Mutant]:
    """Draw mutants in proportion to the code of each module, at most one per line while lines last."""
    made = {file: mutants(source, file) for file, source in sources.items()}
    total = sum(map(len, made.values()))
    exact = {file: number * len(found) / total for file, found in made.items()}
    share = {file: int(x) for file, x in exact.items()}
    for file in sorted(exact, key=lambda file: share[file] - exact[file])[: number - sum(share.values())]:
        share[file] += 1
    chosen = []
    for file, found in sorted(made.items()):
        order = random.Random(f"{seed}/{file}").sample(found, len(found))
        seen: Counter[int] = Counter()
        ranks = []
        for mutant in order:
            ranks.append(seen[mutant.line])
            seen[mutant.line] += 1
        ranked = [m for _, m in sorted(zip(ranks, order, strict=True), key=lambda pair: pair[0])]
        chosen += itertools.islice(valid(ranked, sources[file]), share[file])
    return chosen
