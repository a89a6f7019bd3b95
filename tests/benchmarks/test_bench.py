"""The benchmarks compare equals: on tiny problems every reference computes what dpfl computes. No
times here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpfl_cli.data.streams import Streams
from dpfl_cli.simulation.member import Member
from dpfl_cli.simulation.plan import make_plan
from dpfl_cli.simulation.run_plan import federation_of
from dpfl_cli.simulation.stack import Stack
from tests.benchmarks import (
    client_rounds,
    convex,
    features,
    harness,
    images,
    linear,
    networks,
    own_module,
    record_level,
    run,
    second_order,
)
from tests.benchmarks.harness import Case, Contender, Workload
from tests.padding import padded

ON_CPU = "runtime.device=cpu"  # where the references are computed


def test_linear_rounds_agree() -> None:
    words = ["dp=none", "dataset.dimension=7", "dataset.clients=5", "algorithm.clip_norm=0.05"]
    plan = linear.linear_plan(*words, ON_CPU)
    batch = Stack([Member(plan)])
    batch.step()
    features, targets, _ = (torch.as_tensor(part) for part in padded(federation_of(plan)))
    settings = plan.algorithm.settings
    fixed = (settings.local_steps, settings.local_lr, settings.clip_norm, 0.0)
    for reference in (linear.loop, linear.stacked):
        torch.testing.assert_close(
            reference(features, targets, *fixed), batch.state.server["model"][0], rtol=0, atol=1e-12
        )


def test_a_grid_runs_again_from_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "GRID_SEEDS", 1)
    workload = linear.grid("cpu", "rounds=1", "dataset.dimension=3", "dataset.clients=4")
    for contender in (workload.engine, workload.engine, *workload.references.values()):
        contender.run()
    assert workload.engine.rounds == 2.0


@pytest.mark.parametrize("model", ["mnist_cnn", "mnist_cnn_small"])
def test_local_training_of_images_agrees(model: str) -> None:
    settings, federation = images.settings_of(model), images.federation_of(np.array([3, 1, 4]))
    objective = images.TorchPath(settings, [federation], np.array([0]))
    start = objective.initial(Streams([0]))
    updates = images.engine(objective, start, 2)
    for reference in (images.loop, images.stacked):
        found = reference(settings, federation, [0, 1, 2], start[0], 2)
        torch.testing.assert_close(found, updates, rtol=0, atol=1e-5)


def test_the_torch_path_is_not_the_kernel() -> None:
    settings, federation = (
        images.settings_of("mnist_cnn_small"),
        images.federation_of(np.array([2])),
    )
    assert images.TorchPath(settings, [federation], np.array([0]))._kernel() is None


def test_unequal_sizes_keep_their_sum_and_bounds() -> None:
    sizes = images.unequal_sizes(50, 1000, 60)
    assert sizes.sum() == 1000
    assert sizes.min() >= 1
    assert sizes.max() <= 60
    assert len(np.unique(sizes)) > 10


def test_record_level_steps_agree() -> None:
    federation = record_level.softmax_federation(2, 12, 6, 3)
    objective = record_level.softmax_objective(federation, bias=True)
    features, labels, _ = (torch.from_numpy(part) for part in padded(federation))
    start, numbers = torch.zeros(2, objective.dimension), record_level.batches(3, 2, 12, 5)
    expected = record_level.engine(objective, start, numbers)
    for reference in (
        record_level.record_by_record,
        record_level.per_record_vmap,
        record_level.materialised,
    ):
        torch.testing.assert_close(
            reference(features, labels, start, numbers), expected, rtol=0, atol=1e-5
        )


def test_hessian_solves_agree() -> None:
    federation = record_level.softmax_federation(2, 6, 5, 3)
    objective = record_level.softmax_objective(
        federation, solver="cg", solver_precision="float64", precision="float64"
    )
    features, labels, _ = (torch.from_numpy(part) for part in padded(federation))
    values, right = (value.double() for value in second_order.operands(objective))
    expected = second_order.engine(objective, values, right, "hessian")
    for reference in (second_order.record_by_record, second_order.per_record_vmap):
        found = reference(features.double(), labels, values[0], right[0], 2)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_covariance_solves_agree() -> None:
    federation = record_level.softmax_federation(2, 4, 9, 3)
    objective = record_level.softmax_objective(federation)
    features, _, _ = (torch.from_numpy(part) for part in padded(federation))
    values, right = second_order.operands(objective)
    expected = second_order.engine(objective, values, right, "covariance")
    for reference in (second_order.dense, second_order.dense_stacked):
        torch.testing.assert_close(reference(features, right[0], 2), expected, rtol=0, atol=1e-5)


def test_primal_dual_rounds_agree(tmp_path: Path) -> None:
    problem = convex.random_problem(tmp_path, 24, 4)
    plan = make_plan(convex.problem_config(problem, 3, "dp=none", "rounds=6", "seed=1", ON_CPU))
    features, targets = convex.records_of(plan)
    (done,) = convex.whole([Member(plan)])
    fixed = (6, convex.STEP, convex.L2, 0.0)
    for gradient in (convex.mean_gradient, convex.clipped_gradient):
        found = convex.loop(features, targets, *fixed, gradient)
        torch.testing.assert_close(found, done.state.server["local"], rtol=0, atol=1e-12)
    torch.testing.assert_close(
        convex.stacked(features, targets, *fixed), done.state.server["local"], rtol=0, atol=1e-12
    )


def test_whole_runs_of_several_lengths_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convex, "CLIENTS", 2)
    monkeypatch.setattr(convex, "RECORDS", 6)
    workload = convex.whole_runs([0, 1], [2, 3], "cpu")
    workload.engine.run()
    assert workload.engine.rounds == 10.0


@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        (("cnn_cifar_small", (3, 8, 8), 4, 2, 3), {"channels": [2, 3]}),
        (("vgg11_small", (3, 32, 32), 2, 2, 2), {"width": 2}),
        (("unet3d", (1, 6, 5, 4), None, 2, 1), {"channels": 2, "groups": 2}),
        (("lstm2", (10,), None, 2, 3), {"embedding": 3, "hidden": 4}),
    ],
    ids=lambda part: part[0] if isinstance(part, tuple) else "",
)
def test_minibatch_gradients_of_networks_agree(shape, changes) -> None:
    problem = networks.Problem(*shape)
    objective = networks.objective_of(problem, changes)
    at, batch = networks.points(objective), networks.drawn(objective, problem)
    expected = networks.engine(objective, at, batch)
    references = [networks.loop, networks.stacked] + [networks.stacked_lstm] * (
        problem.model == "lstm2"
    )
    for reference in references:
        torch.testing.assert_close(reference(objective, at, batch), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "message"),
    [*client_rounds.MESSAGES.items(), ("fednew", client_rounds.covariance_direction)],
)
def test_stacked_rounds_agree(method: str, message: client_rounds.Message) -> None:
    """Two of them, so that controls and directions are not zero."""
    sizes = {"clients": 2, "records": 5, "width": 4, "classes": 3}
    words = ["dp=none", "model.precision=float64", ON_CPU]
    if message is client_rounds.covariance_direction:
        words.append("algorithm.curvature=covariance")
    stack = client_rounds.stack_of(method, sizes, 2, *words)
    assert len(stack.objective.federations) == 1
    whole = padded(federation_of(stack.members[0].plan))
    features, labels = torch.from_numpy(whole[0]).double(), torch.from_numpy(whole[1])
    begin = {name: value[0] for name, value in stack.state.server.items()}
    found = [client_rounds.engine(stack) for _ in range(2)]
    for how in (client_rounds.loop, client_rounds.stacked):
        server, own = begin, torch.zeros(2, 12, dtype=torch.float64)
        for expected, controls in found:
            server, own = client_rounds.plain_round(
                method, message, how, features, labels, own, server, 0.0
            )
            assert server.keys() == expected.keys()
            for name, value in server.items():
                torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-6)
            if controls is not None:
                torch.testing.assert_close(own, controls, rtol=0, atol=1e-6)


def test_features_of_images_agree() -> None:
    network, records = features.random_network(), features.random_images(3)
    extract = features.BACKBONES[features.EFFICIENTNET].build(network.state_dict(), torch.empty(0))
    found = torch.from_numpy(features.engine(extract, records).copy())
    expected = features.plain(network, records)
    assert expected.std() > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_local_training_of_an_own_module_agrees() -> None:
    federation = images.federation_of(np.array([3, 4]))
    objective = own_module.Own(own_module.NetworkSettings(), [federation], np.array([0]))
    start = objective.initial(Streams([0]))
    found = own_module.loop(federation, 2, start[0])
    torch.testing.assert_close(found, own_module.engine(objective, start), rtol=0, atol=1e-5)


def test_a_measured_row_has_every_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "SAMPLE_SECONDS", 0.0)
    monkeypatch.setattr(harness, "PRODUCT_SIZE", 8)
    held = torch.ones(100)
    workload = Workload(
        Contender(held.sum),
        {"loop": Contender(held.sum, 0.5), **linear.noise(held.sum, 2.0)},
        100.0,
    )
    row = harness.measure(Case("X", "a sum", lambda device: workload, "sums"), 2)
    assert row["title"].startswith("a sum: ")
    assert row["title"].endswith(" sums a second")
    assert row["rounds_per_call"] == {"engine": 1.0, "loop": 0.5, "noise": 2.0, "numpy": 2.0}
    assert row["ratio_to_vmap"] is None
    assert (
        min(
            row["seconds_per_round"],
            row["ratio_to_loop"],
            row["times_noise"],
            row["times_numpy_noise"],
            row["gflops"],
            row["fraction_of_peak"],
        )
        > 0
    )
    assert json.loads(json.dumps(row)) == row
    assert run.table([row], 2).row_count == 1
    assert len(run.markdown([row]).splitlines()) == 3


@pytest.mark.parametrize(
    ("case", "seconds", "ratios", "met"),
    [
        ({}, 1.0, {"loop": 2.0}, None),
        ({"floor": 3}, 1.0, {"loop": 3.0, "numpy": 0.1}, True),
        ({"floor": 3}, 1.0, {"loop": 2.9}, False),
        ({"floor": 2.5}, 1.0, {"numpy": 0.4}, True),  # it takes 2.5 times as long
        ({"floor": 2.5}, 1.0, {"numpy": 0.39}, False),
        ({"floor": 100, "counted": "images"}, 0.01, {"loop": 1.5}, True),
        ({"floor": 100, "counted": "images"}, 0.011, {"loop": 1.5}, False),
    ],
)
def test_a_floor_is_kept_or_missed(
    case: dict[str, Any], seconds: float, ratios: dict[str, float], met: bool | None
) -> None:
    assert (
        Case("X", "a case", lambda device: Workload(Contender(int), {}), **case).met(
            seconds, ratios
        )
        is met
    )


def test_a_scaled_part_counts_as_a_whole_round(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 6.0])
    monkeypatch.setattr(harness.time, "perf_counter", lambda: next(clock))
    assert (
        harness.sample(Contender(lambda: None, 0.25), 3) == 8.0
    )  # 6 s in 3 calls of a quarter of a round


def test_a_workload_that_is_none_is_named() -> None:
    with pytest.raises(SystemExit):
        run.main(["--only", "Z"])


def test_too_much_memory_is_told_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After the table and the file are written."""
    row = dict.fromkeys(
        (
            "ratio_to_loop",
            "ratio_to_vmap",
            "times_noise",
            "times_numpy_noise",
            "gflops",
            "fraction_of_peak",
            "gpu_seconds_per_round",
        )
    )
    known = {**row, "workload": "X", "title": "a sum", "seconds_per_round": 1.0, "other_ratios": {}}
    known |= {"floor": 3, "floor_met": False}
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path))
    for peaks, code in (((None, run.MOST_MEMORY), 0), ((5 << 30, run.MOST_MEMORY), 1)):
        rows = [{**known, "peak_memory_bytes": peak} for peak in peaks]
        monkeypatch.setattr(run, "measured", lambda cases, repeats, rows=rows: rows)
        assert run.main(["--only", "A"]) == code
        told = capsys.readouterr()
        assert "a sum" in told.out
        assert "X a sum: 3 asked\n" in told.err
        assert json.loads((tmp_path / "bench" / "bench.json").read_text())["results"] == rows
        assert ("X a sum: a peak of 5.00 GiB of memory, more than 4 GiB" in told.err) == bool(code)
