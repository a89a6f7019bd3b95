"""Tensors that no release has paid for, and what may be done with them.

Values have three kinds. *Public* ones are plain tensors: settings, and functions of releases.
`ClientValues` are *raw*: computed from clients' data without a mechanism. `OwnValues` are those
that are *own*: functions of public values and of the client's own released messages, so that
whoever sees the releases could compute them. A bound per record holds at public and at own points;
at a raw point one record could have moved the point, and with it every record's gradient.

Objectives return client values, algorithms compute with them as with any tensor, and whatever they
touch becomes one too (own values stay own while they meet public and own ones only). Only a
mechanism's release turns them into plain tensors. Only functions that keep clients apart are
allowed (`separation`): none that lets two clients, or two runs, meet. A `Diagnostic` was computed
from client values for display. Whatever it touches becomes one too; only the engine shows it.

None can be read out into Python or numpy, nor written into plain tensors, and printing shows their
shape only. The engine refuses a server state that holds one. Where torch is watched (modes, hooks)
or transformed (vmap, grad, functionalize), the mark would be lost or the plain numbers seen: they
are refused there (`refuse_watchers`). Errors say which function failed, never with which values.

This stops mistakes, not malice: Python can always be circumvented (`plain.data = values` and
`torch.utils.dlpack.to_dlpack` are ways that no tensor subclass sees; a test forbids them in
algorithms), and tests attack the mechanisms besides.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from dpfl_cli.config.errors import ConfigError, PrivacyError, plugin_modules
from dpfl_cli.privacy.separation import LIKE, PUBLIC, RULES, Function, Given, Mixing, parts

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode

_READ_OUT = """
item tolist numpy equal allclose is_nonzero storage untyped_storage _typed_storage data_ptr
apply_ map_ map2_ backward __array__ __float__ __int__ __bool__ __index__ __complex__
__contains__ __dlpack__ __dlpack_device__
"""
_WRITES = """
__setitem__ __iadd__ __isub__ __imul__ __idiv__ __itruediv__ __ifloordiv__ __imod__ __ipow__
__iand__ __ior__ __ixor__
"""
RELEASING = ("dpfl_cli.privacy.mechanism", "release")  # who asks a mechanism to open values
KEPT_STATE = "what a client keeps from round to round is in State.clients"
V = TypeVar("V")
READERS, _WRITERS = frozenset(_READ_OUT.split()), frozenset(_WRITES.split())


@lru_cache(maxsize=4096)
def _nature(func: Function) -> tuple[str, bool]:
    """A function's name, with that of its attribute where it reads or sets one, and whether it
    writes to its first argument.
    """
    name = getattr(func, "__name__", "?")
    if name in ("__get__", "__set__"):
        name = f"{getattr(getattr(func, '__self__', None), '__name__', 'attribute')}.{name}"
    return name, name in _WRITERS or name.endswith(".__set__") or (
        name.endswith("_") and not name.endswith("__")
    )


class Unreleased(Tensor):
    """A tensor that no release has paid for; marks what it touches."""

    what: str
    way_out: str  # how its values may reach anybody
    # the `draws.Cohort` of a round whose clients' values went into it; None where all take part
    cohort: Any = None

    @classmethod
    def __torch_function__(
        cls,
        func: Function,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        refuse_watchers()
        bare: dict[int, Unreleased] = {}  # by identity of the plain alias: the marked argument
        args = tuple([cls._bared(part, bare) for part in args])
        kwargs = {key: cls._bared(part, bare) for key, part in kwargs.items()} if kwargs else {}
        if func in PUBLIC:
            return func(*args, **kwargs)
        name, in_place = _nature(func)
        if name in READERS:
            raise PrivacyError(f"{cls.what} read out by {name}(): {cls.way_out}")
        if in_place or kwargs:
            targets = parts((args[:1] if in_place else (), kwargs.get("out")))
            if any(isinstance(target, Tensor) and id(target) not in bare for target in targets):
                raise PrivacyError(
                    f"{cls.what} written into a plain tensor by {name}: use a new tensor, or a "
                    "mechanism's release"
                )
        kind, cohort = _joined(bare.values(), name)
        if in_place and type(bare[id(args[0])]) is not kind:
            raise PrivacyError(f"client values written into own ones by {name}: use a new tensor")
        if in_place and 0 in args[0].stride()[:2]:
            raise PrivacyError(
                f"{cls.what} written by {name} where runs or clients share memory: use a new tensor"
            )
        try:
            if func not in RULES or kwargs.get("out") is not None:
                raise Mixing(
                    "use elementwise functions, or reductions over named axes of a client's own "
                    "values (2 and above)"
                )
            result = cls._computed(func, Given(args, kwargs, frozenset(bare)))
        except Mixing as error:
            raise PrivacyError(f"{cls.what} in {name}: {error}; {cls.way_out}") from None
        except Exception as error:  # its message may hold values: an index, a divisor
            failed = type(error).__name__
            raise PrivacyError(f"{cls.what} in {name}: {failed}; check shapes and types") from None
        if func in LIKE and type(bare.get(id(args[0]))) is not kind:
            result = result.clone()  # what is written into it may not show in values of that kind
        return of_cohort(bare[id(args[0])] if in_place else kind._marked(result), cohort)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Reached only where `__torch_function__` was not asked: constructors that copy, vmap and
        other transforms.
        """
        raise PrivacyError(
            f"{cls.what} read out by {func} (in torch.tensor, vmap or the like): {cls.way_out}"
        )

    @classmethod
    def _computed(cls, func: Function, given: Given) -> Any:
        """The result of a function of `RULES` on plain arguments, or a Mixing."""
        raise NotImplementedError

    @classmethod
    def _bared(cls, value: Any, bare: dict[int, Unreleased]) -> Any:
        """An argument without marks; client values and diagnostics do not meet."""
        if isinstance(value, Unreleased):
            if isinstance(value, Diagnostic) != issubclass(cls, Diagnostic):
                raise PrivacyError(
                    f"{cls.what} meet {value.what}: diagnostics are for display and enter no "
                    "computation of clients"
                )
            plain = opened(value)
            bare[id(plain)] = value
            return plain
        if type(value) in (list, tuple):
            return type(value)(cls._bared(part, bare) for part in value)
        return value

    @classmethod
    def _marked(cls, result: Any) -> Any:
        if isinstance(result, Tensor):
            return result.as_subclass(cls)
        if isinstance(result, list | tuple):
            return type(result)([cls._marked(part) for part in result])
        return result

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"{type(self).__name__}({list(self.shape)}, {self.dtype})"

    def __format__(self, _: str) -> str:
        return repr(self)


