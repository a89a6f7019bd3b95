"""Clipping and what derives from it, attacked by random and by adversarial neighbours."""

from __future__ import annotations

import dataclasses
import math

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.models.curvature import packed, unpacked
from dpfl_cli.privacy.bounded import (
    Bounded,
    as_computed,
    bounded,
    clip,
    clip_symmetric,
    own_norms,
    squared_norms,
    vector_norms,
    with_lost,
)
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened, shown
from dpfl_cli.privacy.record_bounds import mean_clipped, number_mean, record_covariance, record_mean

RELATIONS = ("replace_one", "add_or_remove", "zero_out")
DTYPES = (torch.float32, torch.float64)


def anything(width: int):
    """Vectors of any floats at all, with more than their share of the awkward ones."""
    awkward = [0.0, -0.0, math.nan, math.inf, -math.inf, 1e30, -1e30, 1e-30, 3e38, 1e-45, 1.8e19]
    awkward = [float(np.float32(x)) for x in awkward] + (
        [1e-160, 1e154, 1e160, 1e308] if width == 64 else []
    )
    element = st.one_of(
        st.sampled_from(awkward), st.floats(width=width), st.floats(-10, 10, width=width)
    )
    return arrays.arrays(
        np.dtype(f"float{width}"),
        st.tuples(st.just(2), st.integers(1, 4), st.integers(1, 9)),
        elements=element,
    )


def _clip(values, clip_norm) -> Bounded:
    tensor = torch.as_tensor(values)
    return clip(
        client_values(tensor), torch.full(tensor.shape[:1], float(clip_norm), dtype=torch.float64)
    )


def _distances(bounded: Bounded) -> np.ndarray:
    """[R, M, M] exact distances between contributions (of different clients: any two can be one
    client's neighbours).
    """
    inside = opened(bounded.values).double().numpy()
    inside = inside if inside.ndim == 3 else inside[..., None]
    return np.linalg.norm(inside[:, :, None] - inside[:, None], axis=-1)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([32, 64]).flatmap(anything), st.floats(1e-6, 1e6))
def test_no_input_at_all_leaves_the_ball_or_exceeds_a_sensitivity(values, clip_norm):
    bounded = _clip(values, clip_norm)
    inside = opened(bounded.values).double().numpy()
    limit = bounded.bound.double().numpy()[:, None]
    assert np.isfinite(inside).all()
    assert (np.linalg.norm(inside, axis=-1) <= limit * (1 + 1e-6)).all()
    squares = squared_norms(bounded)
    for derived in (bounded, squares):
        largest = _distances(derived).max(axis=(1, 2))
        assert (largest <= derived.sensitivity("replace_one").double().numpy() * (1 + 2e-6)).all()
        plain = opened(derived.values).double().numpy()
        size = np.linalg.norm(plain, axis=-1) if plain.ndim == 3 else np.abs(plain)
        for relation in ("add_or_remove", "zero_out"):
            assert (
                size.max(axis=1) <= derived.sensitivity(relation).double().numpy() * (1 + 1e-6)
            ).all()
    plain = opened(squares.values).numpy()
    assert (plain >= 0).all()
    assert (plain <= squares.bound.numpy()[:, None]).all()


