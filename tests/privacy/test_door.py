"""The door: what a release insists on, what goes round it is refused, and noise that depends on its
address alone.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dpfl_cli
from dpfl_cli.config.component import components
from dpfl_cli.config.errors import ConfigError, PrivacyError
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.client_side import ClientSide
from dpfl_cli.privacy.bounded import Bounded, clip, squared_norms
from dpfl_cli.privacy.client_values import (
    ClientValues,
    Diagnostic,
    client_values,
    number_shown,
    of_cohort,
    opened,
    shown,
)
from dpfl_cli.privacy.diagnostics import update_diagnostics
from dpfl_cli.privacy.draws import Sampling, drawn_cohort
from dpfl_cli.privacy.ledger import Ledger
from dpfl_cli.privacy.releases import ReleaseSpec

NAMES = ["none", "local_gaussian", "central_gaussian", "privunit"]
PRIVATE = NAMES[1:]
ROUND, HORIZON = np.array([1]), 10_000


def updates(runs: int, clients: int, dimension: int, dtype=torch.float64) -> torch.Tensor:
    return torch.randn(
        runs, clients, dimension, dtype=dtype, generator=torch.Generator().manual_seed(11)
    )


@pytest.mark.parametrize("name", NAMES)
def test_undeclared_releases_are_refused_and_not_charged(build, clipped, name):
    mechanism = build(name, 4, 3)
    with pytest.raises(PrivacyError, match="'control' was not declared"):
        mechanism.release("control", clipped(updates(1, 4, 3)), ROUND)
    assert mechanism._site.ledger.of_run(0).releases == 0


@dataclass(frozen=True)
class Pretender:
    """Looks like bounded values, but nothing was clipped."""

    values: Any
    bound: Any
    unit: str = "client"
    is_vector: bool = True

    def sensitivity(self, relation: str) -> torch.Tensor:
        return self.bound

    def checked(self) -> torch.Tensor:
        return opened(self.values)


class Heir(Bounded):
    """Was clipped, and says that it moves by nothing."""

    def sensitivity(self, relation: str) -> torch.Tensor:
        return torch.zeros_like(self.bound)


@pytest.mark.parametrize("name", NAMES)
def test_only_bounded_values_are_released(build, clipped, name):
    mechanism = build(name, 4, 3)
    pretender = Pretender(client_values(updates(1, 4, 3)), torch.tensor([1e-9]))
    heir = object.__new__(Heir)
    vars(heir).update(vars(clipped(updates(1, 4, 3))))
    for values in (client_values(updates(1, 4, 3)), updates(1, 4, 3), pretender, heir):
        with pytest.raises(PrivacyError, match="clip them first"):
            mechanism.release("update", values, ROUND)
    changed = clipped(updates(1, 4, 3))
    changed.values.mul_(1000)
    with pytest.raises(PrivacyError, match="changed in place"):
        mechanism.release("update", changed, ROUND)
    assert mechanism._site.ledger.of_run(0).releases == 0
    source = client_values(updates(1, 4, 3))
    bounds = [clip(source, torch.full((1,), limit)) for limit in (1.0, math.inf)]
    known = [one.checked().clone() for one in bounds]
    source.mul_(1000)  # what was clipped is a copy, also where there is no bound
    assert all(torch.equal(one.checked(), was) for one, was in zip(bounds, known, strict=True))


@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize("bound", [math.inf, 0.0, -1.0, math.nan])
def test_noise_needs_a_bound(build, clipped, name, bound):
    mechanism = build(name, 4, 3, seeds=(0, 1))
    with pytest.raises(PrivacyError, match=r"set algorithm\.clip_norm") as caught:
        mechanism.release("update", clipped(updates(2, 4, 3), [1.0, bound]), np.array([1, 1]))
    assert "\n" not in str(caught.value)
    assert mechanism._site.ledger.of_run(0).releases == 0


@pytest.mark.parametrize("name", NAMES)
def test_shape_unit_and_size_are_those_declared(build, clipped, name):
    mechanism = build(name, 4, 3)
    with pytest.raises(
        PrivacyError,
        match="declared as a vector per client, but got a scalar per client; a scalar is",
    ):
        mechanism.release("update", squared_norms(clipped(updates(1, 4, 3))), ROUND)
    for wrong, rounds in (
        (updates(1, 5, 3), ROUND),
        (updates(2, 4, 3), np.array([1, 1])),
        (updates(1, 4, 3), np.array([1, 1])),
    ):
        with pytest.raises(PrivacyError, match="serves 1 runs of 4 clients"):
            mechanism.release("update", clipped(wrong), rounds)
    record = build(name, 4, 3)
    setups = [replace(record._site.setup, unit="record")]
    record._site = replace(record._site, setups=setups)
    with pytest.raises(PrivacyError, match="per record, but got a vector per client"):
        record.release("update", clipped(updates(1, 4, 3)), ROUND)


def test_privunit_releases_vectors_only(build, clipped):
    mechanism = build("privunit", 4, 3, specs=[ReleaseSpec("norm", "scalar")])
    with pytest.raises(PrivacyError, match="cannot release a scalar"):
        mechanism.release("norm", squared_norms(clipped(updates(1, 4, 3))), ROUND)


@pytest.mark.parametrize("name", NAMES)
def test_no_noise_is_used_twice(build, clipped, name):
    """The difference of two releases with equal noise is the difference of the values, without any
    noise.
    """
    mechanism = build(name, 4, 3, specs=[ReleaseSpec("update", per_round=2)])
    first = mechanism.release("update", clipped(updates(1, 4, 3)), ROUND).received
    second = mechanism.release("update", clipped(updates(1, 4, 3)), ROUND).received
    if name != "none":
        assert (first != second).all()
    with pytest.raises(PrivacyError, match="more than 2 times in a round"):
        mechanism.release("update", clipped(updates(1, 4, 3)), ROUND)
    third = mechanism.release("update", clipped(updates(1, 4, 3)), ROUND + 1).received
    if name != "none":
        assert (third != first).all()
        assert (third != second).all()
    mechanism.release("update", clipped(updates(1, 4, 3)), ROUND + 2)
    with pytest.raises(PrivacyError, match="a round that is over"):  # though it had one of two
        mechanism.release("update", clipped(updates(1, 4, 3)), ROUND + 1)
    assert mechanism._site.ledger.of_run(0).releases == 4


@pytest.mark.parametrize(
    ("number", "message"),
    [(0, "after the last"), (10_001, "after the last"), (5, "against its public schedule")],
)
def test_a_release_in_a_round_that_has_none_is_refused(build, clipped, number, message):
    spec = ReleaseSpec("update", made=np.arange(1, HORIZON + 1) != 5)
    mechanism = build("local_gaussian", 4, 3, specs=[spec])
    mechanism.release("update", clipped(updates(1, 4, 3)), np.array([4]))
    with pytest.raises(PrivacyError, match=message):
        mechanism.release("update", clipped(updates(1, 4, 3)), np.array([number]))
    assert mechanism._site.ledger.of_run(0).releases == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_is_not_charged_receives_nothing_and_may_release_later(build, clipped, name):
    mechanism = build(name, 4, 3, seeds=(5, 6))
    values = clipped(updates(2, 4, 3))
    release = mechanism.release("update", values, np.array([1, 1]), np.array([True, False]))
    assert release.received[0].any()
    assert not release.received[1].any()
    assert not release.mean[1].any()
    assert not opened(release.echo)[1].any()
    assert [mechanism._site.ledger.of_run(run).releases for run in (0, 1)] == [1, 0]
    later = mechanism.release("update", values, np.array([2, 1]), np.array([True, True]))
    alone = build(name, 4, 3, seeds=(6,)).release("update", clipped(updates(2, 4, 3)[1:]), ROUND)
    assert torch.equal(later.received[1:], alone.received)
    assert [mechanism._site.ledger.of_run(run).releases for run in (0, 1)] == [2, 1]


@pytest.mark.parametrize("name", ["local_gaussian", "privunit"])
def test_an_echo_is_of_the_cohort_of_its_round(build, name):
    """A row of it is another client's in the next one."""
    mechanism, sampling = build(name, 9, 5), Sampling("fixed", 3, 9)
    setups = [replace(mechanism._site.setup, sampling=sampling)]
    mechanism._site = replace(mechanism._site, setups=setups)
    cohort = drawn_cohort(Streams([0]), sampling, ROUND)
    drawn = of_cohort(client_values(updates(1, 3, 5)), cohort)
    release = mechanism.release("update", clip(drawn, torch.ones(1)), ROUND)
    assert release.echo.cohort is cohort


