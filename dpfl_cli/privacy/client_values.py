"""Client values: tensors that were computed from clients' data and have not passed a mechanism.

Objectives return them, algorithms compute with them as with any tensor, and whatever they touch becomes one too. Only a
mechanism's release turns them into plain tensors. The engine refuses a server state or a result that holds one, so a
value cannot slip past the door by oversight:

* an operation that would drop or mix the two leading axes (runs R, clients M), such as a mean over clients, is refused;
* writing them into a plain tensor in place, and reading them out as Python or numpy numbers, are refused.

This stops mistakes, not malice: Python can always be circumvented, and tests attack the mechanisms besides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from dpfl_cli.config.errors import PrivacyError

_READ_OUT = {"item", "tolist", "numpy", "__float__", "__int__", "__bool__", "__array__", "__index__", "__complex__"}
_HARMLESS = {
    "__get__",
    "size",
    "dim",
    "numel",
    "stride",
    "is_floating_point",
    "is_contiguous",
    "data_ptr",
    "__repr__",
    "__str__",
    "__hash__",
}
_OPEN = False


class ClientValues(Tensor):
    """A tensor [R, M, ...] of values that belong to clients."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if _OPEN or name in _HARMLESS:
            return super().__torch_function__(func, types, args, kwargs)
        if name in _READ_OUT:
            raise PrivacyError(f"client values read out by {name}(): they leave a client only through a mechanism's release")
        in_place = name == "__setitem__" or name == "copy_" or (name.endswith("_") and not name.endswith("__"))
        targets = [args[0]] if in_place and args else []
        if "out" in kwargs and kwargs["out"] is not None:
            targets.append(kwargs["out"])
        if any(type(target) is Tensor for target in targets):
            raise PrivacyError(f"client values written into a plain tensor by {name}: use a new tensor, or a mechanism's release")
        result = super().__torch_function__(func, types, args, kwargs)
        if isinstance(result, ClientValues):
            leading = next((a.shape[:2] for a in _tensors(args, kwargs) if isinstance(a, ClientValues)), None)
            if leading is not None and result.shape[:2] != leading:
                raise PrivacyError(
                    f"client values of shape {list(leading)}+ turned into {list(result.shape)} by {name}: values of "
                    "different clients meet only in a mechanism's release"
                )
        return result


def _tensors(args: Any, kwargs: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(item for item in value if isinstance(item, Tensor))
    return found


def client_values(values: Tensor) -> ClientValues:
    """Marks [R, M, ...] values as belonging to clients."""
    return values.as_subclass(ClientValues)


def opened(values: Tensor) -> Tensor:
    """The plain tensor inside client values. For mechanisms, objectives and diagnostics only; a test holds that."""
    return values.as_subclass(Tensor) if isinstance(values, ClientValues) else values