@settings(max_examples=80, deadline=None)
@given(st.sampled_from([32, 64]).flatmap(anything), st.floats(1e-3, 1e3))
def test_clip_is_the_formula_where_the_norm_is_finite_and_zero_elsewhere(values, clip_norm):
    bounded = _clip(values, clip_norm)
    limit = float(bounded.bound[0])
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.linalg.norm(values.astype(np.float64), axis=-1, keepdims=True)
        finite = norms[..., 0] <= np.sqrt(np.finfo(values.dtype).max)
        expected = np.where(
            finite[..., None], values * np.minimum(1, limit / np.maximum(norms, 1e-300)), 0
        )
    np.testing.assert_allclose(
        opened(bounded.values).numpy(), expected, rtol=2e-6, atol=limit * 1e-12
    )
    np.testing.assert_array_equal(shown(bounded.repaired).numpy(), (~finite).sum(axis=1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_types_that_are_too_coarse_for_a_norm_are_refused(dtype):
    """Of a vector in half precision the norm is off by 5e-4, and the ball would be left."""
    values = torch.full((1, 2, 100), 3.0).to(dtype)
    with pytest.raises(PrivacyError, match="float32 or float64"):
        _clip(values, 1.1)


@pytest.mark.parametrize("size", [1, 2, 65, 200])
@pytest.mark.parametrize("large", [1e30, 3e38])
def test_where_the_large_entry_stands_makes_no_difference(size, large):
    """Alone in its block its norm is finite, but the factor that would scale it to C is a subnormal
    with few digits.
    """
    row = torch.zeros(1, 2, size)
    row[0, 0, -1] = row[0, 1, 0] = large
    bounded = _clip(row, 0.1)
    assert not opened(bounded.values).any()
    assert shown(bounded.repaired).tolist() == [2]


@pytest.mark.parametrize("size", [1, 127, 128, 129, 5046, 300_000])
def test_small_entries_cannot_hide_behind_a_large_one(size):
    """Adversarial for float32 sums: squares below half a unit of the running sum are lost in a
    plain one.
    """
    row = torch.full((1, 1, size), 2.4e-4)
    row[..., 0] = 1.0
    exact = torch.linalg.vector_norm(row.double(), dim=-1)
    torch.testing.assert_close(vector_norms(row), exact, rtol=4e-7, atol=0)
    clipped = opened(_clip(row, 0.5).values).double()
    assert torch.linalg.vector_norm(clipped) <= 0.5 * (1 + 1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([1, 64, 65, 5046]),
    st.floats(-40, -15),
    st.floats(-18, -12),
)
def test_squares_that_are_lost_hide_no_length(seed, size, entry, bound):
    """Entries whose squares float32 has few digits of, or none."""
    drawn = np.random.default_rng(seed).normal(size=(1, 3, size)) * 10**entry
    values = drawn.astype(np.float32)
    clipped = opened(_clip(values, 10**bound).values).double()
    length = torch.linalg.vector_norm(clipped, dim=-1)
    assert length.max() <= 10**bound * (1 + 1e-6)
    exact = torch.linalg.vector_norm(torch.from_numpy(values).double(), dim=-1)
    lost = with_lost(vector_norms(torch.from_numpy(values)), size, torch.float32)
    assert (lost >= exact * (1 - 1e-6)).all()
    assert (lost <= exact * (1 + 1e-6) + 1e-18 * math.sqrt(size)).all()


def test_norms_whose_squares_are_whole_stay_as_they_are():
    norms = torch.tensor([0.0, 1e-14, 1.0, torch.inf]).double()
    assert torch.equal(with_lost(norms, 100, torch.float32)[1:], norms[1:])
    assert torch.equal(with_lost(norms, 100, torch.float64)[1:], norms[1:])


@pytest.mark.parametrize("derive", [lambda b: b, squared_norms], ids=["clip", "squared_norms"])
@pytest.mark.parametrize("relation", RELATIONS)
def test_gradient_ascent_reaches_the_sensitivity_and_never_passes_it(derive, relation):
    """Two inputs of one client are pushed apart (replace_one), or one away from nothing, by ascent
    on the released value.
    """
    torch.manual_seed(3)
    clip_norm, inputs = 0.7, 0.1 * torch.randn(5, 2, 6, dtype=torch.float64)
    gap = None
    for _ in range(300):
        inputs.requires_grad_(True)
        bounded = derive(_clip(inputs, clip_norm))
        released = opened(bounded.values).reshape(5, 2, -1)
        other = released[:, 1] if relation == "replace_one" else torch.zeros_like(released[:, 1])
        gap = torch.linalg.vector_norm(released[:, 0] - other, dim=-1)
        assert (gap <= bounded.sensitivity(relation) * (1 + 1e-12)).all()
        (step,) = torch.autograd.grad(gap.sum(), inputs)
        inputs = (inputs + 0.2 * step).detach()
    assert gap is not None
    reached = gap / bounded.sensitivity(relation)
    assert reached.max() > 0.99


def test_each_run_has_its_own_bound():
    values = torch.full((3, 2, 4), 5.0, dtype=torch.float64)
    bounded = clip(client_values(values), torch.tensor([1.0, 2.0, math.inf], dtype=torch.float64))
    norms = torch.linalg.vector_norm(opened(bounded.values), dim=-1)
    torch.testing.assert_close(
        norms, torch.tensor([[1.0, 1.0], [2.0, 2.0], [10.0, 10.0]], dtype=torch.float64)
    )
    assert bounded.replace_one.tolist() == [2.0, 4.0, math.inf]
    assert squared_norms(bounded).replace_one.tolist() == [1.0, 4.0, math.inf]


@pytest.mark.parametrize("width", [32, 64])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_values_and_norms_of_what_was_clipped(width, data):
    """Bit by bit what multiplying and masking at once would give, and the norms of that."""
    values = torch.from_numpy(data.draw(anything(width)))
    limit = torch.tensor(
        data.draw(
            st.sampled_from(
                [
                    *([1.0, 0.3], [math.inf, 2.0], [1e-40, 1e15], [math.inf, math.inf]),
                    [3e-19, 4e-19],  # about what squares may have lost, by the width
                ]
            )
        )
    )
    norms = with_lost(vector_norms(values), values.shape[-1], values.dtype).unsqueeze(-1)
    finite = norms <= math.sqrt(torch.finfo(values.dtype).max)
    bound = limit.to(values.dtype).reshape(-1, 1, 1)
    scale = torch.where(norms > bound, bound / norms, torch.ones_like(norms)).to(values.dtype)
    expected = (values * scale).masked_fill_(~(finite | torch.isinf(bound)), 0.0)
    bounded = clip(client_values(values), limit)
    for found, wanted in (
        (bounded.checked(), expected),
        (opened(own_norms(bounded.values)), vector_norms(expected)),
    ):
        assert found.dtype == wanted.dtype
        assert torch.equal(found.nan_to_num(nan=-1.0), wanted.nan_to_num(nan=-1.0))
        assert torch.equal(found.signbit() & ~found.isnan(), wanted.signbit() & ~wanted.isnan())


def test_what_is_kept_of_clipping_is_marked_as_the_clients(clipped):
    bounded = clipped(torch.full((1, 2, 3), 9.0), 0.3)
    for kept in (bounded.values, own_norms(bounded.values)):
        assert isinstance(kept, ClientValues)
        with pytest.raises(PrivacyError, match="client values"):
            kept.mean(dim=1)
    assert bounded.shape == bounded.values.shape == (1, 2, 3)


def test_only_clipping_makes_bounded_values(clipped):
    bounded = clipped(torch.ones(1, 2, 3))
    fields = {
        field.name: getattr(bounded, field.name)
        for field in dataclasses.fields(bounded)
        if field.init
    }
    with pytest.raises(PrivacyError, match="clipping only"):
        Bounded(**fields)
    with pytest.raises(PrivacyError, match="clipping only"):
        dataclasses.replace(bounded, values=client_values(torch.full((1, 2, 3), 100.0)))
    with pytest.raises(PrivacyError, match="clipping only"):
        dataclasses.replace(bounded, zero_out=bounded.zero_out / 100)
    with pytest.raises(dataclasses.FrozenInstanceError):
        bounded.bound = torch.zeros(1)


CHANGES = {
    "values scaled": lambda b: b.values.mul_(10),
    "values assigned": lambda b: b.values.__setitem__((Ellipsis, 0), 9.0),
    "bound lowered": lambda b: b.bound.mul_(0.1),
    "sensitivity lowered": lambda b: b.replace_one.mul_(0.1),
    "other sensitivity lowered": lambda b: b.zero_out.fill_(0.1),
}


@pytest.mark.parametrize("of_records", [False, True])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_in_place_after_clipping_is_noticed(clipped, change, of_records):
    bounded = clipped(torch.ones(1, 2, 3))
    if of_records:  # of which every sensitivity is a tensor of its own
        bounded = record_mean(bounded.values, bounded.bound, torch.tensor([2, 2]))
    bounded.checked()
    change(bounded)
    for use in (bounded.checked, bounded.check):
        with pytest.raises(PrivacyError, match="changed in place"):
            use()
    if bounded.is_vector:
        with pytest.raises(PrivacyError, match="changed in place"):
            squared_norms(bounded)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1)])