VARIANTS: dict[str, list[dict[str, Any]]] = {
    "none": [{}, {}, {}, {}],
    "local_gaussian": [{"noise_multiplier": z} for z in (0.35, 1.0, 0.35, 7.0)],
    "central_gaussian": [{"noise_multiplier": z} for z in (2.5, 1.0, 2.5, 7.0)],
    "privunit": [
        {},
        {"epsilon_norm": 5.0, "gamma_rule": "exact"},
        {},
        {"epsilon": 3.0, "split": "optimal"},
    ],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("clients", "dimension"), [(1, 2), (7, 100), (1000, 20)])
@pytest.mark.parametrize("name", NAMES)
def test_a_runs_slice_of_a_batch_is_the_run_alone_bit_for_bit(
    build, clipped, name, clients, dimension, dtype
):
    """Any company, any order, any rounds of the others; runs with equal seeds draw equal numbers at
    equal rounds.
    """
    seeds, norms, changes = [3, 4, 3, 9], [1.0, 0.5, 1.0, 2.0], VARIANTS[name]
    values = 0.2 * updates(4, clients, dimension, dtype)
    values[2] = values[0]
    starts = np.array([1, 5, 1, 63])

    def pass_over(order: list[int]) -> list[torch.Tensor]:
        mechanism = build(
            name,
            clients,
            dimension,
            seeds=[seeds[r] for r in order],
            changes=[changes[r] for r in order],
        )
        found = []
        for step in range(2):
            bounded = clipped(values[order], [norms[r] for r in order])
            release = mechanism.release("update", bounded, starts[order] + step)
            found += [release.received, release.mean, opened(release.echo)]
        return found

    batch = pass_over([0, 1, 2, 3])
    for run in range(4):
        for part, alone in zip(batch, pass_over([run]), strict=True):
            assert torch.equal(part[run], alone[0])
    for part, turned in zip(batch, pass_over([3, 1, 0, 2]), strict=True):
        assert torch.equal(part[[3, 1, 0, 2]], turned)
    for part in batch:
        assert torch.equal(part[0], part[2])
    if name != "none":
        assert not torch.equal(batch[0], batch[3])


