"""Devices: a round neither reads one nor waits for one.

A CPU cannot show a wait, but torch's `meta` device can: its tensors have no values, so that
whatever would wait for a GPU to read one (`item`, `bool`, `tolist`, `numpy`, `nonzero`) raises
there. What would wait without failing, a plain copy from the host, or an index in the host's
memory, shows in the operations.
"""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError, PrivacyError
from dpfl_cli.data import streams
from dpfl_cli.data.devices import host_numbers, noise_device
from dpfl_cli.data.streams import DeviceDraws, Draw, Streams, address_hash
from dpfl_cli.models import client_side, curvature, single_layer
from dpfl_cli.privacy import client_values, mechanism, record_bounds
from dpfl_cli.simulation import stack
from dpfl_cli.simulation.execute import run_members
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.plan import make_plan, with_values
from dpfl_cli.simulation.run_plan import Plan
from dpfl_cli.simulation.stack import Stack, stack_key


class Waits(TorchDispatchMode):
    """Notes operations for which a CPU waits for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        taken = [part for part in tree_leaves((args, kwargs)) if isinstance(part, torch.Tensor)]
        made = [part for part in tree_leaves(result) if isinstance(part, torch.Tensor)]
        there = any(part.device.type == "meta" for part in [*taken, *made])
        here = [part for part in taken if part.device.type == "cpu" and part.dim()]
        if name in ("_to_copy", "copy_"):
            source = args[1] if name == "copy_" else args[0]
            goal = result
            if source.device != goal.device:
                free = kwargs.get(
                    "non_blocking", args[2] if name == "copy_" and len(args) > 2 else False
                )
                if goal.device.type == "cpu" or not free:
                    self.found.append(f"{name} from {source.device} to {goal.device}")
        elif there and here and name not in ("empty_like", "new_empty", "new_zeros"):
            self.found.append(f"{name} of tensors on both sides")
        elif there and name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            if any(part.dtype == torch.bool for part in taken[1:2]) or any(
                isinstance(part, torch.Tensor) and part.dtype == torch.bool for part in args[1]
            ):
                self.found.append(f"{name} by a mask")
        elif there and name in (
            "_local_scalar_dense",
            "nonzero",
            "_linalg_eigh",
            "masked_select",
            "unique",
            "_unique2",
        ):
            self.found.append(name)
        return result


FIRST: list[bool] = []  # not empty in the first round of a walk


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """runtime.device is one that cannot be read, but for what the first round reads and keeps, and
    by conjugate gradients, which find that they go on, and the next time that they do not.
    """
    monkeypatch.setattr(stack, "pick_device", lambda name: torch.device("meta"))
    numbers = lambda values: [4.0] * len(values) if FIRST else host_numbers(values)
    monkeypatch.setattr(single_layer, "host_numbers", numbers)
    goes_on = cycle((True, False))
    monkeypatch.setattr(curvature, "host_numbers", lambda value: next(goes_on))
    for room in (client_side, client_values, mechanism):  # `Waits` looks on, as nobody else may
        monkeypatch.setattr(room, "refuse_watchers", lambda: None)


def walked(words: list[str]) -> tuple[list[str], list[str]]:
    """What waits on a device that cannot be read: in a round that is not shown, and in one that is,
    after the first.
    """
    return walked_plan(make_plan(compose_config(words)))


def walked_plan(plan: Plan) -> tuple[list[str], list[str]]:
    batch = Stack([Member(plan)])
    FIRST.append(True)
    try:
        batch.step(shown=False)
    finally:
        FIRST.clear()
    found = []
    for shown in (False, True):
        with Waits() as waits:
            batch.step(shown=shown)
        found.append(sorted(set(waits.found)))
    return found[0], found[1]


SYNTHETIC = ["dataset.clients=7", "dataset.dimension=5", "rounds=4"]
ALPHA_BETA = [
    "dataset=synthetic_alpha_beta",
    "dataset.clients=5",
    "dataset.records_per_client=12",
    "dataset.dimension=6",
]
CLASSES = [*ALPHA_BETA, "dataset.classes=3", "rounds=4"]
TWO_CLASSES = [*ALPHA_BETA, "dataset.classes=2", "rounds=4"]
LOGISTIC, SOFTMAX = [*TWO_CLASSES, "model=logistic"], [*CLASSES, "model=softmax"]
MLP = [*CLASSES, "model=mlp", "model.hidden=[4]", "model.average_pool=1"]
STEADY = ["algorithm.schedule=static", "algorithm.strong_convexity=null"]  # of no convex loss
ONE_STEP = ["dp.unit=record", "hints.local_steps=1"]
TRUSTS = {
    "client": {
        "none": ["dp=none"],
        "ldp": ["dp=ldp"],
        "cdp": ["dp=cdp"],
        "shares": ["dp=secure_aggregation"],
    },
    "record": {
        "none": ["dp=none"],
        "record": ["dp=record"],
        "cdp": ["dp=cdp", *ONE_STEP],
        "shares": ["dp=secure_aggregation", *ONE_STEP],
    },
}
METHODS: dict[str, tuple[str, list[list[str]]]] = {
    "fedavg": ("client", [SYNTHETIC, SOFTMAX, MLP]),
    "fedexp": ("client", [SYNTHETIC]),
    "fedexp_naive": ("client", [SYNTHETIC]),
    "scaffold": ("client", [SYNTHETIC, SOFTMAX]),
    "scaffnew": ("client", [SYNTHETIC, LOGISTIC]),
    "fednew": ("client", [SOFTMAX, LOGISTIC]),
    "fedfc": ("client", [SOFTMAX, LOGISTIC]),
    "fedgd": ("client", [SOFTMAX]),
    "fedavg_record": ("record", [SOFTMAX, LOGISTIC, MLP]),
    "primal_dual": ("record", [LOGISTIC, [*MLP, *STEADY]]),
    "isrl_dp": ("record", [LOGISTIC, SOFTMAX]),
    "adaptdp": ("record", [LOGISTIC, SOFTMAX]),
    "scaffold_record": ("record", [LOGISTIC]),
    "fednew_record": ("record", [SOFTMAX, LOGISTIC]),
    "fedfc_record": ("record", [SOFTMAX]),
    "fedgd_record": ("record", [SOFTMAX]),
}


@pytest.mark.parametrize("algorithm", list(METHODS))
def test_no_round_waits_for_a_device(algorithm: str, nowhere: None) -> None:
    """Under every trust model, and on every problem."""
    unit, (first, *others) = METHODS[algorithm]
    trusts = TRUSTS[unit]
    local = trusts["ldp" if unit == "client" else "record"]
    done = 0
    for problem, dp in [
        *((first, dp) for dp in trusts.values()),
        *((one, local) for one in others),
    ]:
        words = [*problem, *dp, "dp.mode=paper", f"algorithm={algorithm}"]
        try:
            plan = make_plan(compose_config(words))
        except ConfigError:  # not defined for this trust model
            assert problem is first
            continue
        assert walked_plan(plan) == ([], []), words
        done += 1
    assert done > len(others)


VARIANTS = {
    "minibatches of a network": [
        *["+experiment=scaffnew/messidor", "algorithm=scaffnew", "dp=ldp", "rounds=4"],
        *["model=vgg11_small", "model.width=2", "dataset.side=32", "dataset.train_records=4"],
        *["dataset.test_records=4", "algorithm.batch_size=2", "algorithm.local_steps=2"],
    ],
    "privunit": [*SYNTHETIC, "algorithm=fedexp", "dp=ldp_privunit"],
    "minibatches": [*LOGISTIC, "algorithm=fedavg_record", "dp=record", "algorithm.batch_size=4"],
    "minibatches of softmax": [
        *SOFTMAX,
        "algorithm=adaptdp",
        "dp=record",
        "algorithm.batch_size=4",
    ],
    "poisson": [
        *LOGISTIC,
        *["algorithm=fedavg_record", "dp=record", "dp.relation=zero_out", "accountant=pld"],
        *["algorithm.batch_size=4", "algorithm.sampling=poisson"],
    ],
    "with replacement": [
        *LOGISTIC,
        *["algorithm=fedavg_record", "dp=record", "dp.mode=paper"],
        *["algorithm.batch_size=4", "algorithm.sampling=with_replacement"],
    ],
    "epochs": [
        *LOGISTIC,
        *[
            "algorithm=fedavg_record",
            "dp=record",
            "algorithm.batch_size=4",
            "algorithm.sampling=epoch_permutation",
        ],
        "algorithm.local_steps=2",
    ],
    "covariance": [*SOFTMAX, "algorithm=fednew", "dp=cdp", "algorithm.curvature=covariance"],
    "cholesky": [*SOFTMAX, "algorithm=fednew", "dp=cdp", "model.solver=cholesky"],
    "warm start": [*SYNTHETIC, "algorithm=scaffold", "dp=ldp", "algorithm.warm_start=true"],
    "two releases": [*SYNTHETIC, "algorithm=scaffold", "dp=ldp", "algorithm.release=double"],
}


@pytest.mark.parametrize("name", list(VARIANTS))
def test_nor_do_these_choices(name: str, nowhere: None) -> None:
    assert walked(VARIANTS[name]) == ([], [])


def test_a_wait_would_be_seen(nowhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    there = torch.empty(3, device="meta")
    with Waits() as waits:
        torch.zeros(3).to("meta")
        torch.zeros(3).to("meta", non_blocking=True)
        there[torch.tensor([0, 1])]
        there.index_put_((torch.empty(3, dtype=torch.bool, device="meta"),), there)
    assert waits.found == [
        "_to_copy from cpu to meta",
        "index of tensors on both sides",
        "index_put_ by a mask",
    ]
    monkeypatch.undo()
    monkeypatch.setattr(stack, "pick_device", lambda name: torch.device("meta"))
    with pytest.raises(
        PrivacyError, match="NotImplementedError"
    ):  # conjugate gradients do read, in the first round
        walked([*SOFTMAX, "algorithm=fednew", "dp=cdp"])


# What rounds on a device leave unread.


def test_a_bound_that_a_device_was_not_asked_for_is_refused_when_metrics_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = Stack([Member(make_plan(compose_config([*SYNTHETIC, "algorithm=fedavg", "dp=ldp"])))])
    left, fine = batch.mechanism._limits._unread, torch.tensor([False])
    left["update"] = torch.tensor(True), fine
    batch.mechanism.verify()
    assert not left
    left["update"] = torch.tensor(True), ~fine
    with pytest.raises(PrivacyError, match="float32 mean over all clients"):
        batch.mechanism.verify()
    left["update"] = torch.tensor(False), fine
    with pytest.raises(PrivacyError, match="needs clipped values"):
        batch.evaluate({})


def test_settings_without_a_bound_give_nothing_but_nan_on_a_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values, good = torch.ones(2, 1), torch.tensor([[True], [False]])
    with pytest.raises(PrivacyError, match="no bound"):
        record_bounds._demanded(values, good, "no bound")
    assert (
        record_bounds._demanded(values.to("meta"), good.to("meta"), "no bound").device.type
        == "meta"
    )


# Noise that a device draws itself; here by torch's generator of the CPU.

ROUNDS = np.array([3, 4, 3])


def test_draws_of_a_device_depend_on_their_address_alone() -> None:
    draws = DeviceDraws([5, 5, 6], "cpu")
    for law in ("normal", "uniform"):
        values = draws.drawn(Draw(law, "noise/update", ROUNDS, 4, 6, torch.float64))
        assert values.shape == (3, 4, 6)
        for run, seed in enumerate([5, 5, 6]):
            alone = DeviceDraws([seed], "cpu").drawn(
                Draw(law, "noise/update", ROUNDS[run : run + 1], 4, 6, torch.float64)
            )
            assert torch.equal(alone[0], values[run])
        assert len({value.numpy().tobytes() for value in values}) == 3
        again = draws.drawn(Draw(law, "noise/update", np.array([4, 4, 3]), 4, 6, torch.float64))
        assert torch.equal(again[0], values[1])
        assert torch.equal(again[1:], values[1:])
        assert not torch.equal(
            draws.drawn(Draw(law, "noise/other", ROUNDS, 4, 6, torch.float64)), values
        )
    assert (
        len(
            {
                address_hash(seed, name, number)
                for seed in range(9)
                for name in "ab"
                for number in range(9)
            }
        )
        == 162
    )


def test_draws_of_a_device_have_their_law() -> None:
    draws = DeviceDraws([1], "cpu")
    normal = draws.drawn(Draw("normal", "x", np.array([1]), 100, 1000, torch.float64))
    assert abs(float(normal.mean())) < 5e-5**0.5 * 3
    assert abs(float(normal.square().mean()) - 1) < 0.02
    uniform = draws.drawn(Draw("uniform", "x", np.array([1]), 100, 1000, torch.float64))
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(float(uniform.mean()) - 0.5) < 0.005


def test_float32_noise_of_a_device_is_drawn_in_double_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A GPU's own ends at 6.76 standard deviations, and tells for sure of what is moved farther."""
    single, double = (
        DeviceDraws([5, 6], "cpu").drawn(Draw("normal", "n", np.array([3, 3]), 4, 32, kind))
        for kind in (torch.float32, torch.float64)
    )
    assert torch.equal(single, double.float())
    monkeypatch.setattr(streams, "DEVICE_DOUBLES", 48)
    parts = DeviceDraws([5], "cpu").drawn(Draw("normal", "n", np.array([3]), 4, 32, torch.float32))
    assert len(parts.unique()) == parts.numel()


