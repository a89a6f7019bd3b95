"""Which torch functions keep clients apart: on values [R, M, ...], row [r, m] of the result depends
on row [r, m] alone.

A function that is not listed is refused: a list of what is safe stays right when torch gains
functions. Each listed function has a rule, called with its arguments (without their marks) and with
the identities of those that are client values; it raises a `Mixing` that says what is wrong. The
caller checks besides that all client values, and every part of the result, have the same two
leading axes. Four kinds are safe:

elementwise: all client values have the same number of axes as the result, so that broadcasting
  never moves axis 0 or 1;
along axes: reductions, scans, sorts, slices along axes that are named and not 0 or 1;
reshaping: the two leading axes stay what they are (memory order keeps a row's entries together);
products: a matrix product or an einsum that keeps the two leading axes of every client operand.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Function = Callable[..., Any]  # of torch


class Mixing(Exception):
    """Why a call could let clients meet."""


def parts(values: Iterable[Any]) -> list[Any]:
    """What arguments or results hold, lists and tuples opened."""
    found: list[Any] = []
    for value in values:
        if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            found.extend(parts(value))
        else:
            found.append(value)
    return found


class Given(NamedTuple):
    """What a function is called with, without marks."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    marks: frozenset[int]  # identities of those that are client values

    def at(self, place: int, keyword: str = "dim") -> Any:
        """An argument by its place or its name; None where it is absent."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(keyword)

    def own(self, value: Any) -> bool:
        """Whether an argument is client values."""
        return id(value) in self.marks

    def every(self) -> list[Any]:
        """All arguments, lists and tuples opened."""
        return parts((*self.args, *self.kwargs.values()))


Rule = Callable[[Given], None]


def _axes(given: Any, dim: int) -> None:
    """Refuses axes that are not integers of 2 and more, counted from either end."""
    axes = given if isinstance(given, list | tuple) else (given,)
    if not axes or any(type(axis) is not int or axis % dim < 2 for axis in axes):
        raise Mixing("name its axes, and only axes of a client's own values (2 and above)")


def elementwise(given: Given) -> None:
    """All client values have as many axes as the widest argument."""
    tensors = [part for part in given.every() if isinstance(part, Tensor)]
    widest = max(tensor.dim() for tensor in tensors)
    if any(tensor.dim() != widest for tensor in tensors if given.own(tensor)):
        raise Mixing(
            "broadcasting would put clients on other axes; give all client values the same number "
            "of axes (unsqueeze(-1))"
        )


def along(place: int, keyword: str = "dim", grows: int = 0) -> Rule:
    """A function of one tensor along axes.

    Args:
      place: where the axes stand among the positional arguments.
      keyword: their name.
      grows: 1 where the axis counts in the result, which has one more.
    """

    def rule(given: Given) -> None:
        _reshaped(given)
        _axes(given.at(place, keyword), given.args[0].dim() + grows)
        elementwise(given)  # a wider tensor beside them would move their axes

    return rule


def _extreme(given: Given) -> None:
    """max and min: of two tensors, or along an axis."""
    (elementwise if isinstance(given.at(1, "other"), Tensor) else along(1))(given)


def _joined(grows: int) -> Rule:
    def rule(given: Given) -> None:
        tensors = given.args[0]
        if len({tensor.dim() for tensor in tensors}) > 1:
            raise Mixing("give all tensors the same number of axes")
        _axes(given.at(1), tensors[0].dim() + grows)

    return rule


def _reshaped(given: Given) -> None:
    """Checked on the result: the same entries in the same order under the same leading axes."""
    if not given.own(given.args[0]):
        raise Mixing("call it on the client values themselves")


def _expanded(given: Given) -> None:
    _reshaped(given)
    whole, *sizes = (*given.args, *given.kwargs.values())
    first = sizes[0].shape if isinstance(sizes[0], Tensor) else sizes[0]
    if len(first if isinstance(first, list | tuple) else sizes) != whole.dim():
        raise Mixing("expand to as many axes as there are (unsqueeze(-1) adds one)")


def _matrix_product(given: Given) -> None:
    left, right = given.args[0], given.at(1, "other")
    own_left, axes, others = given.own(left), left.dim(), right.dim()
    # contracts the left's last axis
    rows = own_left and not given.own(right) and axes >= 3 and others <= axes
    stacks = others >= 4 and axes <= others and (not own_left or axes == others)
    if not rows and not stacks:
        raise Mixing("it would sum over clients; multiply and sum over the last axis instead")


def _einsum(given: Given) -> None:
    text, operands = given.args[0], parts(given.args[1:])
    inputs, arrow, output = (
        text.replace(" ", "").partition("->") if isinstance(text, str) else ("", "", "")
    )
    labels, kept = inputs.split(","), output[:2]
    own = [label for label, operand in zip(labels, operands, strict=False) if given.own(operand)]
    if (
        not arrow
        or "." in text
        or any(label[:2] != kept or set(kept) & set(label[2:]) for label in own)
    ):
        raise Mixing(
            "it would sum over clients; keep their first two axes first in the result "
            "('rmd,rd->rm')"
        )


def _index(given: Given) -> None:
    """`...` or `:, :` in front, then integers, slices, None, or slices and one list of
    positions.
    """
    whole, index, *_ = given.args
    index = index if isinstance(index, tuple) else (index,)
    if not given.own(whole) or any(map(given.own, parts(index))):
        raise Mixing(
            "index client values by public positions only; choose by value with torch.where"
        )
    taken = [part for part in index if part is not None and part is not ...]  # an axis each
    positions = [part for part in taken if not isinstance(part, slice)]
    # several lists, or a list and a number, would move axes to the front
    plain = all(type(part) is int for part in positions) or (
        len(positions) == 1
        and isinstance(positions[0], list | np.ndarray | Tensor)
        and np.ndim(positions[0]) == 1
    )
    front = (index[0] is ... and len(taken) <= whole.dim() - 2) or all(
        isinstance(part, slice) and part == slice(None) for part in index[:2]
    )
    if not (plain and front):
        raise Mixing(
            "write v[..., index], and index only the axes of a client's own values (2 and above)"
        )


def _assignment(given: Given) -> None:
    _index(given)
    whole, index, value = given.args
    if given.own(value) and value.dim() != whole[index].dim():
        raise Mixing("assign client values with as many axes as the place that takes them")


_NAMESPACES: tuple[Any, ...] = (torch, Tensor, torch.nn.functional, torch.special, torch.linalg)

_ELEMENTWISE = """
abs absolute neg negative positive sign sgn signbit exp exp2 expm1 log log2 log10 log1p sqrt
rsqrt square reciprocal sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid
logit erf erfc erfinv lgamma digamma relu relu6 leaky_relu elu selu gelu silu softplus softsign
hardtanh hardshrink softshrink logsigmoid ceil floor round trunc frac isfinite isinf isnan
isposinf isneginf logical_not bitwise_not nan_to_num clamp clip clamp_min clamp_max conj real
add sub subtract rsub mul multiply div divide true_divide floor_divide remainder fmod pow
float_power atan2 arctan2 hypot maximum minimum fmax fmin copysign lerp addcmul addcdiv eq ne lt
le gt ge greater less logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor
isclose where masked_fill heaviside xlogy logaddexp nextafter as_tensor to double float half
bfloat16 int long bool type_as clone detach contiguous cpu cuda zeros_like ones_like full_like
copy zero fill __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__
__truediv__ __rtruediv__ __itruediv__ __div__ __rdiv__ __idiv__ __floordiv__ __rfloordiv__
__ifloordiv__ __mod__ __rmod__ __imod__ __pow__ __rpow__ __ipow__ __neg__ __pos__ __abs__
__invert__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __rand__ __iand__ __or__ __ror__
__ior__ __xor__ __rxor__ __ixor__
"""

_BY_AXIS: dict[Rule, str] = {
    along(1): """