@pytest.mark.parametrize("name", NAMES)
def test_the_plan_and_the_ledger_are_the_same_entry(build, clipped, name):
    shares = (3 / 4, 2.0) if name.endswith("gaussian") else (1.0, 1.0)
    specs = [
        ReleaseSpec("update", group="round", multiplier=lambda z, share=share: z * share)
        for share in shares
    ]
    mechanism = build(name, 4, 3, seeds=(0, 1), specs=specs[:1], relation="zero_out")
    mechanism._site.specs[1] = {"update": specs[1]}
    mechanism.release("update", clipped(updates(2, 4, 3)), np.array([1, 1]))
    for run, spec in enumerate(specs):
        planned = type(mechanism).entry(mechanism.settings[run], spec, mechanism._site.setup)
        assert (planned.count, planned.sensitivity) == (1, None)
        (written,) = mechanism._site.ledger.of_run(run).entries
        known = {**vars(written), "sensitivity": None}  # what was sent is counted, not planned
        assert {**known, "floats": 0, "form": ""} == vars(planned)


@pytest.mark.parametrize("one_message", [False, True])
def test_a_release_keeps_its_form(build, clipped, one_message: bool) -> None:
    """Draws are addressed by name and number: 3 numbers in round 4 are half of the 6 of round 2;
    also where a run went on after an interrupt.
    """
    specs = [ReleaseSpec("part", shape="matrix", per_round=2, one_message=one_message)]

    def mechanism(*ledgers: Ledger) -> Any:
        made = build("central_gaussian", 4, 6, specs=specs)
        made._site.ledger.started = ledgers or made._site.ledger.started
        return made

    first = mechanism()
    for number in (1, 1, 2, 2):
        first.release("part", clipped(updates(1, 4, 6)), np.array([number]))
    (entry,) = first._site.ledger.of_run(0).to_json()
    assert entry["form"] == "float64[6]"
    stored = Ledger.from_json([entry])
    for later in (first, mechanism(stored)):
        for other in (updates(1, 4, 3), updates(1, 4, 12), updates(1, 4, 6).float()):
            with pytest.raises(PrivacyError, match=r"'part' is .*, and was float64\[6\] before"):
                later.release("part", clipped(other), np.array([3]))
    again = mechanism(stored)
    again.release("part", clipped(updates(1, 4, 6)), np.array([3]))
    assert again._site.ledger.of_run(0).releases == 5