def test_streams_leave_to_a_device_what_is_asked_for_on_it() -> None:
    drawing, host = Streams([5, 6, 5], noise="cpu"), Streams([5, 6, 5])
    noise = drawing.normal("n", ROUNDS, 4, 6)
    assert torch.equal(noise[0], noise[2])
    assert not torch.equal(noise, host.normal("n", ROUNDS, 4, 6))
    assert drawing.normal("n", ROUNDS, None, 6).shape == (3, 6)
    elsewhere = Streams([5, 6, 5])
    elsewhere._device = type("Elsewhere", (), {"device": torch.device("meta")})()  # type: ignore[assignment]
    assert torch.equal(elsewhere.normal("n", ROUNDS, 4, 6), host.normal("n", ROUNDS, 4, 6))


def test_subsets_of_a_device_are_uniform_subsets() -> None:
    held = np.array([[5, 3, 9], [4, 3, 8]])
    streams = Streams([1, 2], noise="cpu")
    counts = np.zeros((2, 3, 9))
    for round_ in range(600):
        chosen = streams.subset("batch", np.array([round_, round_]), 3, held, 3).numpy()
        assert (np.diff(chosen, axis=-1) > 0).all()
        assert (chosen >= 0).all()
        assert (chosen < held[..., None]).all()
        np.add.at(counts, (np.arange(2)[:, None, None], np.arange(3)[None, :, None], chosen), 1)
    for run, client in np.ndindex(2, 3):
        share = counts[run, client, : held[run, client]] / 600
        np.testing.assert_allclose(share, 3 / held[run, client], atol=0.1)
    alone = Streams([2], noise="cpu").subset("batch", np.array([599]), 3, held[1:], 3)
    assert np.array_equal(alone[0].numpy(), chosen[1])
    with pytest.raises(ConfigError, match="cannot draw 4 records"):
        streams.subset("batch", np.array([1, 1]), 3, held, 4)


