"""A user's own network: `model=torch model.path=net.py:Net`, any `nn.Module` of which every
record's output is a function of the record and the parameters.

Gradients of single records are made and clipped by `network.Network`, whatever the module computes,
so bounds per record hold. What would let records meet, or one pass remember another, is refused:
batch normalisation, and a module that keeps something of a pass.
"""

import copy
import inspect
import warnings
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from dpfl_cli.config.component import component
from dpfl_cli.config.errors import ConfigError, DpflError, PrivacyError
from dpfl_cli.config.own_files import OwnFile, own_object
from dpfl_cli.data.federation import DatasetInfo
from dpfl_cli.models.modules import trainable
from dpfl_cli.models.network import PASS_RECORDS, Network
from dpfl_cli.models.network_settings import NetworkSettings

T = TypeVar("T")
Memory = tuple[list[object], list[int]]
EXAMPLE = "net.py:Net"
KEEPS = (
    "keeps something of the records that it has seen; keep nothing (and draw initial values by "
    "torch alone)"
)
PROBE = 32  # records that a module is tried on, and asked of again where metrics are read
SEED = 0  # of what a module draws and does not train, the same in all runs


class OwnModuleSettings(NetworkSettings, OwnFile):
    """And the module, FILE.py:NAME: a class or function that makes one, which is given `shape` (of
    a record's features) and `classes` where it has arguments of these names; or a module.
    """


@component("model", "torch", OwnModuleSettings, revision=2)
class OwnModule(Network):
    """A PyTorch module of yours: takes features [n, ...] as the data set has them and gives logits
    [n, classes], with cross-entropy; or for real targets [n], with squared error.

    It is used in evaluation mode (no dropout) and begins with the values that its layers draw from
    torch's generator, seeded by the run.
    """

    not_covered = ("initial values and constants of a module of yours",)
    clipped_records = PASS_RECORDS  # small ones would wait for Python

    def __init__(self, settings: OwnModuleSettings, *rest: Any) -> None:
        self._unused: dict[int, tuple[nn.Module, Memory]] = {}
        super().__init__(settings, *rest)
        own = wanted_by(settings, self.info)
        self._unseen = _unseen(own, self.dtype, self.device)
        if self.device.type != "cpu":
            _, self.at_once = _checked(own)

    @property
    def module(self) -> nn.Module:
        """As every network's, and what it held before it saw anything."""
        module = super().module
        if id(module) not in self._unused:
            self._unused[id(module)] = module, _memory(module)
        return module

    def refuse_kept(self) -> None:
        """A module that begins to keep something when it sees many records, or has seen enough of
        them, is not told where it is tried.
        """
        records, *at_first = self._unseen
        for module, before in list(self._unused.values()):
            pairs = zip(at_first, _given(module, records), strict=True)
            same = all(torch.allclose(*pair, rtol=1e-4, atol=1e-5) for pair in pairs)
            if not same or _memory(module)[1] != before[1]:
                raise PrivacyError(f"model.path={self.settings.path}: {KEEPS}")

    @classmethod
    def dimension_of(cls, settings: OwnModuleSettings, info: DatasetInfo) -> int:
        """d; refuses a module that does not fit the data, or lets records meet."""
        if info.target_shape:
            raise ConfigError(
                f"model=torch: takes records with a class or a number each, and those of dataset="
                f"{info.name} have targets of shape {list(info.target_shape)}"
            )
        own_object(settings.path, "model.path", EXAMPLE)
        return _checked(wanted_by(settings, info))[0]

    @classmethod
    def network(cls, settings: OwnModuleSettings, info: DatasetInfo) -> nn.Module:
        return _made(wanted_by(settings, info), SEED)

    def initial_values(self, generator: np.random.Generator) -> np.ndarray:
        module = _made(wanted_by(self.settings, self.info), int(generator.integers(2**63)))
        return torch.cat([one.flatten() for one in trainable(module).values()]).detach().numpy()


class Wanted(NamedTuple):
    """A module: where it is, a hash of the file, and what it may ask for."""

    path: str | None
    content: str
    shape: tuple[int, ...]
    classes: int | None


def wanted_by(settings: OwnModuleSettings, info: DatasetInfo) -> Wanted:
    """The module that settings name, for a data set."""
    content = settings.identity()["content"]
    return Wanted(settings.path, content, info.feature_shape, info.classes)


