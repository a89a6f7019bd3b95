"""Random streams: draws are functions of their address alone; subsets are uniform."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data import normals, programs
from dpfl_cli.data import streams as module
from dpfl_cli.data import threads as shared
from dpfl_cli.data.streams import (
    CLIENT_TILE,
    MAX_TILE_ROUNDS,
    TILE_VALUES,
    Streams,
    stream_generator,
)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three threads for draws of any size, whatever this process may use."""
    monkeypatch.setattr(module, "usable_threads", lambda: 3)
    monkeypatch.setattr(module, "THREAD_VALUES", 0)
    yield
    if shared._pool.cache_info().currsize:
        shared._pool().shutdown()
    shared._pool.cache_clear()


def slow(
    law: str, seed: int, name: str, round_: int, clients: int, size: int, dtype: type
) -> np.ndarray:
    """[M, d] tile by tile, from the definition of an address."""
    parts = []
    for tile, start in enumerate(range(0, clients, CLIENT_TILE)):
        rows = min(CLIENT_TILE, clients - start)
        depth = max(1, min(MAX_TILE_ROUNDS, TILE_VALUES // (rows * size)))
        generator = stream_generator(seed, name, round_ // depth, tile)
        draw = generator.standard_normal if law == "normal" else generator.random
        parts.append(draw((depth, rows, size), dtype=dtype)[round_ % depth])
    return np.concatenate(parts)


@pytest.mark.parametrize("law", ["normal", "uniform"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("clients", "size"), [(1, 1), (20, 23), (256, 100), (300, 9), (700, 100), (260, 300)]
)
def test_draws_are_functions_of_their_address(
    law: str, dtype: torch.dtype, clients: int, size: int, threads: None
) -> None:
    seeds = [3, 1, 3, 1, 7]
    batch = Streams(seeds)
    rounds = np.array([1, 5, 1, 90, 64])
    kind = np.float32 if dtype == torch.float32 else np.float64
    for ahead in (0, 1, 1, 70, 0):
        rounds = rounds + ahead
        drawn = getattr(batch, law)("noise/x", rounds, clients, size, dtype)
        assert drawn.dtype == dtype
        for run, (seed, round_) in enumerate(zip(seeds, rounds.tolist(), strict=True)):
            assert np.array_equal(
                drawn[run].numpy(), slow(law, seed, "noise/x", round_, clients, size, kind)
            )


def test_a_draw_is_the_callers_own() -> None:
    streams, rounds = Streams([0, 0, 1]), np.array([1, 1, 1])
    for clients, size in ((20, 5), (300, 200), (None, 7)):
        first = streams.normal("noise/x", rounds, clients, size)
        kept = first.clone()
        first[0].fill_(7.0)
        assert torch.equal(first[1:], kept[1:])
        assert torch.equal(streams.normal("noise/x", rounds, clients, size), kept)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal to the last bit, signs of zeros included."""
    return one.dtype == other.dtype and torch.equal(
        *(part.contiguous().view(torch.uint8) for part in (one, other))
    )


@pytest.mark.parametrize("law", ["normal", "uniform"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seeds", [[4], [1, 2], [3, 1, 3, 1, 7, 3, 2]], ids=["1", "2", "7"])
@pytest.mark.parametrize(
    ("clients", "size"), [(1, 1), (1, 40_000), (3, 1), (20, 22), (256, 130), (300, 9), (515, 200)]
)
def test_draws_are_those_of_every_run_alone_on_any_number_of_threads(
    law: str,
    dtype: torch.dtype,
    seeds: list[int],
    clients: int,
    size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runs of equal seeds in the same round share draws."""
    rounds = np.arange(len(seeds)) % 3
    alone = [
        getattr(Streams([seed]), law)("noise/x", rounds[run : run + 1], clients, size, dtype)
        for run, seed in enumerate(seeds)
    ]
    monkeypatch.setattr(module, "THREAD_VALUES", 0)
    for number in (1, 2, 3):
        monkeypatch.setattr(module, "usable_threads", lambda number=number: number)
        found = getattr(Streams(seeds), law)("noise/x", rounds, clients, size, dtype)
        assert same_bits(found, torch.cat(alone))


def test_an_error_in_a_thread_is_raised(threads: None) -> None:
    done = []

    def fail() -> None:
        raise ValueError("as planned")

    with pytest.raises(ValueError, match="as planned"):
        shared.in_threads(fail, [()] * 3, 3)
    shared.in_threads(done.append, zip(range(50)), 3)
    assert sorted(done) == list(range(50))


def test_a_process_uses_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4})
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert shared.usable_threads() == 2
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    assert shared.usable_threads() == 5


def test_small_draws_and_single_threads_start_no_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    shared._pool.cache_clear()
    monkeypatch.setattr(module, "usable_threads", lambda: 4)
    Streams([0]).normal("noise/x", np.array([1]), 300, 100)
    assert not shared._pool.cache_info().currsize
    monkeypatch.setattr(module, "usable_threads", lambda: 1)
    Streams([0]).normal("noise/x", np.array([1]), 300, 500)
    assert not shared._pool.cache_info().currsize


def _total(queue: multiprocessing.Queue) -> None:
    # numpy sums: a sum by torch may ask threads of OpenMP, and those do not outlive a fork
    queue.put(Streams([0]).normal("noise/x", np.array([1]), 600, 100).numpy().sum())


def test_a_forked_process_makes_its_own_threads(threads: None) -> None:
    expected = Streams([0]).normal("noise/x", np.array([1]), 600, 100).numpy().sum()
    assert shared._pool.cache_info().currsize
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_total, args=(queue,))
    process.start()
    assert queue.get(timeout=30) == expected
    process.join(timeout=30)
    assert process.exitcode == 0


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_compiled_loop_draws_what_numpy_draws(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fresh(seed: int) -> np.random.Generator:
        return np.random.Generator(np.random.SFC64(seed))

    found = np.empty(1_000_003, kind)  # a few hundred of them in the tail
    assert normals._compiled(kind is np.float32) is not None
    normals.fill_normal(fresh(1), found)
    np.testing.assert_array_equal(found, fresh(1).standard_normal(found.size, kind))
    normals.fill_normal(fresh(1), np.empty(0, kind))

    def wrong(*source: object) -> Callable[..., None]:
        return lambda *tables_and_out: tables_and_out[-1].fill(0.0)

    monkeypatch.setattr(normals, "built", wrong)  # a numpy that draws otherwise goes on drawing
    monkeypatch.setattr(normals, "_compiled", normals._compiled.__wrapped__)
    monkeypatch.setattr(programs, "fallbacks", [])
    normals.fill_normal(fresh(2), found)
    np.testing.assert_array_equal(found, fresh(2).standard_normal(found.size, kind))
    assert "this numpy draws others" in programs.fallbacks[0]


def test_float32_numbers_have_the_tails_that_float64_ones_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """numpy's end at 8.2, with 13 values beyond 7.5: those beyond 7 are drawn anew, by the address
    alone, and by their law.
    """
    drawn = np.resize(np.float32([7.5, 6.9, -8.2, -1.0]), 8000)
    monkeypatch.setattr(normals, "_by_numpy", lambda generator, out: np.copyto(out, drawn))
    found, again = np.empty((2, drawn.size), np.float32)
    for out in (found, again):
        normals.fill_normal(stream_generator(1, "noise/update", 3, 0), out)
    np.testing.assert_array_equal(found, again)
    far = np.abs(drawn) > 7
    np.testing.assert_array_equal(found[~far], drawn[~far])
    np.testing.assert_array_equal(np.sign(found), np.sign(drawn))
    shares = norm.sf(np.abs(found[far])) / norm.sf(7)
    assert kstest(shares, "uniform").pvalue > 1e-3
    assert len(np.unique(shares)) > 0.99 * far.sum()
    other = np.empty(drawn.size, np.float32)
    normals.fill_normal(stream_generator(1, "noise/update", 4, 0), other)
    assert (other[far] != found[far]).all()


@pytest.mark.parametrize(("population", "size"), [(6, 1), (6, 2), (7, 6), (5, 5), (40, 3)])
def test_subsets_are_uniform(population: int, size: int) -> None:
    """Every record, and every pair of records, equally often over clients and rounds: within 5
    standard deviations.
    """
    clients, rounds = 400, 30
    streams = Streams([11])
    drawn = [
        streams.subset("batch", np.array([t]), clients, np.full(clients, population), size)[0]
        for t in range(rounds)
    ]
    chosen = (
        torch.nn.functional.one_hot(torch.cat(drawn), population).sum(dim=1).double()
    )  # [draws, population]
    assert ((chosen == 0) | (chosen == 1)).all()
    draws = len(chosen)
    together = chosen.T @ chosen / draws
    one = size / population
    two = one * (size - 1) / (population - 1)
    expected = torch.full((population, population), two, dtype=torch.float64).fill_diagonal_(one)
    spread = (expected * (1 - expected) / draws).sqrt()
    assert ((together - expected).abs() <= 5 * spread + 1e-12).all()


def test_subsets_of_different_addresses_are_independent() -> None:
    """Neighbouring clients, rounds, names and seeds share size^2 / n records on average, as
    independent subsets do.
    """
    n, size, clients, rounds = 50, 10, 300, 40
    streams = Streams([0, 1])
    held = np.full(clients, n)

    def members(name: str) -> torch.Tensor:
        drawn = [streams.subset(name, np.array([t, t]), clients, held, size) for t in range(rounds)]
        return (
            torch.nn.functional.one_hot(torch.stack(drawn), n).sum(dim=-2).double()
        )  # [T, 2, M, n]

    one, other = members("batch"), members("other")
    mean, p = size**2 / n, size / n
    variance = mean * (1 - p) * (n - size) / (n - 1)  # hypergeometric
    pairs = {
        "clients": (one[:, :, 1:], one[:, :, :-1]),
        "rounds": (one[1:], one[:-1]),
        "names": (one, other),
        "seeds": (one[:, 0], one[:, 1]),
    }
    for first, second in pairs.values():
        shared = (first * second).sum(dim=-1)
        assert abs(shared.mean() - mean) <= 5 * (variance / shared.numel()) ** 0.5
        assert abs(shared.var() / variance - 1) <= 0.1


def test_subsets_depend_on_their_address_alone() -> None:
    """Alone and in company, and whatever the neighbours in the tile hold, also where that takes
    more draws than expected.
    """
    generator = np.random.default_rng(0)
    held = generator.integers(4, 60, (5, 300))
    seeds, rounds = [3, 1, 3, 3, 9], np.array([2, 2, 7, 2, 1])
    together = Streams(seeds).subset("batch", rounds, 300, held, 4)
    for run, seed in enumerate(seeds):
        alone = Streams([seed]).subset("batch", rounds[[run]], 300, held[run], 4)
        assert torch.equal(alone[0], together[run])
    changed = held.copy()
    changed[:, ::2] = 4  # every record is taken: many more draws
    again = Streams(seeds).subset("batch", rounds, 300, changed, 4)
    assert torch.equal(again[:, 1::2], together[:, 1::2])
    assert (again[:, ::2] == torch.arange(4)).all()


def test_subsets_are_ascending_record_numbers() -> None:
    held = np.array([3, 100, 1500])
    drawn = Streams([0, 1]).subset("batch", np.array([1, 2]), 3, held, 3)
    assert drawn.shape == (2, 3, 3)
    assert drawn.dtype == torch.int64
    assert (drawn[..., 1:] > drawn[..., :-1]).all()
    assert (drawn >= 0).all()
    assert (drawn < torch.as_tensor(held).reshape(1, 3, 1)).all()


def test_more_draws_where_the_first_hold_too_few_records(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = Streams([0]).subset("batch", np.array([1]), 30, np.full(30, 9), 8)
    monkeypatch.setattr(module, "_draws_for", lambda population, size: size)
    assert torch.equal(Streams([0]).subset("batch", np.array([1]), 30, np.full(30, 9), 8), expected)


def test_a_subset_larger_than_its_population_is_refused_in_one_line() -> None:
    with pytest.raises(
        ConfigError, match="cannot draw 5 records without replacement: a client holds fewer"
    ) as error:
        Streams([0]).subset("batch", np.array([1]), 3, np.array([9, 4, 9]), 5)
    assert "\n" not in str(error.value)