def test_who_draws_is_a_choice_of_the_run_but_not_part_of_it() -> None:
    config = compose_config(SYNTHETIC)
    plans = [make_plan(with_values(config, {"runtime.noise": noise})) for noise in ("auto", "host")]
    assert plans[0].id == plans[1].id
    assert stack_key(plans[0]) != stack_key(plans[1])
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert [noise_device(name, gpu) for name in ("auto", "host", "device")] == [gpu, None, gpu]
    assert [noise_device(name, cpu) for name in ("auto", "host", "device")] == [None] * 3
    with pytest.raises(ConfigError, match=r"runtime\.noise=device"):
        make_plan(with_values(config, {"runtime.noise": "device", "runtime.device": "cpu"}))


# On a GPU, where there is one.


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("algorithm", list(METHODS))
def test_rounds_on_a_gpu(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a CPU; and after the first round nothing waits but conjugate gradients, which ask
    every sixteenth step whether to go on.
    """
    monkeypatch.setattr(curvature, "host_numbers", _told_all_the_same)
    unit, problems = METHODS[algorithm]
    for problem in problems:
        words = [
            *problem,
            *TRUSTS[unit][
                "none" if algorithm == "scaffnew" else "cdp" if unit == "client" else "record"
            ],
        ]
        config = compose_config(
            [*words, "dp.mode=paper", f"algorithm={algorithm}", "runtime.noise=host"]
        )
        try:
            plans = [
                make_plan(with_values(config, {"runtime.device": device}))
                for device in ("cpu", "cuda")
            ]
        except ConfigError:  # not defined for this trust model
            continue
        here, there = (
            [dict(row) for member in run_members([Member(plan)], _no, _no) for row in member.rows]
            for plan in plans
        )
        assert [row.keys() for row in here] == [row.keys() for row in there]
        for one, other in zip(here, there, strict=True):
            tolerance = (
                1e-6
                if all(model not in words for model in ("model=softmax", "model=mlp"))
                else 1e-3
            )  # float32
            np.testing.assert_allclose(
                list(one.values()), list(other.values()), rtol=tolerance, atol=tolerance
            )
        batch = Stack(
            [
                Member(
                    make_plan(
                        with_values(config, {"runtime.device": "cuda", "runtime.noise": "device"})
                    )
                )
            ]
        )
        batch.step(shown=False)
        torch.cuda.set_sync_debug_mode("error")
        try:
            batch.step(shown=False)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def _told_all_the_same(values: torch.Tensor) -> Any:
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("default")
    try:
        return host_numbers(values)
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def _no(_: Any) -> None:
    """What a run tells while it runs; nobody listens."""
