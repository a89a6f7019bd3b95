"""Gradients by layers: against a loop over records, and their norms as bounds."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dpfl_cli.models.layerwise import RecordProducts, RecordRows, layer_gradients

LAYERS = {
    "point": (nn.Conv2d(4, 6, 1, bias=False), (4, 5, 3)),
    "point, one position": (nn.Conv2d(9, 5, 1), (9, 1, 1)),
    "point, two positions": (nn.Conv2d(9, 5, 1), (9, 2, 1)),
    "wide": (nn.Conv2d(3, 4, (3, 5), stride=(2, 1), padding=(1, 2)), (3, 7, 6)),
    "strided point": (nn.Conv2d(3, 4, 1, stride=2), (3, 5, 4)),
    "few positions": (nn.Conv2d(7, 8, 3, stride=2, padding=1), (7, 3, 3)),
    "channels": (nn.Conv2d(4, 4, 3, padding=1, groups=4), (4, 6, 5)),
    "strided channels": (nn.Conv2d(4, 4, (5, 3), (3, 2), (2, 1), groups=4), (4, 7, 8)),
    "channels at one position": (nn.Conv2d(4, 4, 5, padding=2, groups=4, bias=False), (4, 1, 1)),
    "linear": (nn.Linear(6, 4), (6,)),
    "normal": (nn.GroupNorm(2, 6), (6, 3, 2)),
}


def loss_of(module: nn.Module, inputs: Tensor) -> Tensor:
    """[n], each of its own record's outputs, with unlike derivatives."""
    outputs = module(inputs).flatten(1)
    weights = torch.arange(1.0, 1.0 + outputs.shape[1], dtype=outputs.dtype).cos()
    return (outputs * weights).sum(1).square() + outputs.square().sum(1)


def doubled(layer: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = nn.Sequential(layer).double()
        for parameter in module.parameters():
            nn.init.normal_(parameter)
    return module


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_is_a_loop_over_records(name: str) -> None:
    layer, shape = LAYERS[name]
    module = doubled(layer)
    inputs = torch.randn(5, *shape, generator=torch.Generator().manual_seed(1)).double()
    found = layer_gradients(module, lambda: loss_of(module, inputs))
    shares = torch.tensor([0.5, 0.0, 2.0, -1.0, 0.25], dtype=torch.float64)
    parameters = [*module.parameters()]
    for number, gradient in enumerate(found):
        rows = torch.stack(
            [
                torch.autograd.grad(loss_of(module, one[None]).sum(), parameters)[number].flatten()
                for one in inputs
            ]
        )
        torch.testing.assert_close(gradient.norms(), rows.norm(dim=1), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradient.combined(shares), shares @ rows, rtol=1e-10, atol=1e-10)
    assert len(found) == len(parameters)


def test_factors_are_kept_where_positions_are_few() -> None:
    kinds = {}
    for name in ("few positions", "point, one position", "point"):
        layer, shape = LAYERS[name]
        module = doubled(layer)
        inputs = torch.ones(2, *shape).double()
        kinds[name] = type(layer_gradients(module, lambda m=module, x=inputs: loss_of(m, x))[0])
    assert kinds == {
        "few positions": RecordProducts,
        "point, one position": RecordProducts,
        "point": RecordRows,
    }


@given(
    st.integers(0, 10**6),
    st.sampled_from([2, 3, 4, 16]),
    st.sampled_from([1, 7, 128]),
    st.sampled_from([1e-6, 1e-3, 0.0, 1.0]),
    st.sampled_from([1e-3, 1.0, 1e6]),
)
@settings(max_examples=80, deadline=None)
def test_no_record_is_longer_than_its_norm(
    seed: int, positions: int, size: int, left: float, scale: float
) -> None:
    """Positions that cancel but for a share `left`: what is added up in float32 keeps its bound."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(1, 1, size, generator=generator).expand(1, positions, size)
    outputs = torch.randn(1, positions, size, generator=generator)
    outputs[:, -1] = -outputs[:, :-1].sum(1) * (1 + left)
    one = RecordProducts(inputs.contiguous() * scale, outputs)
    made = one.combined(torch.ones(1, dtype=torch.float64)).double().norm()
    assert made <= one.norms()[0] * (1 + 4e-7)
    exact = one.outputs.double().mT @ one.inputs.double()
    sizes = (one.inputs.double().norm(dim=2) * one.outputs.double().norm(dim=2)).sum()
    assert one.norms()[0] <= exact.norm() * (1 + 4e-7) + 2e-7 * positions * sizes


@pytest.mark.parametrize("positions", [16, 1024])
def test_roundings_of_one_direction_keep_the_bound(positions: int) -> None:
    """Beside a first one of 1, positions of 0.6 units may count as one each."""
    outputs = torch.full((1, positions, 1), 0.6 * torch.finfo(torch.float32).eps)
    outputs[:, 0], outputs[:, -1] = 1.0, -1.0
    one = RecordProducts(torch.ones(1, positions, 1), outputs)
    made = one.combined(torch.ones(1, dtype=torch.float64)).double().norm()
    assert made <= one.norms()[0] * (1 + 4e-7)


@pytest.mark.parametrize("positions", [1, 4])
@pytest.mark.parametrize(
    ("given", "out"),
    [
        *((1e22, 1e22), (1e38, 1e-25), (1e-25, 1e38), (1e-25, 1e25)),
        *((1e18, 3e2), (1e10, 1e10), (1e-23, 1e18)),  # squares of the last one's inputs underflow
    ],
)
def test_factors_too_long_for_their_digits_are_no_gradient(
    positions: int, given: float, out: float
) -> None:
    """Shares of them would be numbers of few digits; whoever keeps one is within its bound."""
    one = RecordProducts(torch.full((1, positions, 2), given), torch.full((1, positions, 1), out))
    norm = one.norms()
    assert bool(norm.isinf()) == (max(given, out, given * out) > 1.8446e19)
    for limit in (1e-8, 1e-5, 1.0):
        shares = torch.where(norm < torch.inf, (limit / norm).clamp(max=1.0), 0.0)
        assert one.combined(shares).double().norm() <= limit * (1 + 4e-7)


def test_a_record_that_is_not_finite_is_lost_alone() -> None:
    for name in ("point", "few positions", "channels", "linear"):
        layer, shape = LAYERS[name]
        module = doubled(layer).float()
        inputs = torch.randn(3, *shape, generator=torch.Generator().manual_seed(2))
        spoilt = inputs.clone()
        spoilt[1] = torch.nan
        shares = torch.tensor([1.0, 0.0, 3.0], dtype=torch.float64)
        whole, holed = (
            layer_gradients(module, lambda m=module, x=x: loss_of(m, x)) for x in (inputs, spoilt)
        )
        for before, after in zip(whole, holed, strict=True):
            assert not after.norms()[1].isfinite()
            torch.testing.assert_close(after.combined(shares), before.combined(shares))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, padding="same", groups=4),
        nn.LayerNorm([4, 5, 5]),
    ],
)
def test_layers_that_are_not_known_are_refused(layer: nn.Module) -> None:
    module = doubled(layer)
    with pytest.raises(TypeError, match="its gradients by records are not known"):
        layer_gradients(module, lambda: loss_of(module, torch.ones(2, 4, 5, 5).double()))