def test_one_clip_norm_a_run(shape):
    with pytest.raises(PrivacyError, match="one bound a run"):
        clip(client_values(torch.ones(2, 3, 4)), torch.ones(shape))


def test_squared_norms_are_of_vectors(clipped):
    with pytest.raises(PrivacyError, match="vectors"):
        squared_norms(squared_norms(clipped(torch.ones(1, 2, 3))))


# level -> (contribution of a client's records, how far one privacy unit may move it under a
# relation)
COVARIANCES = {
    "record": (
        lambda x, c: record_covariance(
            client_values(_mean_product(_in_ball(x, c))), _limit(c), torch.tensor([len(x)])
        ),
        lambda c, m: {
            "replace_one": math.sqrt(2) * c**2 / m,
            "zero_out": c**2 / m,
            "add_or_remove": c**2 / m,
        },
    ),
    "client": (
        lambda x, c: clip_symmetric(client_values(_mean_product(x)), _limit(c)),
        lambda c, m: {"replace_one": 2 * c, "zero_out": c, "add_or_remove": c},
    ),
}


def _limit(c: float) -> torch.Tensor:
    return torch.tensor([c], dtype=torch.float64)


def _in_ball(x: np.ndarray, c: float) -> np.ndarray:
    norms = np.linalg.norm(x, axis=-1, keepdims=True)
    return x * np.minimum(1.0, c / np.maximum(norms, 1e-300))


