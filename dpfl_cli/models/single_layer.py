"""Models of one linear layer, such as linear, logistic and softmax regression.

A record's gradient is s (x) x with s = dl/dz at the outputs z = W x, and its norm ||s|| ||x||. On
CPUs a compiled kernel computes what looks at records (`layer_kernel`); stacked tensor operations
(`dense`) serve other devices, and where the kernel cannot be built. The two are tested equal.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.data.programs import built_or_none
from dpfl_cli.models.dense import Dense
from dpfl_cli.models.losses import Loss
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
        self._laid_out: dict[type, list[tuple[np.ndarray, Layout]]] = {}

    @property
    def _kernel(self) -> LayerKernel | None:
        """None for a class with a loss or a regulariser of its own, which the kernel does not
        know.
        """
        regular = type(self).regulariser_gradient is Dense.regulariser_gradient
        known = regular and type(self.loss) in get_args(Loss)
        return compiled_kernel(self.dtype) if known and self.device.type == "cpu" else None

    def _layouts(self, number: type) -> list[tuple[np.ndarray, Layout]]:
        """For the kernel, of every federation the runs that use it and the clients' records, laid
        out as numbers of a type.
        """
        from dpfl_cli.models.layer_kernel import layouts

        if number not in self._laid_out:
            self._laid_out[number] = layouts(self._pool, self.loss, self.outputs, number)
        return self._laid_out[number]

    def _computed(
        self,
        kernel: LayerKernel,
        values: Tensor,
        batch: Tensor | None = None,
        drift: Tensor | None = None,
        steps: int = 0,
        **numbers: Tensor,
    ) -> Tensor:
        """[R, M, d] what the kernel computes of the clients' records at [R, M, d]; `numbers` are
        [R].
        """
        result = torch.empty_like(values, memory_format=torch.contiguous_format)
        own = values[:, :1] if values.stride(1) == 0 else values
        points = own.contiguous().numpy()
        for runs, layout in self._layouts(points.dtype.type):
            kernel.compute(
                layout,
                runs,
                points,
                result.numpy(),
                torch.get_num_threads(),
                batch=None if batch is None else batch.numpy(),
                drift=None if drift is None else drift.numpy(),
                steps=steps,
                **{name: one.double().contiguous().numpy() for name, one in numbers.items()},
            )
        return result

    def _means(self, values: Tensor, limit: Tensor | None, batch: Tensor | None) -> Tensor:
        kernel = self._kernel
        if kernel is None:
            return super()._means(values, limit, batch)
        drawn = None if batch is None else batch.unsqueeze(2)
        if limit is None:
            return self._computed(kernel, values, drawn, l2=self.l2)
        return self._computed(kernel, values, drawn, limits=limit)

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
        shift = None if drift is None else opened(drift)
        numbers = {"rates": learning_rate, "l2": self.l2}
        moved = self._computed(kernel, everywhere, batches, shift, steps, **numbers)
        return client_values(moved)


@cache
def compiled_kernel(dtype: torch.dtype) -> LayerKernel | None:
    """The kernel, or None, saying so once for each type of numbers, where it cannot be built."""
    instead = "using torch, which is slower"
    return built_or_none(partial(_kernel, dtype), "the kernel of linear layers", instead)


def _kernel(dtype: torch.dtype) -> LayerKernel:
    from dpfl_cli.models.layer_kernel import LayerKernel  # the compiler takes its time to import

    return LayerKernel(np.float32 if dtype == torch.float32 else np.float64)
