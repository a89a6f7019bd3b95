"""What numbers can bear: bounds that bound nothing, and means that are too coarse for theirs.

It is read on the host where that costs nothing, of a device when metrics are read.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.privacy.bounded import LARGEST_BOUND, SMALLEST_BOUND, Bounded
from dpfl_cli.privacy.record_bounds import MOST_ADDED

COARSE = (
    f"a float32 mean over all clients, which one of them, or a record, moves by less than 1 / "
    f"{MOST_ADDED:,} of its bound: its rounding is not small; float64 is proved where there is "
    "model.precision"
)


class Limits:
    """Checks of what is released, those that rounds on a device leave open among them.

    Args:
      sound: whether what is only claimed is refused.
      claims: [R] where it is noted otherwise.
    """

    def __init__(self, sound: bool, claims: Sequence[set[str]]) -> None:
        self._sound, self._claims = sound, claims
        # name -> whether bounds were good, and [R] which means were coarse
        self._unread: dict[str, tuple[Tensor, Tensor]] = {}

    def check(self, name: str, values: Bounded, averaged: bool) -> None:
        """Refuses a bound that bounds nothing, and what is not proved of a mean.

        Noise in proportion to an infinite bound drowns the values, so that nothing leaks until a
        device is asked.

        Args:
          averaged: whether the mean over clients is what is seen.
        """
        bound, coarse = values.bound, _coarse(values, averaged)
        smallest, largest = SMALLEST_BOUND[bound.dtype], LARGEST_BOUND[bound.dtype]
        if bound.device.type == "cpu":
            self._judge(name, all(smallest <= one <= largest for one in bound.tolist()), coarse)
            return
        good = ((bound >= smallest) & (bound <= largest)).all()
        coarse = torch.zeros_like(bound, dtype=torch.bool) if coarse is None else coarse
        before = self._unread.get(name, (good, coarse))
        self._unread[name] = good & before[0], coarse | before[1]

    def verify(self) -> None:
        """Makes up for the checks that were left open; reads the device."""
        for name, found in self._unread.items():
            self._judge(name, *found)
        self._unread.clear()

    def _judge(self, name: str, good: Tensor | bool, coarse: Tensor | None) -> None:
        if not good:
            raise PrivacyError(
                f"release '{name}' needs clipped values: set algorithm.clip_norm to a number from "
                "1e-10 to 1e100 (in float32 from 1e-9 to 1e15; its square too, where that is of "
                "what is released), and keep a clip norm that adapts there"
            )
        for run in [] if coarse is None else coarse.nonzero().flatten().tolist():
            if self._sound:
                raise PrivacyError(
                    f"release '{name}': its bound is claimed, not proved ({COARSE}); dp.mode=paper "
                    "runs it"
                )
            self._claims[run].add(COARSE)


def _coarse(values: Bounded, averaged: bool) -> Tensor | None:
    """[R] whether the rounding of a mean over clients is not small beside what one of them, or a
    record, moves it; None where it is.

    Measured, of float32 means over clients that hold one record: 1.01 times their bound over 2^16,
    1.1 over 2^18, 2 over 2^22.
    """
    if not averaged or values.dtype == torch.float64:
        return None
    moved = values.zero_out
    largest = moved if moved.dim() == 1 else moved.amax(dim=1)
    return values.shape[1] * values.bound > (1 + 1e-6) * MOST_ADDED * largest