def _mean_product(x: np.ndarray) -> torch.Tensor:
    """[1, 1, p (p + 1) / 2] upper triangle of (1/m) sum x x^T."""
    whole = torch.from_numpy(x.T @ x / len(x))
    return packed(whole[None, None], x.shape[1])


@pytest.mark.parametrize("relation", ["replace_one", "zero_out", "add_or_remove"])
@pytest.mark.parametrize("level", list(COVARIANCES))
@settings(max_examples=200)
@given(data=st.data())
def test_covariances_move_by_their_sensitivity_at_most(level, relation, data):
    make, sensitivity = COVARIANCES[level]
    m, p = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    numbers = st.floats(-1e3, 1e3)
    one = data.draw(arrays.arrays(np.float64, (m, p), elements=numbers))
    other = data.draw(arrays.arrays(np.float64, (m, p), elements=numbers))
    c = data.draw(st.floats(0.01, 100))
    if level == "record":  # neighbours differ in the first record
        other[1:] = one[1:]
    if relation != "replace_one":  # it is left out, m stays: a record of zeros
        other[: len(one) if level == "client" else 1] = 0.0
    first, second = make(one, c), make(other, c)
    moved = float((opened(first.values) - opened(second.values)).norm())
    whole = float((unpacked(opened(first.values), p) - unpacked(opened(second.values), p)).norm())
    bound = sensitivity(c, m)[relation]
    assert moved <= whole * (1 + 1e-12) + 1e-300
    assert whole <= bound * (1 + 1e-9)
    assert float(first.sensitivity(relation).max()) == pytest.approx(bound)
    assert first.unit == level


@pytest.mark.parametrize("relation", ["replace_one", "zero_out"])
@pytest.mark.parametrize("level", list(COVARIANCES))
def test_the_sensitivity_of_a_covariance_is_reached(level, relation):
    """Of the whole matrix; the triangle's own distance is the same for matrices along the
    diagonal.
    """
    make, sensitivity = COVARIANCES[level]
    c, m, p = 0.7, 3, 4
    bound = sensitivity(c, m)[relation]
    axes = np.zeros((2, m, p))
    axes[:, 0] = 10 * np.eye(p)[:2]  # orthogonal records
    if relation != "replace_one":
        axes[1] = 0.0
    first, second = make(axes[0], c), make(axes[1], c)
    reached = float((opened(first.values) - opened(second.values)).norm())
    if level == "record" or relation != "replace_one":
        assert reached == pytest.approx(bound, rel=1e-12)
    # covariances have no negative eigenvalues: two of them are at most sqrt(2) C apart, matrices 2
    #   C
    else:
        assert reached == pytest.approx(math.sqrt(2) * c, rel=1e-12)
        triangle = 10 * torch.randn(1, 1, 10, generator=torch.Generator().manual_seed(0)).double()
        opposite = [
            opened(clip_symmetric(client_values(sign * triangle), _limit(c)).values)
            for sign in (1, -1)
        ]
        apart = float((unpacked(opposite[0], p) - unpacked(opposite[1], p)).norm())
        assert apart == pytest.approx(bound, rel=1e-12)