sum nansum mean nanmean prod amax amin logsumexp any all var std argmax argmin count_nonzero
median nanmedian softmax log_softmax cumsum cumprod logcumsumexp sort argsort squeeze narrow
select unbind index_select gather unflatten
""",
    along(1, grows=1): "unsqueeze",
    along(1, keyword="start_dim"): "flatten",
    along(2): "norm vector_norm normalize cosine_similarity split chunk topk kthvalue",
    _extreme: "max min",
    _joined(0): "cat concat",
    _joined(1): "stack",
    _reshaped: "reshape reshape_as view view_as",
    _expanded: "expand expand_as broadcast_to",
    _matrix_product: "matmul __matmul__",
    _einsum: "einsum",
    _index: "__getitem__",
    _assignment: "__setitem__",
}


def _found(names: str) -> Iterator[Function]:
    return (
        getattr(space, name)
        for name in names.split()
        for space in _NAMESPACES
        if callable(getattr(space, name, None))
    )


# They take the type or the shape of another tensor, and may hand out the first one's memory.
LIKE: frozenset[Function] = frozenset(_found("to type_as expand_as view_as reshape_as"))

_IN_PLACE = " ".join(f"{name}_" for name in _ELEMENTWISE.split() if not name.endswith("__"))

RULES: dict[Function, Rule] = {
    **{function: rule for rule, names in _BY_AXIS.items() for function in _found(names)},
    **dict.fromkeys(_found(f"{_ELEMENTWISE} {_IN_PLACE}"), elementwise),
}

# What says nothing about the data: shapes, types, placement.
_METHODS = """
size dim ndimension numel nelement stride storage_offset element_size get_device is_contiguous
is_floating_point is_complex is_signed is_same_size is_inference is_conj is_neg is_pinned
result_type can_cast __len__ __hash__
"""
_PROPERTIES = """
shape ndim dtype device layout requires_grad is_leaf itemsize nbytes is_cuda is_cpu is_sparse
_version
"""
PUBLIC: frozenset[Function] = frozenset(
    (*_found(_METHODS), *(getattr(Tensor, name).__get__ for name in _PROPERTIES.split()))
)
