"""What may be done with client values keeps clients apart, however it is asked: every listed
function is called at random, and what is not refused may not tell one client of another.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from dpfl_cli.privacy.client_values import Unreleased, client_values, opened
from dpfl_cli.privacy.separation import RULES, parts

S = 3  # runs, clients, coordinates: axes that are confused still fit
CALLS = 60  # of each function
WORDS = ("dim", "axis", "keepdim", "other", "x2", "index", "p", "ord", "min", "weight", "value")
TEXTS = ("fro", "rmd,rmd->rm", "rmd,rkd->rmk", "mrd,rmd->rm", "rmd,rmd->mr", "rmd,kmd->rm")
SIZES = ((0,), (1,), (2,), (2, 3), (-1, -2), (3, 3, 3), (3, 9), (9, 3), (1, 3, 3), (3, 3, -1))
PLACES = ((..., 0), (slice(None), 0), (slice(None), slice(None), 0), (..., None), (None, ...))
NAMES = sorted({function.__name__ for function in RULES})


def drawn(dice: random.Random, first: bool = False) -> Any:
    """An argument: a tensor (of clients or public) by its seed, or what else functions take."""
    kind = dice.random() * (0.45 if first else 1.0)
    if kind < 0.35:
        return "clients", [S] * dice.choice([2, 3, 3, 3, 4, 5]), 0
    if kind < 0.6:
        sizes = [dice.choice([1, S, S]) for _ in range(dice.randint(0, 5))]
        return "public", sizes, dice.choice([0, 0, 0, 1, 2])
    if kind < 0.85:
        return dice.randint(-4, 4)
    if kind < 0.93:
        return dice.choice([None, True, False, ..., *TEXTS, *SIZES, *PLACES])
    return [drawn(dice), drawn(dice)]


def built(spec: Any, changed: bool) -> Any:
    """The argument; where asked, with other values of client 1 of run 1."""
    if isinstance(spec, list):
        return [built(part, changed) for part in spec]
    if not isinstance(spec, tuple) or spec[0] not in ("clients", "public"):
        return spec
    whose, sizes, kind = spec
    generator = torch.Generator().manual_seed(len(sizes) + kind)
    values = 0.1 + torch.rand(*sizes, generator=generator, dtype=torch.float64)
    if whose == "public":
        return values if kind == 0 else values > 0.6 if kind == 1 else (S * values).long() % S
    if changed:
        values[1, 1] = 1.7 * values[1, 1].flip(-1) + 0.3
    return client_values(values)


def results(function: Any, specs: list[Any], words: dict[str, Any], changed: bool) -> list[Any]:
    """What a call returns, and what it may have written to."""
    given = [built(spec, changed) for spec in specs]
    found = function(*given, **{name: built(spec, changed) for name, spec in words.items()})
    return [one for one in parts([found, *given]) if isinstance(one, Unreleased)] + [
        one for one in parts([found]) if isinstance(one, Tensor) and not isinstance(one, Unreleased)
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(4))
def test_no_listed_function_lets_clients_meet(part: int) -> None:
    accepted = 0
    for function in [one for one in RULES if NAMES.index(one.__name__) % 4 == part]:
        dice = random.Random(function.__name__)
        for _ in range(CALLS):
            specs = [drawn(dice, first=True), *(drawn(dice) for _ in range(dice.randint(0, 3)))]
            words = {name: drawn(dice) for name in dice.sample(WORDS, dice.choice([0, 0, 0, 1, 2]))}
            if "clients" not in str((specs, words)):
                continue
            try:
                pair = [results(function, specs, words, changed) for changed in (False, True)]
            except Exception:  # refused, or no way to call it
                continue
            accepted += 1
            for before, after in zip(*pair, strict=True):
                said = f"{function.__name__}{specs}{words}"
                assert isinstance(before, Unreleased), said
                one, other = (opened(values).clone() for values in (before, after))
                assert one.shape == other.shape, said
                one[1, 1] = other[1, 1]
                assert torch.equal(torch.nan_to_num(one), torch.nan_to_num(other)), said
    assert accepted > 100