def test_symmetric_matrices_are_clipped_by_their_frobenius_norm():
    generator = torch.Generator().manual_seed(0)
    triangles = torch.randn(2, 3, 15, generator=generator, dtype=torch.float64)
    limits = torch.tensor([1.0, torch.inf], dtype=torch.float64)
    bounded = clip_symmetric(client_values(triangles), limits)
    whole = unpacked(triangles, 5)
    norms = torch.linalg.matrix_norm(whole)
    assert bool((norms[0] > 1).all())
    torch.testing.assert_close(
        unpacked(opened(bounded.values), 5)[0], whole[0] / norms[0, :, None, None]
    )
    assert torch.equal(opened(bounded.values)[1], triangles[1])
    triangles[0, 0, 3], triangles[0, 1, 0] = torch.nan, 1e200
    spoiled = clip_symmetric(client_values(triangles), limits)
    assert bool((opened(spoiled.values)[0, :2] == 0).all())
    assert shown(spoiled.repaired).tolist() == [2, 0]
    with pytest.raises(PrivacyError, match="packed"):
        clip_symmetric(client_values(triangles[..., :14]), limits)
    with pytest.raises(PrivacyError, match="public"):
        record_covariance(client_values(triangles), limits, client_values(torch.ones(2, 3)))


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([32, 64]).flatmap(anything),
    st.integers(0, 3),
    st.floats(1e-3, 1e3),
    st.floats(1.0, 4.0),
    st.data(),
)
def test_no_record_moves_a_mean_of_numbers_by_more_than_it_says(
    values, client, limit, factor, data
):
    """Any record may become any number at all, be left out, or be zeroed."""
    record = data.draw(st.integers(0, values.shape[2] - 1))
    other = values.copy()
    awkward = st.sampled_from([0.0, math.inf, math.nan, -1e30, 1e30])
    other[:, client % values.shape[1], record] = data.draw(awkward | st.floats(0, 10))
    bound = torch.full((2,), limit, dtype=torch.float64)
    records = torch.full(values.shape[1:2], values.shape[2])
    before, after = (
        number_mean(client_values(torch.as_tensor(one)), bound, records, factor)
        for one in (values, other)
    )
    slack = 1 + 4 * float(np.finfo(values.dtype).eps) * values.shape[2] ** 2
    for one in (before, after):
        inside = opened(one.values).double().numpy()
        assert ((inside >= 0) & (inside <= limit * slack)).all()
    moved = np.abs(opened(before.values).double().numpy() - opened(after.values).double().numpy())
    for relation in RELATIONS:
        assert (moved <= before.sensitivity(relation).double().numpy() / factor * slack).all()
        np.testing.assert_allclose(
            before.sensitivity(relation).numpy(), factor * limit / values.shape[2], rtol=1e-6
        )


def test_a_mean_of_numbers_is_the_mean_and_its_sensitivity_is_reached():
    values = torch.tensor([[[0.5, 3.0, 0.0], [1.0, 9.0, 2.0]]], dtype=torch.float64)
    bounded = number_mean(
        client_values(values), torch.tensor([2.0], dtype=torch.float64), torch.tensor([2, 3])
    )
    np.testing.assert_allclose(
        opened(bounded.values).numpy(), [[(0.5 + 2.0) / 2, (1.0 + 2.0 + 2.0) / 3]]
    )
    np.testing.assert_allclose(bounded.sensitivity("replace_one").numpy(), [[1.0, 2 / 3]])
    low, high = (
        number_mean(
            client_values(torch.tensor([[[0.0, x]]])), torch.tensor([2.0]), torch.tensor([2])
        )
        for x in (0.0, 1e9)
    )
    assert float(opened(high.values) - opened(low.values)) == float(low.sensitivity("replace_one"))
    for wrong in (
        {"values": values[0]},
        {"factor": 0.5},
        {"limit": client_values(torch.ones(1, 1))},
    ):
        given = {
            "values": values,
            "limit": torch.tensor([2.0]),
            "records": torch.tensor([2, 3]),
        } | wrong
        with pytest.raises(PrivacyError):
            number_mean(
                client_values(given["values"]),
                given["limit"],
                given["records"],
                given.get("factor", 1.0),
            )


def test_a_mean_clipped_as_a_whole_is_a_claim_that_one_record_breaks():
    def mean(last: float) -> Bounded:
        records = torch.tensor([[[0.1, last]]], dtype=torch.float64).mean(dim=-1, keepdim=True)
        whole = record_mean(
            client_values(records),
            torch.full((1,), torch.inf, dtype=torch.float64),
            torch.tensor([[2]]),
        )
        return mean_clipped(whole, torch.ones(1, dtype=torch.float64), torch.tensor([[2]]))

    low, high = mean(-100.0), mean(100.0)
    assert (
        float((opened(high.values) - opened(low.values)).norm())
        == 2.0
        > float(low.sensitivity("replace_one"))
        == 1.0
    )
    assert not low.proved
    kept = as_computed(clip(client_values(torch.ones(1, 1, 2)), torch.ones(1)), "because", None)
    assert (kept.proved, kept.claims) == (False, {0: "because"})


def test_a_claim_of_every_run_stays_until_a_model_vouches_for_it() -> None:
    one = torch.ones(2)
    found = bounded(torch.ones(2, 1, 3), one, one, one, "record", "said", claims={1: "why"})
    assert found.claims == {0: "said", 1: "why"}
    with pytest.raises(TypeError):
        del found.claims[0]  # type: ignore[attr-defined]
