"""PrivUnit x ScalarDP: pure local DP for vectors, with an estimate of their norms.

Takakura et al. (arXiv 2504.09850), appendix D and Algorithms 3-5, after Bhowmick et al. (arXiv
1812.00984); the optimal split of the direction's budget is Asi et al. (arXiv 2205.02466). A client
whose clipped update is v = r u, with ||u|| = 1 and 0 <= r <= C, sends c = s z:

* z = PrivUnit(u): V is uniform on the cap {<V, u> >= gamma} of the sphere with probability p = e^e0
  / (1 + e^e0), and uniform on its complement otherwise; z = V / m, so that E z = u and ||z|| = 1 /
  m. (The paper prints "with probability gamma" for p; with gamma z would be biased.)
* s = ScalarDP(r): r is rounded at random to the grid {0, C / k, ..., C}, k = ceil(e^(e2 / 3)), kept
  with probability e^e2 / (e^e2 + k), otherwise replaced by another grid point, and made unbiased: s
  = a (J - b), E s = r. (The paper prints k = e^ceil(e2 / 3), which is no integer.)
* NormEst(c), by anybody: ||c|| = |s| / m gives J, and from it an estimate of r^2 that is at most
  C^2 / (4 k^2) too small.

Densities of c for any two inputs differ by at most e^(e0 + e1 + e2), so a release is (e0 + e1 +
e2)-DP, under replace_one and therefore under every relation. That sum is what the ledger is
charged. With the paper's rule for gamma the cap is larger than e1 allows, and the exact loss is
smaller: 5.5859 for 2 + 2 + 2 at d = 100.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy  # it imports its parts when they are used
import torch
from torch import Tensor

from dpfl_cli.config.component import component
from dpfl_cli.data.devices import on_device
from dpfl_cli.privacy.bounded import per_run, vector_norms
from dpfl_cli.privacy.client_values import own_values
from dpfl_cli.privacy.mechanism import Call, Event, Mechanism, Site
from dpfl_cli.privacy.privunit_constants import (
    Cap,
    Grid,
    PrivUnitSettings,
    budgets,
    cap_of,
    check_dimension,
    make_grid,
    spent_epsilon,
)
from dpfl_cli.privacy.releases import Release, ReleaseSpec, Setup

# shorter vectors count as zero: they have no direction that float32 could carry, or (relative to C)
# a message of a length that follows from C would be beyond float32, and show how short they are
_NULL_NORM, _NULL_SHARE = 1e-30, 1e-20


@component("mechanism", "privunit", PrivUnitSettings)
class PrivUnit(Mechanism):
    """PrivUnit x ScalarDP: every client sends a pure-DP direction and norm (local trust).

    All randomness comes from streams `noise/<release>/...`, one address per run, round and client.
    """

    trusts = frozenset({"local"})
    shapes = frozenset({"vector"})
    noise_field = "epsilon"
    parts = tuple(f"/{part}" for part in ("cap", "quantile", "round", "keep", "other", "direction"))

    def __init__(self, settings: Sequence[Any], site: Site) -> None:
        super().__init__(settings, site)
        caps = [cap_of(one, site.setup.dimension) for one in self.settings]
        grids = [make_grid(budgets(one)[2]) for one in self.settings]
        # of R runs, each of the constants [R, 1]
        self._cap: Any = Cap(*np.array(caps, float).T[..., None])
        self._grid: Any = Grid(*np.array(grids, float).T[..., None])

    @classmethod
    def check(cls, settings: Any, dimension: int) -> None:
        """The constants of the cap and of the grid exist."""
        cap_of(settings, dimension)
        make_grid(budgets(settings)[2])

    @classmethod
    def event(cls, settings: Any, spec: ReleaseSpec, setup: Setup) -> Event:
        """A pure event of e0 + e1 + e2, whatever the rule for gamma."""
        check_dimension(setup.dimension)
        return "pure", spent_epsilon(settings), "client"

    def _released(self, call: Call) -> Release:
        """Messages c = s z [R, M, d]; a client's echo is its own message.

        A vector with norm 0 has a direction drawn uniformly from the sphere, and so has its V.
        """
        name, address, contributions = call.spec.name, call.address, call.values.checked()
        _, clients, size = contributions.shape
        streams, device, dtype = self._site.streams, contributions.device, contributions.dtype

        def uniform(part: str) -> Tensor:
            return streams.uniform(f"noise/{name}/{part}", address, clients, 1)[..., 0]

        cosine = self._cosine(uniform("cap").numpy(), uniform("quantile").numpy())
        cosine = on_device(cosine, device)
        norms = vector_norms(contributions)
        bound = per_run(call.values.bound, norms)
        dice = [on_device(uniform(part), device) for part in ("round", "keep", "other")]
        length = self._private_norm(norms, bound, *dice) / on_device(self._cap.scale, device)

        # x = (cosine, sine * a random direction of the other d - 1 coordinates) has <x, e_1> =
        # cosine. The reflection that takes e_1 to -+u, along w = u +- e_1 (the sign that keeps w
        # away from 0), takes x to V: V = -+(x - w <w, x> / (1 + |u_1|)). It keeps lengths to
        # rounding, near e_1 too, and needs no orthogonalisation.
        null = norms < (_NULL_SHARE * bound).clamp(min=_NULL_NORM)
        x = streams.normal(f"noise/{name}/direction", address, clients, size, dtype, device)
        rest = vector_norms(x[..., 1:])
        # float32 can draw an exact 0, at d = 2
        x[..., 1] = torch.where(rest == 0, 1.0, x[..., 1])
        rest = torch.where(rest == 0, 1.0, rest)
        first = x[..., 0].double()
        cosine = torch.where(null, first / torch.hypot(first, rest), cosine)
        sine = ((1 - cosine) * (1 + cosine)).sqrt()
        x.mul_(per_run(sine / rest, x))
        x[..., 0] = cosine.to(dtype)
        divisor = torch.where(null, 1.0, norms)
        head = contributions[..., 0].double() / divisor
        inner = (contributions * x).sum(dim=-1).double() / divisor
        sign = torch.where(head >= 0, 1.0, -1.0).double()
        along = (inner + sign * cosine) / (1 + head.abs())
        along = torch.where(null, 0.0, along)
        x.mul_(per_run(torch.where(null, 1.0, -sign) * length, x))
        x.addcmul_(contributions, per_run(sign * along * length / divisor, x))
        x[..., 0] += (along * length).to(dtype)

        return Release(received=x, own=own_values(x), bound=call.values.bound)

    def squared_norms(self, release: Release) -> Tensor:
        """[R, M] NormEst of the messages (Algorithm 5).

        Its expectation is r^2 - (C / k)^2 (1/4 - f (1 - f)), r = ||v_i||, f = frac(k r / C).
        """
        received = release.received
        grid: Any = Grid._make(on_device(one, received.device) for one in self._grid)
        norms = vector_norms(received)
        bound = per_run(release.bound, norms)
        size = norms * on_device(self._cap.scale, received.device) / bound  # |s| / C
        level = size / grid.step + grid.shift
        tolerance = 1e-6 if received.dtype == torch.float64 else 1e-3
        nearest = level.round()
        positive = (
            ((level - nearest).abs() <= tolerance) & (nearest >= 0) & (nearest <= grid.levels)
        )
        signed = torch.where(positive, size, -size)
        linear = grid.linear
        return (
            bound.square() * (signed.square() + linear * signed - grid.constant) / (1 + linear)
        ).to(received.dtype)

    def _cosine(self, choice: np.ndarray, quantile: np.ndarray) -> Tensor:
        """<V, u> by inversion, from two uniform draws [R, M]: in the cap with probability p, else
        in its complement.
        """
        a = (self._site.setup.dimension - 1) / 2
        inside = choice < self._cap.inside
        mass = np.where(inside, self._cap.mass, 1 - self._cap.mass)
        # (1 + <V, u>) / 2 is Beta(a, a); the tail's probability is inverted from the tail's own
        # side, where it is exact
        tail = scipy.special.betaincinv(a, a, mass * (1 - quantile))
        return torch.from_numpy(np.where(inside, 1 - 2 * tail, 2 * tail - 1))

    def _private_norm(
        self, norms: Tensor, bound: Tensor, rounding: Tensor, keep: Tensor, other: Tensor
    ) -> Tensor:
        """ScalarDP (Algorithm 4) of norms [R, M], from three uniform draws."""
        grid: Any = Grid._make(on_device(one, norms.device) for one in self._grid)
        levels = grid.levels
        position = levels * (norms / bound).clamp(max=1)
        below = position.floor()
        level = below + (rounding < position - below)
        replacement = torch.minimum((other * levels).floor(), levels - 1)
        replacement = replacement + (replacement >= level)
        level = torch.where(keep < grid.keep, level, replacement)
        return bound * grid.step * (level - grid.shift)
