"""The language of predicates: arithmetic and comparisons over an artifact's rows, and nothing else.

    value("distance", method="FedEXP", dp="ldp") < value("distance", method="FedAvg", dp="ldp")
    all(value("accuracy", method="FedEXP", dp=d) > 50 for d in ["ldp", "cdp"])
    mean(values("step", round=between(41, 50), dp="cdp")) < mean(values("step", round=between(1, 10), dp="cdp"))

Functions on rows (each takes a measure, then labels):
  value      mean over seeds of the one row with these labels (or its text)
  std, runs  its standard deviation over seeds, its number of runs
  diverged   how many of them diverged
  values     list of the rows' values, ordered by the numeric label in which they differ
  rounds     the rounds of a series, in order
  paper      the paper's number for the row
Others:
  between(low, high)             as the value of a label: a range, ends included
  choices("label")               the label's values in order
  increasing(list, slack), decreasing(list, slack)   each step may fall short by `slack`
  crossing(list, level, places)  place of the first value at or above the level, infinite if there is none; places are a list as
                                 long, such as rounds(...) or values("seconds", ...), or else the positions 0, 1, ...
  r2(xs, ys)                     of the least-squares line
  abs, all, any, exp, len, log, max, mean, min, sorted, sqrt, sum, zip

The text is parsed to Python's syntax tree, of which a few node types are interpreted here; attributes, names with underscores,
keywords unpacked from elsewhere, lambdas and every other function are refused.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from dpfl_cli.config.errors import ConfigError, nearest


class Untestable(Exception):
    """A predicate asks for a number that is not there; the message says which."""


@dataclass(frozen=True)
class Between:
    """A range of a label's values, ends included."""

    low: float
    high: float


class Numbers(Protocol):
    """Where the functions on rows get their numbers; they raise Untestable where there is none."""

    def value(self, measure: str, **labels: Any) -> float | str: ...
    def std(self, measure: str, **labels: Any) -> float: ...
    def runs(self, measure: str, **labels: Any) -> float: ...
    def diverged(self, measure: str, **labels: Any) -> float: ...
    def values(self, measure: str, **labels: Any) -> list[float]: ...
    def rounds(self, measure: str, **labels: Any) -> list[float]: ...
    def paper(self, measure: str, **labels: Any) -> float: ...
    def choices(self, label: str) -> list[Any]: ...


ROW_FUNCTIONS = ("value", "std", "runs", "diverged", "values", "rounds", "paper")

_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: lambda base, exponent: float(base) ** float(exponent),  # of floats, so that no exponent takes for ever
}
_COMPARE: dict[type[ast.AST], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}


def _mean(numbers: Sequence[float]) -> float:
    return math.fsum(numbers) / len(_some(numbers))


def _some(numbers: Sequence[Any]) -> Sequence[Any]:
    if not numbers:
        raise Untestable("no numbers to take")
    return numbers


def _increasing(numbers: Sequence[float], slack: float = 0.0) -> bool:
    return all(after > before - slack for before, after in zip(_some(numbers)[:-1], numbers[1:], strict=True))


def _crossing(numbers: Sequence[float], level: float, places: Sequence[float] | None = None) -> float:
    if places is not None and len(places) != len(numbers):
        raise Untestable(f"crossing of {len(numbers)} numbers at {len(places)} places")
    found = range(len(numbers)) if places is None else places
    return next((float(place) for place, number in zip(found, numbers, strict=True) if number >= level), math.inf)


def _r2(xs: Sequence[float], ys: Sequence[float]) -> float:
    """R^2 = squared correlation, of the least-squares line."""
    if len(xs) != len(ys) or len(xs) < 3:
        raise Untestable("r2 needs two lists of equal length, at least 3")
    mean_x, mean_y = _mean(xs), _mean(ys)
    sxx = math.fsum((x - mean_x) ** 2 for x in xs)
    syy = math.fsum((y - mean_y) ** 2 for y in ys)
    sxy = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    if sxx * syy == 0:
        raise Untestable("r2 of a constant")
    return sxy**2 / (sxx * syy)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "all": lambda statements: all(_truth(one) for one in _some(statements)),
    "any": lambda statements: any(_truth(one) for one in _some(statements)),
    "between": Between,
    "crossing": _crossing,
    "decreasing": lambda numbers, slack=0.0: _increasing([-number for number in numbers], slack),
    "exp": math.exp,
    "increasing": _increasing,
    "len": len,
    "log": math.log,
    "max": lambda *numbers: max(_some(numbers[0] if len(numbers) == 1 else numbers)),
    "mean": _mean,
    "min": lambda *numbers: min(_some(numbers[0] if len(numbers) == 1 else numbers)),
    "r2": _r2,
    "sorted": sorted,
    "sqrt": math.sqrt,
    "sum": math.fsum,
    "zip": lambda *lists: list(zip(*lists, strict=True)),
}
_COMPARED = "<compared>"  # among the functions, under a name that no text can call
_NAMES = (*FUNCTIONS, *ROW_FUNCTIONS, "choices")