@pytest.mark.parametrize("name", NAMES)
def test_values_are_not_changed_by_their_release(build, clipped, name):
    values = clipped(updates(1, 4, 3))
    before = opened(values.values).clone()
    build(name, 4, 3).release("update", values, ROUND)
    assert torch.equal(opened(values.checked()), before)


SQUARE = updates(4, 4, 4)  # R = M = d, so that no shape tells the axes apart

MIXERS = {
    "roll": lambda v: v.roll(1, dims=1),
    "scan": lambda v: v.cumsum(1),
    "scan by keyword": lambda v: torch.cumsum(v, dim=-2),
    "softmax": lambda v: v.softmax(dim=1),
    "softmax over runs": lambda v: torch.nn.functional.softmax(v, dim=0),
    "permutation": lambda v: v[:, torch.tensor([3, 2, 1, 0])],
    "permuted runs": lambda v: v[torch.tensor([3, 2, 1, 0])],
    "permutation by a list": lambda v: v[:, [3, 2, 1, 0], :],
    "permutation under an ellipsis": lambda v: v[..., [3, 2, 1, 0], :],
    "mask": lambda v: v[:, torch.ones(4, dtype=torch.bool)],
    "mask of entries": lambda v: v[..., torch.eye(4, dtype=torch.bool)],
    "flip": lambda v: v.flip(1),
    "sort": lambda v: v.sort(dim=1)[0],
    "sort of a matrix": lambda v: v.square().sum(-1).sort(-1)[0],
    "index_select": lambda v: v.index_select(1, torch.tensor([3, 2, 1, 0])),
    "gather": lambda v: v.gather(1, torch.zeros(4, 4, 4, dtype=torch.long)),
    "take": lambda v: v.take(torch.zeros(4, 4, 4, dtype=torch.long)),
    "transpose": lambda v: v.transpose(1, 2),
    "transposed runs": lambda v: v.transpose(0, 1),
    "permute": lambda v: v.permute(1, 0, 2),
    "mT": lambda v: v.mT,
    "T": lambda v: torch.linalg.vector_norm(v, dim=-1).T,
    "contraction": lambda v: torch.einsum("mn,rnd->rmd", torch.ones(4, 4).double(), v),
    "renamed contraction": lambda v: torch.einsum("rmd,rnd->rmn", v, v),
    "diagonal": lambda v: torch.einsum("rrd,rmd->rmd", v, v),
    "implicit contraction": lambda v: torch.einsum("rnd,mn", v, torch.ones(4, 4).double()),
    "product from the left": lambda v: torch.ones(4, 4).double() @ v,
    "product of both": lambda v: v @ v,
    "product of a matrix": lambda v: v[..., 0] @ torch.ones(4, 4).double(),
    "product with more axes": lambda v: v @ torch.ones(4, 4, 4, 4).double(),
    "product from the left with more axes": lambda v: (
        torch.ones(4, 4, 4, 2, 4).double() @ v.unsqueeze(-1)
    ),
    "bmm": lambda v: torch.bmm(torch.ones(4, 4, 4).double(), v),
    "broadcast of a matrix": lambda v: v * torch.linalg.vector_norm(v, dim=-1),
    "broadcast of a plain cube": lambda v: v + torch.zeros(4, 4, 4, 4).double(),
    "comparison": lambda v: torch.where(v[..., 0] > 0, v, 0.0),
    "expanded in front": lambda v: v.expand(4, 4, 4, 4),
    "stacked in front": lambda v: torch.stack([v] * 4),
    "stacked beside": lambda v: torch.stack([v[..., 0]] * 4, dim=1),
    "joined": lambda v: torch.cat([v[..., :2]] * 2, dim=1),
    "clients in one row": lambda v: v.reshape(4, 1, 16),
    "clients as coordinates": lambda v: v.reshape(4, 2, 8),
    "unsqueezed": lambda v: v[..., 0].unsqueeze(1),
    "new axis": lambda v: v[:, None],
    "assigned": lambda v: v.clone().__setitem__((..., 0), v),
    "assigned clients": lambda v: v.clone().__setitem__((slice(None), 0), 1.0),
    "largest": lambda v: v.max(dim=1, keepdim=True)[0].expand(4, 4, 4),
    "norm over clients": lambda v: v / torch.linalg.vector_norm(v, dim=1, keepdim=True),
    "norm of all": lambda v: v / v.norm(),
    "normalised": torch.nn.functional.normalize,
    "normalised as a whole": lambda v: torch.nn.functional.normalize(v, dim=()),
    "distances": lambda v: torch.cdist(v, v),
    "covariance": lambda v: torch.corrcoef(v[..., 0]),
    "batch norm": lambda v: torch.nn.functional.batch_norm(v, None, None, training=True),
    "layer norm": lambda v: torch.nn.functional.layer_norm(v, (4, 4)),
    "convolution": lambda v: torch.nn.functional.conv1d(v, torch.ones(4, 4, 1).double()),
    "attention": lambda v: torch.nn.functional.scaled_dot_product_attention(v, v, v),
    "addition by index": lambda v: v.clone().index_add_(1, torch.zeros(4, dtype=torch.long), v),
    "scatter": lambda v: v.scatter(1, torch.zeros(4, 4, 4, dtype=torch.long), v),
    "renormed": lambda v: v.renorm(2, 2, 1.0),
    "fourier": lambda v: torch.fft.fft(v, dim=1),
    "beside a wider tensor": lambda v: torch.nn.functional.cosine_similarity(
        v, torch.ones(4, 4, 1, 4).double(), dim=2
    ),
}


