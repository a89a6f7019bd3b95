"""What an algorithm is: `init` and `round`, pure on an explicit state, and the releases it
declares. A file of an algorithm imports `dpfl_cli.algorithms.api`, which has all of this.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_type_hints

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from dpfl_cli.config.component import Limit, Settings, component
from dpfl_cli.config.errors import ConfigError, known_names
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.client_side import ClientSide
from dpfl_cli.privacy.bounded import Bounded, per_run, vector_norms
from dpfl_cli.privacy.client_values import ClientValues, own_values
from dpfl_cli.privacy.draws import Batch, FreshLaw, MethodStreams
from dpfl_cli.privacy.mechanism import Mechanism
from dpfl_cli.privacy.releases import Release

# Types of settings that are floats in `releases`, and tensors [R] in `hyper`, which has R runs'.
# A clip norm that is absent (Bound) is infinite there.
if TYPE_CHECKING:
    Number = Any
    Positive = Any
    NonNegative = Any
    PositiveOrNone = Any
    NoiseOrNone = Any
    Bound = Any
else:
    from dpfl_cli.config.component import NoiseOrNone as NoiseOrNone
    from dpfl_cli.config.component import PositiveOrNone as PositiveOrNone

    Number, Positive, NonNegative, Bound = float, PositiveFloat, NonNegativeFloat, Limit

ALL_TRUSTS = ("local", "central", "secure_aggregation")
EVERY_TRUST = ("none", *ALL_TRUSTS)

# [R] tensors by name, or a function that computes them, called only in rounds that are evaluated
Diagnostics = Mapping[str, Tensor] | Callable[[], Mapping[str, Tensor]]
T = TypeVar("T")


@dataclass(frozen=True)
class State:
    """Everything that lasts from round to round, by who holds it.

    Attributes:
      server: name -> [R, ...] tensors. `model` [R, d] is always there. Depends on data only through
        releases.
      clients: name -> [R, M, ...] tensors, each row known to its own client only; nothing where
        clients keep nothing.
    """

    server: Mapping[str, Tensor]
    clients: Mapping[str, Tensor] = field(default_factory=dict)


RoundResult = tuple[State, Diagnostics]  # of a round


@dataclass(frozen=True)
class Round:
    """A round of R runs, and what a method may use in it.

    Attributes:
      objective: what clients compute.
      mechanism: the only way for what they compute to leave them.
      streams: named random streams.
      number: [R] each run's round, from 1.
    """

    objective: ClientSide
    mechanism: Mechanism
    streams: MethodStreams
    number: np.ndarray

    def release(self, name: str, values: Bounded, charged: np.ndarray | None = None) -> Release:
        """`Mechanism.release` in this round."""
        return self.mechanism.release(name, values, self.number, charged)

    def batch(
        self, size: int, numbers: np.ndarray, stream: str = "batch", law: FreshLaw = "subset"
    ) -> Batch:
        """A fresh batch of every client's records, from the addresses [R] of a stream, which no
        other batch of it may have: a uniform subset, by a Poisson law (each record apart from the
        others, `size` on average), or with repeats.
        """
        return self.objective.batches(self.streams, stream, numbers, size, law)[0]

    def epoch(self, size: int, numbers: np.ndarray, stream: str = "batch") -> list[Batch]:
        """Disjoint batches of a random order of every client's records."""
        return self.objective.batches(self.streams, stream, numbers, size, "part")

    def at_clients(self, model: Tensor) -> Tensor:
        """[R, M, d] the model [R, d] as every client gets it."""
        return model.unsqueeze(1).expand(-1, self.objective.clients, -1)

    def where(self, chosen: np.ndarray, new: Tensor, old: Tensor) -> Tensor:
        """[R, ...] new for the runs of a public mask [R], old for the others."""
        return torch.where(per_run(chosen, old, torch.bool), new, old)


def algorithm(
    name: str,
    *,
    paper: str,
    unit: str,
    revision: int = 1,
    trusts: Collection[str] = EVERY_TRUST,
    proved: Collection[str] = (),
    needs: Collection[str] = (),
    proximal: bool = False,
    away: Literal["stateless", "rests"] | None = None,
) -> Callable[[type[T]], type[T]]:
    """Class decorator: the class is the algorithm `name`, a federated method for a batch of runs.
    It has

      hyper: its settings, floats stacked as tensors [R].
      releases(settings, run: Setup) -> list[ReleaseSpec]: a static method, the releases of a run,
        in all its rounds; a ConfigError where settings make no sense.
      init(objective: ClientSide, streams: Streams) -> State: the state before round 1.
      round(state, at: Round) -> (State, Diagnostics): one round. Diagnostics are [R] tensors for
        display, which no algorithm reads, or a function that gives them.

    What lasts from round to round is in the state and nowhere else: an attribute that a round
    changes would be lost in a checkpoint. A method whose guarantee depends on settings has a static
    method `gaps(settings, trust, whole_noise)` in place of `proved`: why the guarantee is not
    proved, all reasons, where messages carry the whole noise or not.

    Args:
      revision: raised whenever a change moves the numbers of its runs.
      paper: where it comes from.
      unit: whose data a release protects: "client" or "record".
      trusts: the trust models that it is defined for.
      proved: those of them for which its file says why the guarantee holds.
      needs: optional methods of objectives that it calls (`Objective.provides`).
      proximal: whether it takes proximal steps, which a model's penalty needs.
      away: what becomes of a client that takes no part in a round: nothing, for clients keep no
        state, or its state rests as it is; None where the method lets all take part.
    """

    def register(target: type[T]) -> type[T]:
        declared: Any = target
        declared.trusts = known_names(f"algorithm={name}: trusts", trusts, EVERY_TRUST)
        declared.proved = known_names(f"algorithm={name}: proved", proved, tuple(trusts))
        (declared.unit,) = known_names(f"algorithm={name}: unit", [unit], ("client", "record"))
        known_names(f"algorithm={name}: away", [away] if away else [], ("stateless", "rests"))
        declared.needs = frozenset(needs)
        declared.proximal, declared.paper, declared.away = proximal, paper, away
        own = "__init__" in vars(target) or "hyper" in signature(target.__init__).parameters
        if not own:
            declared.__init__ = _takes_hyper
        settings: type[Settings] | None = get_type_hints(target).get("hyper")
        if not (isinstance(settings, type) and issubclass(settings, Settings)):
            raise ConfigError(
                f"algorithm={name}: class {target.__name__} lacks its settings; annotate them, as "
                "hyper: MySettings, a class of Settings"
            )
        return component("algorithm", name, settings, revision=revision)(target)

    return register


def _takes_hyper(self: Any, hyper: Any) -> None:
    self.hyper = hyper


def start(objective: ClientSide, streams: Streams) -> State:
    """The initial model at the server, and nothing at clients."""
    return State({"model": objective.initial(streams)})


def projected(values: Tensor, radius: Tensor | None) -> Tensor:
    """[R, d] onto the ball of this radius [R] around zero; as they are where there is none."""
    if radius is None:
        return values
    shrink = (radius / vector_norms(values)).clamp(max=1.0)
    return values * per_run(shrink, values)


def zeros_of(objective: ClientSide, model: Tensor) -> ClientValues:
    """[R, M, d] zeros that clients hold."""
    return own_values(model.new_zeros(objective.runs, objective.clients, objective.dimension))
