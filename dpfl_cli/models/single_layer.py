"""Models of one linear layer, such as linear, logistic and softmax regression.

A record's gradient is s (x) x with s = dl/dz at the outputs z = W x, and its norm ||s|| ||x||. On
CPUs a compiled kernel computes what looks at records (`layer_kernel`); stacked tensor operations
(`dense`) serve other devices, and where the kernel cannot be built. The two are tested equal.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor

from dpfl_cli.data.programs import built_or_none
from dpfl_cli.models.dense import Dense
from dpfl_cli.models.losses import Loss
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened

if TYPE_CHECKING:
    from dpfl_cli.models.layer_kernel import LayerKernel, Layouts


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
        self._laid_out: dict[torch.dtype, Layouts] = {}

    @property
    def _kernel(self) -> LayerKernel | None:
        """None for a class with a loss or a regulariser of its own, which the kernel does not
        know.
        """
        regular = type(self).regulariser_gradient is Dense.regulariser_gradient
        known = regular and type(self.loss) in get_args(Loss)
        return compiled_kernel(self.dtype) if known and self.device.type == "cpu" else None

    def _layouts(self, dtype: torch.dtype) -> Layouts:
        """For the kernel, of every federation the runs that use it and the clients' records, laid
        out as numbers of a type.
        """
        from dpfl_cli.models.layer_kernel import layouts

        if dtype not in self._laid_out:
            self._laid_out[dtype] = layouts(self._pool, self.loss, self.outputs, dtype)
        return self._laid_out[dtype]

    def _means(self, values: Tensor, limit: Tensor | None, batch: Tensor | None) -> Tensor:
        kernel = self._kernel
        if kernel is None:
            return super()._means(values, limit, batch)
        drawn = None if batch is None else batch.unsqueeze(2)
        l2 = self.l2 if limit is None and batch is None else None
        return kernel.compute(self._layouts(self.dtype), values, batch=drawn, limits=limit, l2=l2)

    def local_descent(
        self,
        start: Tensor,
        learning_rate: Tensor,
        steps: int,
        drift: Tensor | None = None,
        batches: Tensor | None = None,
    ) -> ClientValues:
        """As the definition, a client's whole run at once."""
        kernel = self._kernel
        if kernel is None or not steps:
            return super().local_descent(start, learning_rate, steps, drift, batches)
        everywhere = start.unsqueeze(1).expand(-1, self.clients, -1)
        moved = kernel.compute(
            self._layouts(self.dtype),
            everywhere,
            batch=batches,
            l2=self.l2,
            steps=steps,
            rates=learning_rate,
            drift=None if drift is None else opened(drift),
        )
        return client_values(moved)


@cache
def compiled_kernel(dtype: torch.dtype) -> LayerKernel | None:
    """The kernel, or None, saying so once for each type of numbers, where it cannot be built."""

    def make() -> LayerKernel:
        from dpfl_cli.models.layer_kernel import LayerKernel  # the compiler takes time to import

        return LayerKernel(dtype)

    return built_or_none(make, "the kernel of linear layers", "using torch, which is slower")