class ClientValues(Unreleased):
    """A tensor [R, M, ...] of values that belong to clients."""

    what = "client values"
    way_out = "values of different clients meet, and leave a client, only in a mechanism's release"

    @classmethod
    def _computed(cls, func: Function, given: Given) -> Any:
        if not given.args:
            raise Mixing("give them as the first argument")
        own = [part.shape[:2] for part in given.every() if given.own(part)]
        if len(set(own)) > 1:
            raise Mixing("they are of different runs or clients")
        RULES[func](given)
        result = func(*given.args, **given.kwargs)
        for part in parts((result,)):
            if isinstance(part, Tensor) and part.shape[:2] != own[0]:
                # how many entries there would be may tell of their values
                raise Mixing(f"{list(own[0])} would not be its first two axes any more")
        return result


class OwnValues(ClientValues):
    """A tensor [R, M, ...] that each client computed from public values and its own released
    messages.
    """


class Diagnostic(Unreleased):
    """A tensor that was computed from client values for display."""

    what = "diagnostics"
    way_out = "they are for display, and no algorithm may read one"

    @classmethod
    def _computed(cls, func: Function, given: Given) -> Any:
        name, (args, kwargs, _) = func.__name__, given
        chosen = name in ("__getitem__", "__setitem__") and any(map(given.own, parts(args[1:2])))
        if chosen or (name == "where" and len(args) + len(kwargs) < 3):
            raise Mixing("a shape would depend on them")
        return func(*args, **kwargs)


def client_values(values: Tensor, kind: type[ClientValues] = ClientValues) -> ClientValues:
    """Marks [R, M, ...] values as belonging to clients; marked ones stay what they are."""
    if isinstance(values, ClientValues):
        return values
    if isinstance(values, Unreleased):
        raise PrivacyError(
            "a diagnostic is no client's own value: diagnostics are for display, and no algorithm "
            "may read one"
        )
    if values.dim() < 2:
        raise PrivacyError(
            f"client values need the axes [runs, clients, ...], not the shape {list(values.shape)}"
        )
    refuse_watchers()
    return values.as_subclass(kind)


def own_values(values: Tensor) -> ClientValues:
    """Marks public values [R, M, ...], or a client's released messages, as its own; what is raw
    stays raw.
    """
    return client_values(values, OwnValues)


def of_cohort(values: V, cohort: Any) -> V:
    """Client values (or a list or tuple of them), marked as of a round's cohort where there is
    one.
    """
    if cohort is not None:
        for part in parts((values,)):
            if isinstance(part, Unreleased):
                part.cohort = cohort
    return values


def _joined(marked: Iterable[Unreleased], where: str) -> tuple[Any, Any]:
    """The kind and the cohort of what is computed of marked values together."""
    kinds: set[Any] = {type(one) for one in marked}
    cohort = next((one.cohort for one in marked if one.cohort is not None), None)
    if cohort is not None:
        for one in marked:
            check_cohort(one, cohort, where)
    return kinds.pop() if len(kinds) == 1 else ClientValues, cohort


def check_cohort(values: Tensor, cohort: Any, where: str) -> None:
    """Refuses values whose rows are of other clients than those of a round's cohort (None: of all
    clients): of another round, or of all, as `init` computes them.
    """
    theirs = getattr(values, "cohort", None)
    if theirs is not cohort and (theirs is not None or is_raw(values)):
        raise PrivacyError(f"client values of two rounds' cohorts meet in {where}: {KEPT_STATE}")