@pytest.mark.parametrize("mixer", MIXERS.values(), ids=MIXERS.keys())
def test_clients_do_not_meet_in_a_shape_that_fits(mixer):
    """Each keeps, or may keep, the leading axes, so that only knowing the function tells that
    clients meet.
    """
    with pytest.raises(PrivacyError, match=r"client values in .*only in a mechanism's release"):
        mixer(client_values(SQUARE.clone()))


SEPARATE = {
    "slice": lambda v: v[..., 1:3],
    "chosen entries": lambda v: v[..., torch.tensor([2, 0, 0])],
    "column": lambda v: v[:, :, 1],
    "new last axis": lambda v: v[..., None] * torch.ones(4),
    "sort of a row": lambda v: v.sort(dim=-1)[0],
    "largest entries": lambda v: v.topk(2, dim=2).values,
    "scan of a row": lambda v: v.cumsum(dim=2),
    "row by a public matrix": lambda v: v @ torch.eye(4).double().flip(0),
    "row by a public vector": lambda v: torch.einsum("rmd,rd->rm", v, torch.ones(4, 4).double()),
    "own products": lambda v: torch.einsum("rmd,rme->rmde", v, v),
    "own matrix by own vector": lambda v: ((v[..., None] * v.unsqueeze(-2)) @ v[..., None]).squeeze(
        -1
    ),
    "reshaped": lambda v: v.reshape(4, 4, 2, 2).sum(dim=(2, 3)),
    "public factor": lambda v: v * torch.arange(4.0).reshape(4, 1, 1),
    "scaled to one": lambda v: v / torch.linalg.vector_norm(v, dim=-1, keepdim=True),
    "entry set": lambda v: _entry_set(v.clone()),
}


def _entry_set(v):
    v[..., 0] = v.square().sum(dim=-1)
    return v


