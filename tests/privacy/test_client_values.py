"""Client values: what may be done with them, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.privacy.bounded import clip, own_norms, scaled, squared_norms
from dpfl_cli.privacy.client_values import (
    ClientValues,
    client_values,
    count_operations,
    descended,
    diagnostic,
    is_raw,
    of_cohort,
    opened,
    own_values,
)
from dpfl_cli.privacy.diagnostics import update_diagnostics

PLAIN = torch.arange(24.0).reshape(2, 3, 4) - 11


def values() -> ClientValues:
    return client_values(PLAIN.clone())


PER_CLIENT = {
    "arithmetic": lambda v: 2 * v - v / 3 + PLAIN,
    "plain first": lambda v: PLAIN * v,
    "norms": lambda v: torch.linalg.vector_norm(v, dim=-1),
    "sum of a row": lambda v: v.sum(dim=-1),
    "max of a row": lambda v: v.max(dim=-1)[0],
    "where": lambda v: torch.where(v > 0, v, torch.zeros_like(v)),
    "clone": lambda v: v.clone().detach(),
    "other type": lambda v: v.double(),
    "new axis": lambda v: v.unsqueeze(-1),
    "stack of rows": lambda v: torch.stack([v, v], dim=-1),
    "in place": lambda v: v.clone().mul_(3).add_(PLAIN),
    "set item": lambda v: _assigned(v.clone()),
    "as_tensor": torch.as_tensor,
}


def _assigned(v: torch.Tensor) -> torch.Tensor:
    v[..., 0] = 0.0
    return v


@pytest.mark.parametrize("operation", PER_CLIENT.values(), ids=PER_CLIENT.keys())
def test_what_stays_with_its_client_is_computed_and_stays_marked(operation):
    result = operation(values())
    assert isinstance(result, ClientValues)
    torch.testing.assert_close(opened(result), operation(PLAIN.clone()), rtol=0, atol=0)


MIXING = {
    "mean over clients": lambda v: v.mean(dim=1),
    "mean of all": lambda v: v.mean(),
    "sum over runs": lambda v: v.sum(0),
    "one client": lambda v: v[:, 0],
    "one run": lambda v: v[0],
    "flattened": lambda v: v.reshape(6, 4),
    "product over clients": lambda v: torch.einsum("rmd->rd", v),
    "list of runs": list,
    "unbound": lambda v: v.unbind(1),
    "nonzero": lambda v: v.nonzero(),
    "masked": lambda v: v[v > 0],
    "any": lambda v: (v > 0).any(),
    "histogram": torch.histc,
    "python sum": sum,
    "network": lambda v: torch.func.functional_call(torch.nn.Linear(4, 4), {}, (v,)),
}


@pytest.mark.parametrize("operation", MIXING.values(), ids=MIXING.keys())
def test_meeting_of_clients_is_refused(operation):
    with pytest.raises(PrivacyError, match=r"client values in .*only in a mechanism's release"):
        operation(values())


SINGLE = client_values(torch.tensor([[2.5]]))

READING = {
    "item": SINGLE.item,
    "float": lambda: float(SINGLE),
    "int": lambda: int(SINGLE),
    "bool": lambda: bool(SINGLE),
    "truth in a branch": lambda: 1 if SINGLE > 0 else 0,
    "math": lambda: math.exp(SINGLE),
    "tolist": lambda: values().tolist(),
    "numpy": lambda: values().numpy(),
    "np.asarray": lambda: np.asarray(values()),
    "np.array": lambda: np.array(values()),
    "equal": lambda: torch.equal(values(), PLAIN),
    "allclose": lambda: torch.allclose(values(), PLAIN),
    "in": lambda: 1.0 in values(),
    "is_nonzero": lambda: torch.is_nonzero(SINGLE),
    "dlpack": lambda: torch.from_dlpack(values()),
    "storage": lambda: values().untyped_storage(),
    "apply_": lambda: values().apply_(lambda x: x),
    "list of numbers": lambda: torch.tensor([SINGLE[:, :]]),
    "constructed": lambda: torch.tensor(values()),
    "unmarked": lambda: values().as_subclass(torch.Tensor),
    "set_": lambda: torch.zeros(2, 3, 4).set_(values()),
}


@pytest.mark.parametrize("operation", READING.values(), ids=READING.keys())
def test_reading_out_is_refused(operation):
    with pytest.raises(
        PrivacyError, match=r"client values read out by .*only in a mechanism's release"
    ):
        operation()


def _iadd(plain):
    plain += values()


def _setitem(plain):
    plain[:] = values()


def _set_mask(plain):
    plain[values() > 0] = 1.0


WRITING = {
    "copy_": lambda p: p.copy_(values()),
    "add_": lambda p: p.add_(values()),
    "+=": _iadd,
    "setitem": _setitem,
    "setitem by mask": _set_mask,
    "masked_fill_": lambda p: p.masked_fill_(values() > 0, 1.0),
    "out": lambda p: torch.add(values(), values(), out=p),
    "out of two": lambda p: torch.max(values(), dim=-1, out=(p[..., 0], p[..., 0].long())),
    "lerp_": lambda p: p.lerp_(values(), 0.5),
    "foreach": lambda p: torch._foreach_add_([p], [values()]),
    "parameter": lambda p: torch.nn.Parameter(p).data.add_(values()),
}


@pytest.mark.parametrize("operation", WRITING.values(), ids=WRITING.keys())
def test_writing_into_a_plain_tensor_is_refused_and_leaves_it_as_it_was(operation):
    plain = torch.zeros(2, 3, 4)
    with pytest.raises(PrivacyError, match="plain tensor"):
        operation(plain)
    assert not plain.any()


def test_gradients_do_not_carry_them_out():
    weights = torch.ones(4, requires_grad=True)
    with pytest.raises(PrivacyError):
        (values() * weights).backward(torch.ones(2, 3, 4))
    with pytest.raises(PrivacyError):
        torch.autograd.grad(values() * weights, weights, torch.ones(2, 3, 4))
    assert weights.grad is None


def test_printing_shows_the_shape_only():
    for text in (repr(values()), str(values()), f"{values()}", f"{SINGLE}", str([values()])):
        assert "ClientValues([" in text
        assert "11" not in text
        assert "2.5" not in text


def test_they_need_runs_and_clients():
    with pytest.raises(PrivacyError, match="axes"):
        client_values(torch.zeros(3))


def test_shape_and_type_are_public():
    v = values()
    assert (v.shape, v.dim(), v.numel(), len(v), v.dtype) == (PLAIN.shape, 3, 24, 2, torch.float32)
    assert v.is_floating_point()
    assert v.is_contiguous()
    assert v.device == torch.device("cpu")


def _seen_by_hooks(values: torch.Tensor) -> list[torch.Tensor]:
    seen: list[torch.Tensor] = []
    weight = torch.ones(2, 3, 4, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(seen.append, lambda kept: kept):
        _ = values * weight
    return seen


class _Dispatching(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def _under(mode):
    def watched(values: torch.Tensor) -> torch.Tensor:
        with mode():
            return values * 2.0

    return watched


PLAIN = torch.ones(2, 3, 4)
LOSES_THE_MARK = {
    "vmap": lambda v: torch.vmap(lambda x: (v * x).sum(dim=2))(torch.ones(5)),
    "functionalize": lambda v: torch.func.functionalize(lambda x: x * v)(PLAIN),
    "jacrev": lambda v: torch.func.jacrev(lambda x: x * v)(PLAIN),
    "jacfwd": lambda v: torch.func.jacfwd(lambda x: x * v)(PLAIN),
    "vjp": lambda v: torch.func.vjp(lambda x: x * v, PLAIN),
    "jvp": lambda v: torch.func.jvp(lambda x: x * v, (PLAIN,), (PLAIN,)),
    "hessian": lambda v: torch.func.hessian(lambda x: x * v)(PLAIN),
    "grad": lambda v: torch.func.grad(lambda x: (x * v)[0, 0, 0])(PLAIN),
    "saved-tensor hooks": _seen_by_hooks,
    "dispatch mode": _under(_Dispatching),
    "autocast": _under(lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
    "trace": lambda v: torch.jit.trace(lambda x: x * v, PLAIN),
}


@pytest.mark.parametrize("operation", LOSES_THE_MARK.values(), ids=LOSES_THE_MARK)
def test_what_would_lose_the_mark_is_refused(operation):
    """vmap over a plain tensor gave back the values of the closure; jacrev gave zeros."""
    for values in (client_values(torch.rand(2, 3, 4)), own_values(torch.rand(2, 3, 4))):
        with pytest.raises(PrivacyError, match="their mark would be lost"):
            operation(values)


@pytest.mark.parametrize(
    "operation",
    [
        lambda v, at: v[..., :2].gather(2, at),
        lambda v, at: at // (at - at),
        lambda v, at: v.unsqueeze(-2) @ v.unsqueeze(-2),
    ],
)
def test_errors_do_not_carry_values(operation):
    with pytest.raises(PrivacyError) as caught:
        operation(client_values(torch.rand(2, 3, 4)), client_values(torch.full((2, 3, 1), 987)))
    assert "987" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_own_values_stay_own_until_they_meet_raw_ones():
    own, raw = own_values(torch.rand(2, 3, 4)), client_values(torch.rand(2, 3, 4))
    assert not is_raw(own)
    assert not is_raw(own * 2 + PLAIN - own)
    assert not is_raw(torch.where(PLAIN > 0, own, own))
    for mixed in (own + raw, raw - own, torch.where(raw > 0, own, own), torch.cat([own, raw], 2)):
        assert is_raw(mixed)
    assert is_raw(own_values(raw))
    with pytest.raises(PrivacyError, match="written into own ones"):
        own.add_(raw)
    with pytest.raises(PrivacyError, match="client values in add"):
        torch.add(raw, raw, out=own)
    assert not is_raw(PLAIN)


def test_steps_are_taken_along_sums_of_directions():
    rate, slope, drift = torch.tensor([0.1, 3.0]).reshape(2, 1, 1), PLAIN.sin(), PLAIN.cos()
    steps = descended(PLAIN[:, :1].expand(-1, 3, -1), rate, own_values(slope), own_values(drift))
    expected = PLAIN[:, :1] - rate * (slope + drift)
    torch.testing.assert_close(opened(steps), expected, rtol=0, atol=0)
    assert isinstance(steps, ClientValues)
    assert not is_raw(steps)
    none = own_values(torch.zeros(1).expand(slope.shape))
    of_three = opened(descended(steps, rate, own_values(slope), steps, own_values(drift)))
    wanted = opened(steps) - rate * (slope + opened(steps) + drift)
    torch.testing.assert_close(of_three, wanted, rtol=0, atol=0)
    of_one = opened(descended(steps, rate, own_values(slope), none))
    torch.testing.assert_close(of_one, opened(steps) - rate * slope, rtol=0, atol=0)
    assert is_raw(descended(steps, rate, client_values(slope)))
    with pytest.raises(PrivacyError, match="different runs or clients"):
        descended(steps, rate, own_values(slope[:, :1]))
    with pytest.raises(PrivacyError, match="client values"):
        descended(steps, client_values(rate), own_values(slope))
    with pytest.raises(PrivacyError, match="for display"):
        descended(steps, rate, diagnostic(slope))
    drawn = [of_cohort(client_values(slope.clone()), object()) for _ in range(2)]
    with pytest.raises(PrivacyError, match="two rounds' cohorts meet in a local step"):
        descended(drawn[0], rate, drawn[1])
    assert descended(drawn[0], rate, drawn[0]).cohort is drawn[0].cohort


def test_operations_are_counted_beside_client_values_and_nothing_else_may_look_on():
    with count_operations() as counter:
        assert is_raw(values() * 2.0)
        torch.eye(3) @ torch.eye(3)
        with pytest.raises(PrivacyError, match="under a mode"), _Dispatching():
            values() * 2.0
    assert counter.get_total_flops() == 2 * 3**3
    with pytest.raises(PrivacyError, match="under a mode"), FlopCounterMode(display=False):
        values() * 2.0


@pytest.mark.parametrize("like", ["to", "type_as", "expand_as", "view_as", "reshape_as"])
def test_what_is_made_like_other_values_shares_no_memory_with_values_of_another_kind(
    like: str,
) -> None:
    """`zeros.type_as(gradient)` handed out the zeros: what was added to them showed there."""
    raw = values()
    for kind in (own_values, *[lambda plain: plain] * (like in ("to", "type_as"))):
        start = kind(torch.zeros(2, 3, 4))
        made = getattr(start, like)(raw)
        made += raw
        assert is_raw(made)
        assert opened(made).any()
        assert not opened(start).any()


@pytest.mark.parametrize("write", ["masked_fill_", "fill_", "zero_"])
def test_clients_who_share_memory_do_not_meet_in_it(write: str) -> None:
    shared = torch.ones(2, 1, 4)
    given = {"masked_fill_": (values() > 0, 5.0), "fill_": (5.0,), "zero_": ()}[write]
    with pytest.raises(PrivacyError, match="share memory"):
        getattr(client_values(shared.expand(2, 3, 4)), write)(*given)
    assert (shared == 1).all()


BESIDE = {
    "norms": lambda v, clipped: own_norms(v),
    "clipped": lambda v, clipped: clip(v, torch.ones(2)).values,
    "squared norms": lambda v, clipped: squared_norms(clipped).values,
    "scaled": lambda v, clipped: scaled(clipped, torch.ones(2)).values,
    "diagnostics": lambda v, clipped: update_diagnostics(clipped)["mean_squared_norm"],
    "repaired": lambda v, clipped: clipped.repaired,
}


@pytest.mark.parametrize("what", BESIDE)
def test_what_a_transform_hands_out_beside_its_result_keeps_its_mark(what: str) -> None:
    given = values()
    clipped = clip(given, torch.ones(2))
    with pytest.raises(PrivacyError, match="their mark would be lost"):
        torch.func.grad(lambda x: (x.sum(), BESIDE[what](given, clipped)), has_aux=True)(
            torch.ones(3)
        )


def test_norms_of_diagnostics_are_no_clients() -> None:
    mean = diagnostic(torch.ones(2, 3, 4))
    with pytest.raises(PrivacyError, match="no client's own value"):
        own_norms(mean)
