"""Batches of records, with the law that they were drawn by.

A release of a quantity of a batch is amplified by subsampling only where the batch was drawn for it
alone, afresh and in secret. So a batch is opaque, made by `drawn`, and says how it was made; the
bounded values that are computed from it carry it, and a mechanism compares it with what the release
declared.
"""

from dataclasses import InitVar, dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.data.devices import on_device
from dpfl_cli.data.streams import Streams

# a fresh uniform subset; one of disjoint parts of a random order; records that may come repeatedly
BatchLaw = Literal["subset", "part", "repeats"]
_MAKER = object()


@dataclass(frozen=True, eq=False)
class Batch:
    """Records of every client.

    Attributes:
      law: how they were drawn.
      size: b.
      stream, numbers: the name of the random stream and [R] the address in it that they came from.
      part: which part of the random order at this address.
    """

    law: BatchLaw
    size: int
    stream: str
    numbers: np.ndarray
    __records: Tensor = field(repr=False)
    part: int = 0
    maker: InitVar[object] = None

    def __post_init__(self, maker: object) -> None:
        if maker is not _MAKER:
            raise PrivacyError(
                "batches are drawn by Round.batch and Round.epoch, which know their law"
            )


def records_of(batch: Batch) -> Tensor:
    """[R, M, b] record numbers. For objectives only: who knows them has lost the amplification."""
    return batch._Batch__records  # type: ignore[attr-defined]


def drawn(
    streams: Streams,
    stream: str,
    numbers: np.ndarray,
    held: np.ndarray,
    size: int,
    device: torch.device,
    repeats: bool = False,
) -> Batch:
    """A fresh uniform batch of every client's records, from an address of a stream.

    Args:
      numbers: [R] addresses.
      held: [R, M] number of records of every client.
      repeats: whether a record may come several times.
    """
    clients = held.shape[1]
    law: BatchLaw = "repeats" if repeats else "subset"
    if repeats:
        draws = streams.uniform(stream, numbers, clients, size, device=device)
        records = (draws * on_device(held, device).unsqueeze(-1)).long()
    else:
        records = streams.subset(stream, numbers, clients, held, size, device)
    return Batch(law, size, stream, numbers.copy(), records, maker=_MAKER)


def epoch(
    streams: Streams,
    stream: str,
    numbers: np.ndarray,
    held: np.ndarray,
    size: int,
    device: torch.device,
) -> list[Batch]:
    """The disjoint batches of a random order of every client's records, as `drawn`; as many as the
    smallest client fills.
    """
    widths, parts = held.max(axis=1), int(held.min()) // size
    most, draws = int(widths.max()), torch.zeros((), device=device)
    for width in np.unique(widths).tolist():  # a run's own, whoever is stacked with it
        part = streams.uniform(stream, numbers, held.shape[1], width, device=device)
        mine = on_device(widths == width, part.device).reshape(-1, 1, 1)
        draws = torch.where(mine, pad(part, (0, most - width)), draws)
    absent = torch.arange(most) >= torch.from_numpy(held).unsqueeze(-1)
    order = draws.masked_fill(on_device(absent, device), 2.0).argsort(dim=-1)[..., : parts * size]
    # ascending within a part, as subsets are
    pieces = order.unflatten(-1, (parts, size)).sort(dim=-1).values.unbind(dim=2)
    own = numbers.copy()
    return [
        Batch("part", size, stream, own, records, number, maker=_MAKER)
        for number, records in enumerate(pieces)
    ]