@pytest.mark.parametrize("operation", SEPARATE.values(), ids=SEPARATE.keys())
def test_what_is_allowed_keeps_clients_apart(operation):
    """A client's row of the result depends on that client's row alone."""
    before = operation(client_values(SQUARE.clone()))
    changed = SQUARE.clone()
    changed[1, 2] = 7 * changed[1, 2].flip(0) + 1
    after = operation(client_values(changed))
    assert isinstance(after, ClientValues)
    differs = (opened(before) != opened(after)).reshape(4, 4, -1).any(dim=-1)
    wanted = torch.zeros(4, 4, dtype=torch.bool)
    wanted[1, 2] = True
    assert torch.equal(differs, wanted)


def _diagnostics(clipped) -> list[torch.Tensor]:
    bounded = clipped(updates(2, 4, 3))
    return [
        *update_diagnostics(bounded).values(),
        bounded.repaired,
        squared_norms(bounded).repaired,
    ]


def test_diagnostics_mark_what_they_touch_and_are_not_read(clipped):
    plain = torch.ones(2, dtype=torch.float64)
    for one in _diagnostics(clipped):
        assert isinstance(one, Diagnostic)
        touched = (
            plain + one,
            plain * one.unsqueeze(-1),
            torch.where(plain > 0, one, plain),
            one.clamp(min=1.0),
            plain[:1] / one[0],
        )
        for result in touched:
            assert isinstance(result, Diagnostic)
        assert type(shown(plain + one)) is torch.Tensor
        assert type(shown(plain)) is torch.Tensor
        reads = (
            one.tolist,
            one.numpy,
            lambda one=one: float(one[0]),
            lambda one=one: 1 if one[0] > 0 else 0,
            lambda one=one: plain.add_(one),
            lambda one=one: plain.__setitem__(0, one[0]),
            lambda one=one: plain[one.long()],
            lambda one=one: plain[one > 0],
            lambda one=one: one.nonzero(),
            lambda one=one: torch.where(one > 0),
            lambda one=one: torch.tensor(one),
            lambda one=one: torch.vmap(lambda x: x + 1)(one),
            lambda one=one: torch.add(one, one, out=plain),
            lambda one=one: client_values(updates(2, 4, 3)) * one.reshape(2, 1, 1),
            lambda one=one: client_values(one.reshape(2, 1)),
        )
        for read in reads:
            with pytest.raises(PrivacyError):
                read()
    assert torch.equal(plain, torch.ones(2, dtype=torch.float64))


def test_a_single_clients_values_are_not_shown():
    with pytest.raises(PrivacyError, match="no diagnostic"):
        shown(client_values(updates(1, 4, 3)))
    for wrong, said in ((torch.ones(1, 3), r"\[1, 3\]"), (3.0, "float")):
        with pytest.raises(ConfigError, match=f"'loss' is {said}: a number a run"):
            number_shown("loss", wrong, 1)


def test_a_clip_norm_is_public(clipped):
    values = client_values(updates(2, 2, 3))
    norms = torch.linalg.vector_norm(values, dim=-1)
    for secret in (*_diagnostics(clipped), norms):
        with pytest.raises(PrivacyError, match="a bound must be public"):
            clip(values, secret)
    with pytest.raises(PrivacyError, match="are client values"):
        clip(_diagnostics(clipped)[0].reshape(2, 1, 1), torch.ones(2))


class _Work:
    """An objective that returns what it is given."""

    runs, clients, dimension, dtype, device = 2, 4, 4, torch.float64, torch.device("cpu")
    federations = metrics = settings = None

    def initial(self, streams):
        return torch.zeros(2, 4)

    def gradient(self, parameters, batch=None):
        return opened(parameters)

    def local_descent(self, start, learning_rate, steps, drift=None, batches=None):
        return start.unsqueeze(1).expand(2, 4, 4) + (0 if drift is None else opened(drift))


def test_algorithms_reach_neither_records_nor_metrics():
    side = ClientSide(_Work())
    reached = {name for name in dir(side) if not name.startswith("_")}
    sizes = {
        "runs",
        "clients",
        "dimension",
        "features",
        "records",
        "divisors",
        "dtype",
        "device",
    }
    computed = {
        "gradient",
        "local_descent",
        "clipped_gradient",
        "squared_norms_mean",
    }
    computed |= {
        "damped_solve",
        "largest_curvature",
        "newton_direction",
        "covariance",
        "clipped_covariance",
        "precondition",
    }
    assert reached == sizes | computed | {
        *("initial", "regulariser_gradient", "prox"),
        "batches",  # opaque: who knows which records has lost the amplification
    }
    for name in ("federations", "metrics", "settings", "index", "objective", "_objective"):
        with pytest.raises(AttributeError):
            getattr(side, name)
    assert isinstance(
        side.gradient(torch.zeros(2, 4, 4)), ClientValues
    )  # also of a model that forgot to mark them
    assert isinstance(side.local_descent(torch.zeros(2, 4), torch.ones(2), 1), ClientValues)