def descended(values: Tensor, rate: Tensor, *directions: Tensor) -> Tensor:
    """values - rate (the sum of directions, from the first on), of client values [R, M, d].

    Args:
      rate: [R, 1, 1].
    """
    refuse_watchers()
    given = values, *directions
    marked = [one for one in given if isinstance(one, Unreleased)]
    if any(isinstance(one, Diagnostic) for one in marked):
        raise PrivacyError("a step of clients along diagnostics: they are for display")
    if len({one.shape[:2] for one in marked}) > 1:
        raise PrivacyError("a step along client values of different runs or clients")
    kind, cohort = _joined(marked, "a local step")
    start, *terms = map(opened, given)
    if start.device.type == "cpu":  # but for a regulariser of weight zero: one number for all
        terms = [one for one in terms if one.stride(-1) or one[..., :1].any()] or terms[:1]
    slope, *others = terms
    # in place from here on: new memory costs more than these sums
    moved = (
        reduce(Tensor.add_, others[1:], slope + others[0]).mul_(rate) if others else rate * slope
    )
    return of_cohort(client_values(torch.sub(start, moved, out=moved), kind), cohort)


def is_raw(values: Tensor) -> bool:
    """Whether values are of clients' data and of no release."""
    return isinstance(values, Unreleased) and not isinstance(values, OwnValues)


_counters: ContextVar[int] = ContextVar("counters", default=0)  # modes of `count_operations`


@contextmanager
def count_operations() -> Iterator[FlopCounterMode]:
    """Counts the operations of torch's products: the one mode under which client values go on, for
    it looks at shapes alone.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        token = _counters.set(1)
        try:
            yield counter
        finally:
            _counters.reset(token)


def refuse_watchers() -> None:
    """Refuses to go on where torch's functions are watched or transformed: what looks on would see
    the plain numbers inside marked tensors, and what comes out of a transform has lost its mark.
    """
    if (
        torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack() > _counters.get()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
        or torch._C._get_tracing_state() is not None
        or torch.is_inference_mode_enabled()  # in-place changes would not be seen
        or torch.is_autocast_enabled("cpu")  # what is clipped would be longer, by its rounding
        or torch.is_autocast_enabled("cuda")
    ):
        raise PrivacyError(
            "client values under a mode, a hook or a transform of torch (vmap, grad, jacrev, "
            "functionalize, inference_mode, autocast, torch.device as a context, saved-tensor "
            "hooks, tracing): their mark would be lost, a change in place not be seen, or a bound "
            "not hold; compute with them as they are"
        )


def refuse_outside_releases() -> None:
    """Refuses a plugin's code that would open bounded values itself, but for its mechanism, which a
    release asks to.
    """
    frame = sys._getframe(2) if plugin_modules else None
    own = frame and str(frame.f_globals.get("__name__")).partition(".")[0] in plugin_modules
    while own and frame and (frame.f_globals.get("__name__"), frame.f_code.co_name) != RELEASING:
        frame = frame.f_back
    if own and frame is None:
        raise PrivacyError(
            "bounded values opened by a method: they are a mechanism's to open, as it releases "
            "them; take what a release gives, such as its .mean"
        )


def diagnostic(values: Tensor) -> Diagnostic:
    """Marks plain values, computed from client values that were opened, as for display only."""
    refuse_watchers()
    return values.as_subclass(Diagnostic)


def opened(values: Tensor) -> Tensor:
    """The plain tensor inside client values. For mechanisms, objectives and diagnostics only; a
    test holds that.
    """
    if not isinstance(values, Unreleased):
        return values
    with torch._C._DisableTorchDispatch():
        return values.as_subclass(Tensor)


def shown(values: Tensor) -> Tensor:
    """The plain tensor inside a diagnostic; a plain tensor as it is. For the engine's display only;
    a test holds that.
    """
    if isinstance(values, ClientValues):
        raise PrivacyError(
            "values of single clients are no diagnostic: return means over clients, from "
            "privacy.diagnostics"
        )
    return opened(values)


def number_shown(name: str, values: Any, runs: int) -> Tensor:
    """[R] what is `shown` of a diagnostic that a method returned."""
    is_now = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
    if is_now != [runs] and not isinstance(values, ClientValues):
        raise ConfigError(f"diagnostic '{name}' is {is_now}: a number a run, a tensor [{runs}]")
    return shown(values)


def versions(tensors: Iterable[Tensor]) -> tuple[int, ...]:
    """How often each tensor was changed in place, by torch's counters; -1 where there is none (made
    in inference mode).
    """
    with torch._C.DisableTorchFunctionSubclass():
        held = tuple(tensors)
        try:
            return tuple([tensor._version for tensor in held])
        except RuntimeError:  # of inference tensors, which is slow to ask of each
            return tuple([-1 if one.is_inference() else one._version for one in held])
