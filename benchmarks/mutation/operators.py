"""Mechanical changes of a syntax tree: what a slip of the hand would leave behind."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any


def _table(text: str) -> dict[Any, list[Any]]:
    """Return the classes of ast that may take the place of the first of each group."""
    groups = [[getattr(ast, name) for name in group.split()] for group in text.split(",")]
    return {first: others for first, *others in groups}


_COMPARISONS = _table(
    "Lt LtE Gt, LtE Lt GtE, Gt GtE Lt, GtE Gt LtE, Eq NotEq, NotEq Eq, In NotIn, NotIn In, Is IsNot, IsNot Is"
)
_ARITHMETIC = _table(
    "Add Sub, Sub Add, Mult Div, Div Mult, FloorDiv Mult, Mod FloorDiv, Pow Mult, BitAnd BitOr, BitOr BitAnd"
)
_PAIRS = (("min", "max"), ("minimum", "maximum"), ("argmin", "argmax"), ("any", "all"), ("floor", "ceil"))
_NAMES = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}


def changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield (kind, what takes the place of the node) for each change of it."""
    match node:
        case ast.Compare(left, [operator, *more], values):
            for other in _COMPARISONS[type(operator)]:
                yield "comparison", ast.Compare(left, [other(), *more], values)
        case ast.BinOp(left, operator, right) if type(operator) in _ARITHMETIC:
            if not any(isinstance(side, ast.JoinedStr) or _is_text(side) for side in (left, right)):
                yield "arithmetic", ast.BinOp(left, _ARITHMETIC[type(operator)][0](), right)
        case ast.AugAssign(target, operator, value) if type(operator) in _ARITHMETIC:
            yield "arithmetic", ast.AugAssign(target, _ARITHMETIC[type(operator)][0](), value)
            yield "dropped", ast.Pass()
        case ast.BoolOp(operator, values):
            yield "and, or", ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.USub() | ast.Not(), operand):
            yield "sign", operand
        case ast.Subscript(value, ast.Constant(int() as index), context):
            other_index = 1 - index if index in (0, 1) else index - 1
            yield "index", ast.Subscript(value, ast.Constant(other_index), context)
        case ast.Constant(bool() as value):
            yield "constant", ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield "constant", ast.Constant(value + 1)
        case ast.Name(name, context) if name in _NAMES:
            yield "min, max", ast.Name(_NAMES[name], context)
        case ast.Attribute(value, name, context) if name in _NAMES:
            yield "min, max", ast.Attribute(value, _NAMES[name], context)
        case ast.Call(function, [first, second, *rest], keywords):
            is_starred = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
            if not is_starred and ast.unparse(function).split(".")[-1] not in _NAMES:
                yield "arguments", ast.Call(function, [second, first, *rest], keywords)
        case ast.If(test, body, other) if "TYPE_CHECKING" not in ast.unparse(test):
            yield "condition", ast.If(ast.UnaryOp(ast.Not(), test), body, other)
        case ast.IfExp(test, body, other):
            yield "condition", ast.IfExp(test, other, body)
        case ast.Expr(ast.Call()) | ast.Raise() | ast.Continue() | ast.Break():
            yield "dropped", ast.Pass()
        case ast.Assign([ast.Subscript() | ast.Attribute()]):
            yield "dropped", ast.Pass()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