def check_expression(text: str, measures: Sequence[str], labels: Sequence[str]) -> None:
    """Refuses, without evaluating, what is outside the language, and measures or labels that do not exist.

    Raises:
      ConfigError: what is wrong, in one line.
    """
    _check(_parse(text), frozenset(), measures, labels)


def check_formula(text: str) -> None:
    """Refuses a formula outside the language: arithmetic and functions on numbers, with fact("path") for what a run knows."""
    _check(_parse(text), frozenset(), None, None, (*FUNCTIONS, "fact"))


def compute(text: str, fact: Callable[[str], Any]) -> float:
    """The number that a formula gives, such as 2 * fact("clients") * fact("dimension").

    Raises:
      ConfigError: it is outside the language, or not a number.
    """
    check_formula(text)
    try:
        return float(_number(_value(_parse(text), {}, {**FUNCTIONS, "fact": fact})))
    except (TypeError, ValueError, IndexError, ArithmeticError, Untestable) as error:
        raise ConfigError(f"formula {text!r}: {error}") from error


def number_of(text: str, numbers: Numbers, labels: Mapping[str, Any]) -> float:
    """The number that an expression over rows gives, such as values("seconds")[-1] / values("seconds", method="FedAvg")[-1].

    Args:
      labels: what functions on rows ask for where they do not name these labels themselves.

    Raises:
      ConfigError: it is outside the language, or not a number.
      Untestable: a number that it needs is missing.
    """
    tree = _parse(text)
    _check(tree, frozenset(), None, None)
    try:
        return float(_number(_value(tree, {}, {**FUNCTIONS, **_row_functions(numbers, labels)})))
    except ZeroDivisionError:
        raise Untestable("division by zero") from None
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        raise ConfigError(f"expression {text!r}: {error}") from error


def _row_functions(numbers: Numbers, labels: Mapping[str, Any]) -> dict[str, Callable[..., Any]]:
    return {name: partial(getattr(numbers, name), **labels) for name in ROW_FUNCTIONS} | {"choices": numbers.choices}


def evaluate(text: str, numbers: Numbers, compared: Callable[[Any, Any], None] | None = None) -> bool:
    """The truth of a predicate.

    Args:
      compared: told of every two numbers that are compared, in the order in which they are.

    Raises:
      ConfigError: it is outside the language, or not a yes-or-no statement.
      Untestable: a number that it needs is missing.
    """
    tree = _parse(text)
    _check(tree, frozenset(), None, None)
    functions = {**FUNCTIONS, **_row_functions(numbers, {})}
    if compared is not None:
        functions[_COMPARED] = compared
    try:
        result = _value(tree, {}, functions)
    except ZeroDivisionError:
        raise Untestable("division by zero") from None
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        raise ConfigError(f"predicate {text!r}: {error}") from error
    if not isinstance(result, bool):
        raise ConfigError(f"predicate {text!r} is a {type(result).__name__}, not a statement; compare it with something")
    return result


def _parse(text: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"predicate {text!r} cannot be read: {getattr(error, 'msg', error)}") from None


def _refuse(node: ast.AST, why: str) -> ConfigError:
    return ConfigError(f"{why} at '{ast.unparse(node)}' is not part of the language of predicates")