def _made(wanted: Wanted, seed: int) -> nn.Module:
    """The module, whose layers draw from torch's generator at a seed."""
    path, _, shape, classes = wanted
    found = own_object(path, "model.path", EXAMPLE)
    where = f"model.path={path}"
    if isinstance(found, nn.Module):
        return copy.deepcopy(found).float()
    try:
        known = {"shape": shape, "classes": classes}
        asked = inspect.signature(found).parameters
        given = {name: value for name, value in known.items() if name in asked}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = found(**given)
    except DpflError:
        raise
    except Exception as error:
        hint = "" if classes else "; the data set has no classes: is it the one that you want?"
        raise ConfigError(
            f"{where}: {type(error).__name__}: {error}; it must be a module, or make one without "
            f"arguments but shape and classes{hint}"
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{where}: gives {type(module).__name__}, not a torch.nn.Module")
    return module.float()


@lru_cache(maxsize=16)
def _checked(wanted: Wanted) -> tuple[int, bool]:
    """The number of trainable parameters of a module that a federation can train, and whether vmap
    goes over them too; a matrix that is filled from them in place, say, stands in the way.

    Tried on drawn records: one by one, together, and with gradients; what it gives of one must be
    the same whatever it saw before, in all these ways, and if it saw nothing.
    """
    module, (path, _, shape, classes) = _made(wanted, SEED).eval(), wanted
    where = f"model.path={path}"
    for one in module.modules():
        if isinstance(one, nn.modules.batchnorm._BatchNorm):
            raise ConfigError(
                f"{where}: batch normalisation lets the records of a batch meet, and is not "
                "private; write GroupNorm or LayerNorm"
            )
        if isinstance(one, nn.RNNBase | nn.RNNCellBase):
            raise ConfigError(
                f"{where}: nn.{type(one).__name__}: recurrent layers of PyTorch give no gradients "
                "of single records; write its steps with nn.Linear (convolutions, GroupNorm, "
                "LayerNorm and nn.MultiheadAttention are taken too)"
            )
    parameters = trainable(module)
    if not parameters:
        raise ConfigError(f"{where}: has no parameter to train")
    many = _drawn(shape)
    records, far = many[:3], 100 * many.flip(0) - 30
    before = _memory(module)

    def loss(own: dict[str, Tensor], some: Tensor, of: nn.Module = module) -> Tensor:
        output: Tensor = functional_call(of, own, (some,))
        return functional.log_softmax(output, -1).sum() if classes else output.sum()

    def after(own: nn.Module) -> Tensor:
        """What one gives of a record after others."""
        loss({**trainable(own)}, far, own).backward()
        with torch.no_grad():
            own(far)
        return own(records[:1]).detach()

    def seen() -> list[Tensor]:
        """What one gives of a record at first, and after others; and what another one does that
        never saw this record.
        """
        own = _made(wanted, SEED).eval()
        return [own(records[:1]).detach(), after(own), after(_made(wanted, SEED).eval())]

    def tried(job: Callable[[], T]) -> T:
        try:
            with warnings.catch_warnings(action="ignore"):  # a refusal is one line
                return job()
        except Exception as error:
            raise ConfigError(
                f"{where}: {type(error).__name__} on records of shape {list(shape)}: {error}"
            ) from error

    with torch.no_grad():
        together = tried(lambda: module(records))
        alone = tried(lambda: [module(one.unsqueeze(0)) for one in records])
    right = [(3, classes)] if classes else [(3,), (3, 1)]
    if not isinstance(together, Tensor) or together.shape not in right:
        gives = list(together.shape) if isinstance(together, Tensor) else type(together).__name__
        raise ConfigError(f"{where}: gives {gives} for 3 records, not {list(right[0])}")
    apart = torch.stack(alone).reshape(together.shape)
    if not torch.allclose(together, apart, rtol=1e-3, atol=1e-5, equal_nan=True):
        raise ConfigError(f"{where}: a record's output depends on the other records of its batch")
    kept = ConfigError(f"{where}: {KEEPS}")
    first, *later = tried(seen)
    if not all(torch.equal(one.nan_to_num(), first.nan_to_num()) for one in later):
        raise kept
    tried(lambda: vmap(grad(loss), in_dims=(None, 0))({**parameters}, records.unsqueeze(1)))
    if _memory(module)[1] != before[1]:
        raise kept
    pairs = {name: torch.stack([one.detach()] * 2) for name, one in parameters.items()}
    try:
        with warnings.catch_warnings(action="ignore"):
            vmap(grad(loss))(pairs, torch.stack([records] * 2))
        at_once = True
    except Exception:  # whatever the module's own code may raise
        at_once = False
    return sum(one.numel() for one in parameters.values()), at_once


def _memory(module: nn.Module) -> Memory:
    """What its parts hold (while that lives, nothing else has its id), and which ids and lengths
    that has, and how often its buffers were changed in place.
    """
    held = [value for part in module.modules() for value in vars(part).values()]
    lengths = (len(one) if isinstance(one, list | dict | set) else 0 for one in held)
    versions = (one._version for one in module.buffers())
    return held, [*map(id, held), *lengths, *versions]


@cache
def _unseen(wanted: Wanted, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Some drawn records, and what a module gives of them that saw no data, nor did its file."""
    module = _made(wanted, SEED).to(device, dtype).eval()
    records = _drawn(wanted.shape).to(device, dtype)
    return [records, *_given(module, records)]


def _drawn(shape: tuple[int, ...]) -> Tensor:
    return torch.rand(PROBE, *shape, generator=torch.Generator().manual_seed(SEED))


def _given(module: nn.Module, records: Tensor) -> list[Tensor]:
    """What it gives of the first record by itself, and of all together."""
    with torch.no_grad():
        return [module(some).nan_to_num() for some in (records[:1], records)]
