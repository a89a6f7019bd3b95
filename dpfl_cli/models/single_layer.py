"""Models of one linear layer, such as linear, logistic and softmax regression.

A record's gradient is s (x) x with s = dl/dz at the outputs z = W x, and its norm ||s|| ||x||. On
CPUs a compiled kernel computes what looks at records (`layer_kernel`); stacked tensor operations
(`dense`) serve other devices, and where the kernel cannot be built. The two are tested equal.
"""

from __future__ import annotations

from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.data.programs import built_or_none
from dpfl_cli.models.dense import Dense
from dpfl_cli.models.records import Block, Pool, by_runs
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened

if TYPE_CHECKING:
    from dpfl_cli.models.layer_kernel import LayerKernel, Layout


class SingleLayer(Dense):
    """Base of models of one linear layer without separate biases.

    Attributes:
      outputs: c, of the layer.
      features: p, its inputs.
      width: q >= p of the records' rows.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        (layer,) = self.layers
        self.outputs, self.features, self.width = layer.outputs, layer.inputs, layer.width

    @property
    def _kernel(self) -> LayerKernel | None:
        return compiled_kernel(self.dtype) if self.device.type == "cpu" else None

    @cached_property
    def _layouts(self) -> list[Layout]:
        """The clients' records of every federation, for the kernel."""
        return self._layouts_of(self._pool)

    @cached_property
    def _test_layouts(self) -> list[Layout]:
        assert self._tests is not None
        return self._layouts_of(self._tests[0])

    def _layouts_of(self, pool: Pool) -> list[Layout]:
        from dpfl_cli.models.layer_kernel import Layout

        norms = pool.squared_norms.double().sqrt()
        records = (pool.features.numpy(), pool.targets.double().numpy(), norms.numpy())
        kind = self.loss.name, self.loss.scale, self.outputs
        return [
            Layout.of(*kind, *records, *places)
            for places in zip(pool.first, pool.counts, strict=True)
        ]

    def _computed(
        self,
        kernel: LayerKernel,
        mode: str,
        values: Tensor,
        width: int,
        batch: Tensor | None = None,
        drift: Tensor | None = None,
        steps: int = 0,
        **numbers: Tensor,
    ) -> Tensor:
        """[R, M, width] what the kernel computes of the clients' records at [R, M, d]; `numbers`
        are [R].
        """
        result = values.new_zeros(*values.shape[:2], width)
        for runs, layout in zip(self._runs, self._layouts, strict=True):
            kernel.compute(
                mode,
                layout,
                runs,
                values.numpy(),
                result.numpy(),
                torch.get_num_threads(),
                batch=None if batch is None else batch.numpy(),
                drift=None if drift is None else drift.numpy(),
                steps=steps,
                **{name: one.double().contiguous().numpy() for name, one in numbers.items()},
            )
        return result

    @cached_property
    def _runs(self) -> list[np.ndarray]:
        """Of every federation, the runs that use it."""
        return [self._pool.runs(number) for number in range(len(self.federations))]

    def _means(self, values: Tensor, limit: Tensor | None, batch: Tensor | None) -> Tensor:
        kernel = self._kernel
        if kernel is None:
            return super()._means(values, limit, batch)
        drawn = None if batch is None else batch.unsqueeze(2)
        if limit is None:
            return self._computed(kernel, "gradient", values, self.dimension, drawn, l2=self.l2)
        return self._computed(kernel, "clipped", values, self.dimension, drawn, limits=limit)

    def _squared_norms(self, values: Tensor, batch: Tensor | None) -> Tensor:
        kernel = self._kernel
        if kernel is None:
            return super()._squared_norms(values, batch)
        if batch is None:
            return self._computed(kernel, "norms", values, self._pool.largest)
        return self._computed(kernel, "norms", values, batch.shape[-1], batch.unsqueeze(2))

    def _scores(self, pool: Pool, models: Tensor) -> Tensor:
        kernel = self._kernel
        if kernel is None:
            return super()._scores(pool, models)
        result = models.new_zeros(self.runs, pool.counts.shape[1], 2)
        if self.outputs > 1 or pool.largest > 1:
            everywhere = models.unsqueeze(1).expand(-1, result.shape[1], -1).numpy()
            layouts = self._layouts if pool is self._pool else self._test_layouts
            for number, layout in enumerate(layouts):
                runs, threads = pool.runs(number), torch.get_num_threads()
                kernel.compute("scores", layout, runs, everywhere, result.numpy(), threads)
        for block in pool.single() if self.outputs == 1 else ():
            z = self._single_outputs(block, models).unsqueeze(-2)
            targets = block.targets.squeeze(-1)
            each = self.loss.values(z, targets), self.loss.right(z, targets)
            block.put(result, torch.stack([one.to(self.dtype) for one in each], dim=-1))
        return result

    def _descended(
        self,
        start: Tensor,
        learning_rate: Tensor,
        steps: int,
        drift: Tensor | None,
        batches: Tensor | None,
    ) -> ClientValues:
        """As the definition, a client's whole run at once; without a regulariser, a client with one
        record and one output takes the recursion of `_along_records`.
        """
        shift = None if drift is None else opened(drift)
        alone = batches is None and self.outputs == 1 and not self._regularised
        if alone and self._pool.largest == 1:
            result = start.new_zeros(self.runs, self.clients, self.dimension)
            if shift is not None:  # of clients without records
                torch.mul(shift, -steps * learning_rate.reshape(-1, 1, 1), out=result)
        elif (kernel := self._kernel) is None or not steps:
            result = opened(super()._descended(start, learning_rate, steps, drift, batches))
        else:
            result = self._computed(
                kernel,
                "gradient",
                start.unsqueeze(1).expand(-1, self.clients, -1),
                self.dimension,
                batches,
                shift,
                steps,
                rates=learning_rate,
                l2=self.l2,
            )
        if alone:
            self._along_records(start, learning_rate, steps, shift, result)
        return client_values(result)

    @property
    def _regularised(self) -> bool:
        return self.settings.l2 != 0

    def _along_records(
        self, start: Tensor, rate: Tensor, steps: int, drift: Tensor | None, result: Tensor
    ) -> None:
        """Writes local updates of clients with one record (x, y), by a recursion in one number, to
        result [R, M, d].

        Every iterate is v_j = w + a_j x - j lr g with the drift g, for the gradient is a multiple
        of x. So a_0 = 0 and, with z_j = x . v_j = x . w + a_j ||x||^2 - j lr x . g,

            a_{j+1} = a_j - lr l'(z_j, y).
        """
        for block in self._pool.single():
            record, squared = block.features[:, 0], block.squared_norms[:, 0]
            lr = rate[block.runs].to(self.dtype).unsqueeze(-1)
            begin = self._single_outputs(block, start)
            along = torch.zeros_like(begin)
            own = None if drift is None else block.of(drift)
            turn = (
                None if own is None else lr * torch.linalg.vecdot(own, record[:, : self.features])
            )
            for _ in range(steps):
                z = torch.addcmul(begin, along, squared)
                along.addcmul_(
                    lr, self.loss.slopes(z.unsqueeze(-2), block.targets[:, 0])[..., 0, :], value=-1
                )
                if turn is not None:
                    begin -= turn
            update = along.unsqueeze(-1) * record[:, : self.features]
            if own is not None:
                update.addcmul_(own, -steps * lr.unsqueeze(-1))
            block.put(result, update)

    def _single_outputs(self, block: Block, models: Tensor) -> Tensor:
        """[S, B] outputs of clients with one record at models [R, d]."""
        matrices = self.layers[0].matrix(models[block.runs])[:, 0]
        return by_runs(block.features[:, 0], matrices).contiguous()


@cache
def compiled_kernel(dtype: torch.dtype) -> LayerKernel | None:
    """The kernel, or None, saying so once for each type of numbers, where it cannot be built."""
    instead = "using torch, which is slower"
    return built_or_none(partial(_kernel, dtype), "the kernel of linear layers", instead)


def _kernel(dtype: torch.dtype) -> LayerKernel:
    from dpfl_cli.models.layer_kernel import LayerKernel  # the compiler takes its time to import

    return LayerKernel(np.float32 if dtype == torch.float32 else np.float64)