def test_what_goes_to_every_client_is_public(clipped):
    side, start, rate = ClientSide(_Work()), torch.zeros(2, 4), torch.ones(2)
    own = client_values(updates(2, 4, 4))
    norms = torch.linalg.vector_norm(own, dim=-1)  # [2, 4], as large as a model
    secret = _diagnostics(clipped)[0]
    for begin, speed, drift in (
        (norms, rate, None),
        (start + secret.unsqueeze(-1), rate, None),
        (start, secret, None),
        (start, rate, norms),
        (start, rate, norms.unsqueeze(-1)),
        (start, rate, secret.reshape(2, 1, 1) * torch.ones(2, 4, 4)),
    ):
        with pytest.raises(PrivacyError):
            side.local_descent(begin, speed, 1, drift)
    with pytest.raises(PrivacyError):
        side.gradient(norms)
    assert torch.equal(opened(side.local_descent(start, rate, 1, own)), opened(own))


# What Python cannot be kept from doing is kept out of the sources.

PACKAGE = Path(dpfl_cli.__file__).parent
MAY_OPEN = ("privacy", "models", "simulation")
UNSEEN = {
    "tensor",
    "Tensor",
    "DoubleTensor",
    "FloatTensor",
    "as_subclass",
    "set_",
    "from_dlpack",
    "to_dlpack",
}


def sources() -> list[tuple[str, str, ast.Module]]:
    files = sorted(path for path in PACKAGE.rglob("*.py"))
    return [
        (path.relative_to(PACKAGE).as_posix(), path.parent.name, ast.parse(path.read_text()))
        for path in files
    ]


def openings(tree: ast.Module) -> set[str]:
    """Names by which a module reaches the inside of client values or of bounded values."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = {alias.name for alias in node.names}
            if (node.module or "").endswith("client_values"):
                found |= names & {"opened", "shown", "diagnostic", "*"}
            if (node.module or "").endswith("bounded"):
                found |= {name for name in names if name.startswith("_")} | names & {"*"}
            if (node.module or "").endswith("privacy"):
                found |= names & {"client_values", "bounded", "*"}
        elif isinstance(node, ast.Import):
            found |= {
                alias.name
                for alias in node.names
                if alias.name.endswith(("client_values", "privacy.bounded"))
            }
        elif isinstance(node, ast.Attribute) and node.attr in ("opened", "shown", "checked"):
            found.add(node.attr)
    return found


def test_only_privacy_models_and_simulation_open_client_values():
    modules = sources()
    assert any(path == "privacy/gaussian.py" for path, _, _ in modules)
    assert openings({path: tree for path, _, tree in modules}["privacy/bounded.py"]) >= {
        "opened",
        "checked",
    }
    offenders = [path for path, room, tree in modules if room not in MAY_OPEN and openings(tree)]
    assert offenders == []


def test_algorithms_use_nothing_that_client_values_cannot_see():
    offenders = []
    for path, room, tree in sources():
        if room != "algorithms":
            continue
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        called = {function.attr for function in calls if isinstance(function, ast.Attribute)}
        assigned = {
            target.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Attribute)
        }
        offenders += [(path, name) for name in (called & UNSEEN) | (assigned & {"data"})]
    assert offenders == []


def test_each_mechanism_says_what_it_is_for():
    known = {name: components("mechanism")[name].target for name in (*NAMES, "shared_gaussian")}
    assert {name: set(target.trusts) for name, target in known.items()} == {
        "none": {"none"},
        "local_gaussian": {"local"},
        "central_gaussian": {"central"},
        "privunit": {"local"},
        "shared_gaussian": {"secure_aggregation"},
    }
