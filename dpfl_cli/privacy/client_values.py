"""Client values: tensors that were computed from clients' data and have not passed a mechanism.

Objectives return them, algorithms compute with them as with any tensor, and whatever they touch becomes one too. Only a
mechanism's release turns them into plain tensors. The engine refuses a server state or a result that holds one, so a
value cannot slip past the door by oversight:

* an operation that would drop or change the two leading axes (runs R, clients M), such as a mean over clients, is refused;
* writing them into a plain tensor in place is refused;
* so is any operation that turns them into Python or numpy values; printing shows their shape only.

This stops mistakes, not malice: Python can always be circumvented (`torch.tensor(values)` is one way that no tensor
subclass sees; a test forbids it in algorithms), and tests attack the mechanisms besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from dpfl_cli.config.errors import PrivacyError

_READ_OUT = {
    "item",
    "tolist",
    "numpy",
    "__array__",
    "__float__",
    "__int__",
    "__bool__",
    "__index__",
    "__complex__",
    "__dlpack__",
    "storage",
    "untyped_storage",
    "_typed_storage",
    "apply_",
    "map_",
    "map2_",
    "backward",
}
# Python values that say nothing about the data: shapes, types, placement.
_SHAPE_ONLY = {
    "__get__",
    "__len__",
    "__hash__",
    "__dlpack_device__",
    "size",
    "dim",
    "ndimension",
    "numel",
    "nelement",
    "stride",
    "storage_offset",
    "element_size",
    "data_ptr",
    "type",
    "get_device",
    "is_contiguous",
    "is_floating_point",
    "is_complex",
    "is_signed",
    "is_same_size",
    "is_inference",
    "is_conj",
    "is_neg",
    "is_pinned",
    "is_shared",
    "result_type",
    "can_cast",
    "__reduce_ex__",
}


class ClientValues(Tensor):
    """A tensor [R, M, ...] of values that belong to clients."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _READ_OUT:
            raise PrivacyError(f"client values read out by {name}(): they leave a client only through a mechanism's release")
        in_place = name in ("__setitem__", "__set__") or (name.endswith("_") and not name.endswith("__"))
        targets = [*_tensors(args[:1] if in_place else ()), *_tensors((kwargs.get("out"),))]
        if any(not isinstance(target, ClientValues) for target in targets):
            raise PrivacyError(f"client values written into a plain tensor by {name}: use a new tensor, or a mechanism's release")
        result = super().__torch_function__(func, types, args, kwargs)
        # `opened` below: a shape asked of the subclass would come back here
        leading = next((opened(a).shape[:2] for a in _tensors((args, *kwargs.values())) if isinstance(a, ClientValues)), None)
        for part in _parts(result):
            if isinstance(part, ClientValues):
                shape = opened(part).shape
                if leading is not None and shape[:2] != leading:
                    raise PrivacyError(
                        f"client values of shape {list(leading)}+ turned into {list(shape)} by {name}: values of "
                        "different clients meet only in a mechanism's release"
                    )
            elif isinstance(part, bool | int | float | complex | str) and name not in _SHAPE_ONLY:
                raise PrivacyError(f"client values read out by {name}(): they leave a client only through a mechanism's release")
        return result

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"ClientValues({list(self.shape)}, {self.dtype})"

    def __format__(self, _: str) -> str:
        return repr(self)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        for part in value:
            yield from _parts(part)
    else:
        yield value


def _tensors(values: tuple[Any, ...]) -> Iterator[Tensor]:
    return (part for part in _parts(values) if isinstance(part, Tensor))


def client_values(values: Tensor) -> ClientValues:
    """Marks [R, M, ...] values as belonging to clients."""
    if values.dim() < 2:
        raise PrivacyError(f"client values need the axes [runs, clients, ...], not the shape {list(values.shape)}")
    return values.as_subclass(ClientValues)


def opened(values: Tensor) -> Tensor:
    """The plain tensor inside client values. For mechanisms, objectives and diagnostics only; a test holds that."""
    return values.as_subclass(Tensor) if isinstance(values, ClientValues) else values
