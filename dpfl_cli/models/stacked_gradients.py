"""Gradients of a network for the minibatches of all clients of all runs in one call, for devices
that one client's minibatch does not fill.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from dpfl_cli.data.devices import on_device
from dpfl_cli.data.federation import Federation, Records

CALL_BYTES = 8 << 30  # of what a call keeps for its backward pass


class Dealt:
    """Which records of a pool the clients of R runs hold, on a device once it is asked.

    Args:
      federations: the runs' data.
      index: [R] which of them each run uses.
    """

    def __init__(self, federations: Sequence[Federation], index: np.ndarray) -> None:
        self._federations, self._index = federations, index
        # by pool its runs; and of them all clients' records, the places [S, M] of each one's first,
        # and their numbers [S, M]
        self._known: dict[Records, tuple[Tensor, Tensor, Tensor, Tensor]] = {}

    def rows(self, batch: Tensor) -> Iterator[tuple[Tensor, Records, Tensor, Tensor]]:
        """For every pool: its runs [S], it, the records [S, M, b] of a batch [R, M, b] of the
        clients' own numbers, and their shares of the client's mean. A number that is none of the
        client's counts as a record of gradient zero: a record of share 0 stands for it, the
        client's own unless it has none.
        """
        if not self._known:
            self._deal(batch.device)
        for train, (runs, indices, first, held) in self._known.items():
            numbers, most = batch[runs], held.unsqueeze(-1)
            inside = (numbers >= 0) & (numbers < most)
            places = first.unsqueeze(-1) + torch.where(inside, numbers, 0)
            yield runs, train, indices[places], inside / batch.shape[-1]

    def _deal(self, device: torch.device) -> None:
        pools = [one.dataset.train for one in self._federations]
        for train in dict.fromkeys(pools):
            runs = np.flatnonzero([pools[number] is train for number in self._index])
            parts = [self._federations[number].partition for number in self._index[runs]]
            distinct = list(dict.fromkeys(self._index[runs].tolist()))
            own = [self._federations[number].partition.indices for number in distinct]
            starts = dict(zip(distinct, np.cumsum([0, *map(len, own)]), strict=False))
            first = np.stack(
                [
                    starts[number] + part.offsets[:-1]
                    for number, part in zip(self._index[runs].tolist(), parts, strict=True)
                ]
            )
            # the last client may hold nothing, and its first place is then none
            indices = np.concatenate([*own, np.zeros(1, np.int64)])
            held = np.stack([part.counts for part in parts])
            self._known[train] = (
                on_device(runs, device),
                on_device(indices, device),
                on_device(first, device),
                on_device(held, device),
            )


def stacked_gradients(
    loss: Callable[..., Tensor],
    shapes: Mapping[str, torch.Size],
    parameters: Tensor,
    data: tuple[Tensor, ...],
    kept_bytes: int,
) -> Tensor:
    """[S, M, d] gradients of loss(parameters by name, *data) for every run and client.

    Args:
      shapes: of the parameters, in their order in [d].
      parameters: [S, M, d].
      data: [S M, ...] each, what the loss takes of every pair of run and client.
      kept_bytes: what a pair keeps for the backward pass; a call takes as many as fit `CALL_BYTES`.
    """
    values = parameters.flatten(0, 1)
    parts = values.split([shape.numel() for shape in shapes.values()], dim=1)
    named = {
        name: part.reshape(len(values), *shape)
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }
    together = max(1, CALL_BYTES // kept_bytes)
    found = vmap(grad(loss), chunk_size=together)(named, *data)
    rows = torch.cat([found[name].flatten(1) for name in shapes], dim=1)
    return rows.unflatten(0, parameters.shape[:2])