def _check(
    node: ast.expr,
    bound: frozenset[str],
    measures: Sequence[str] | None,
    labels: Sequence[str] | None,
    names: Sequence[str] = _NAMES,
) -> None:
    """Walks the tree; `bound` are the variables of the comprehensions around the node, `names` the functions there are."""

    def check(*children: ast.expr, more: frozenset[str] = frozenset()) -> None:
        for child in children:
            _check(child, bound | more, measures, labels, names)

    match node:
        case ast.BoolOp(values=parts):
            check(*parts)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=inner):
            check(inner)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            check(left, right)
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARE for op in ops):
            check(left, *others)
        case ast.Constant(value=bool() | int() | float() | str()):
            pass
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            check(*parts)
        case ast.Subscript(value=inner, slice=ast.Slice(lower=lower, upper=upper, step=None)):
            check(inner, *(part for part in (lower, upper) if part is not None))
        case ast.Subscript(value=inner, slice=index):
            check(inner, index)
        case ast.Name(id=name):
            if name not in bound:
                raise ConfigError(f"unknown name '{name}'; {nearest(name, [*names, *bound])}")
        case ast.GeneratorExp(elt=element, generators=loops) | ast.ListComp(elt=element, generators=loops):
            inside: frozenset[str] = frozenset()
            for loop in loops:
                check(loop.iter, more=inside)
                inside |= _targets(loop.target)
                check(*loop.ifs, more=inside)
            check(element, more=inside)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            if name not in names:
                raise ConfigError(f"unknown function '{name}'; {nearest(name, names)}")
            check(*arguments, *(keyword.value for keyword in keywords))
            if any(keyword.arg is None for keyword in keywords):
                raise _refuse(node, "unpacking")
            if name in ROW_FUNCTIONS:
                _check_row_call(node, name, measures, labels)
            elif keywords:
                raise _refuse(node, "a keyword")
        case _:
            raise _refuse(node, type(node).__name__)


def _check_row_call(node: ast.Call, name: str, measures: Sequence[str] | None, labels: Sequence[str] | None) -> None:
    if len(node.args) != 1:
        raise ConfigError(f"{name}(...) takes one measure, then label=value: '{ast.unparse(node)}'")
    first = node.args[0]
    if measures is not None and isinstance(first, ast.Constant) and first.value not in measures:
        raise ConfigError(f"no measure {first.value!r}; {nearest(str(first.value), measures)}")
    for keyword in node.keywords:
        if labels is not None and keyword.arg not in labels:
            raise ConfigError(f"no label '{keyword.arg}'; {nearest(str(keyword.arg), labels)}")


def _targets(target: ast.expr) -> frozenset[str]:
    match target:
        case ast.Name(id=name) if not name.startswith("_") and name not in _NAMES:
            return frozenset({name})
        case ast.Tuple(elts=parts):
            return frozenset().union(*(_targets(part) for part in parts))
        case _:
            raise _refuse(target, "this variable")


def _value(node: ast.expr, scope: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> Any:
    """The value of a checked node."""

    def of(child: ast.expr, inner: Mapping[str, Any] = scope) -> Any:
        return _value(child, inner, functions)

    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_truth(of(part)) for part in parts)
        case ast.BoolOp(values=parts):
            return any(_truth(of(part)) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return not _truth(of(inner))
        case ast.UnaryOp(operand=inner):
            return -of(inner)
        case ast.BinOp(left=left, op=op, right=right):
            return _BINARY[type(op)](_number(of(left)), _number(of(right)))
        case ast.Compare(left=left, ops=ops, comparators=others):
            values = [of(part) for part in (left, *others)]
            if _COMPARED in functions:
                for pair in itertools.pairwise(values):
                    functions[_COMPARED](*pair)
            return all(_COMPARE[type(op)](a, b) for op, a, b in zip(ops, values[:-1], values[1:], strict=True))
        case ast.Constant(value=constant):
            return constant
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [of(part) for part in parts]
        case ast.Subscript(value=inner, slice=ast.Slice(lower=lower, upper=upper)):
            return of(inner)[None if lower is None else of(lower) : None if upper is None else of(upper)]
        case ast.Subscript(value=inner, slice=index):
            return of(inner)[of(index)]
        case ast.Name(id=name):
            return scope[name]
        case ast.GeneratorExp(elt=element, generators=loops) | ast.ListComp(elt=element, generators=loops):
            return [of(element, inner) for inner in _scopes(loops, scope, functions)]
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            named = {str(keyword.arg): of(keyword.value) for keyword in keywords}
            return functions[name](*[of(argument) for argument in arguments], **named)
    raise _refuse(node, type(node).__name__)


def _scopes(
    loops: Sequence[ast.comprehension], scope: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]
) -> list[Mapping[str, Any]]:
    scopes: list[Mapping[str, Any]] = [scope]
    for loop in loops:
        inner = [{**outer, **_assigned(loop.target, item)} for outer in scopes for item in _value(loop.iter, outer, functions)]
        scopes = [one for one in inner if all(_truth(_value(test, one, functions)) for test in loop.ifs)]
    return scopes


def _assigned(target: ast.expr, item: Any) -> dict[str, Any]:
    match target:
        case ast.Name(id=name):
            return {name: item}
        case ast.Tuple(elts=parts):
            return {key: value for part, one in zip(parts, item, strict=True) for key, value in _assigned(part, one).items()}
    raise _refuse(target, "this variable")


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return value


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is not a statement")
    return value
