"""DP-FedAvg at client level: clipped updates, averaged through the mechanism.

References:
  McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-efficient learning of deep networks from decentralized data",
    2017, arXiv:1602.05629 (FederatedAveraging).
  McMahan, Ramage, Talwar, Zhang, "Learning differentially private recurrent language models", 2018, arXiv:1710.06963 (the update
    of a whole client is clipped and noised).
  Takakura, Liew, Hasegawa, 2025, arXiv:2504.09850, Algorithms 1 and 2 with server step eta_g = 1 (full participation).

Round:
    Delta_i = CLIP(LOCAL(w, i))
    cbar    = what the mechanism makes of mean_i Delta_i
    w      <- w + server_lr cbar

Releases: "update", Delta_i in a ball of radius C. Replacing a client's data moves it by at most 2C, leaving the client out or
  zeroing it by at most C. A mean over M clients moves by that over M.

Proved under every trust model: Delta_i is a function of the client's own data and of w alone, w is a function of past releases,
and clients hold no state. So every round is the mechanism applied to a quantity of known sensitivity given the past releases,
and adaptive composition applies as it stands, to messages (local) as to sums (central, secure aggregation).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from dpfl_cli.algorithms.base import Diagnostics, Later, State
from dpfl_cli.algorithms.local import LocalSettings, batches_fit, bounded_local_update, check_clip_norm, per_run
from dpfl_cli.config.component import component
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.objective import ClientSide
from dpfl_cli.privacy.diagnostics import update_diagnostics
from dpfl_cli.privacy.mechanism import Mechanism, ReleaseSpec


class FedAvgSettings(LocalSettings):
    """Settings of `fedavg`."""

    server_lr: float = Field(1.0, gt=0, allow_inf_nan=False)


@component("algorithm", "fedavg", revision=1, settings=FedAvgSettings)
class FedAvg:
    """DP-FedAvg: average of clipped client updates, fixed server step."""

    trusts: ClassVar[frozenset[str]] = frozenset({"none", "local", "central", "secure_aggregation"})
    proved: ClassVar[frozenset[str]] = frozenset({"local", "central", "secure_aggregation"})  # see the docstring of the file
    units: ClassVar[frozenset[str]] = frozenset({"client"})
    paper: ClassVar[str] = "McMahan et al. 2018, arXiv:1710.06963; Takakura et al. 2025, arXiv:2504.09850"

    def __init__(self, hyper: Any) -> None:
        self.hyper = hyper

    @staticmethod
    def releases(settings: FedAvgSettings, trust: str) -> list[ReleaseSpec]:
        check_clip_norm(settings, trust)
        note = "client update clipped to C: sensitivity 2C (replace_one), C (zero_out, add_or_remove)"
        return [ReleaseSpec("update", settle=batches_fit(settings.batch_size), note=note)]

    def init(self, objective: ClientSide, streams: Streams) -> State:
        return State(server={"model": objective.initial(streams)}, clients={})

    def round(
        self, state: State, objective: ClientSide, mechanism: Mechanism, streams: Streams, rounds: np.ndarray
    ) -> tuple[State, Diagnostics]:
        model = state.server["model"]  # w
        update = bounded_local_update(objective, model, self.hyper, streams, rounds)  # Delta_i
        mean = mechanism.release("update", update, rounds).mean  # cbar
        model = model + per_run(self.hyper.server_lr, model) * mean
        told = Later(lambda: {"server_step": self.hyper.server_lr, **update_diagnostics(update)})
        return State({"model": model}, {}), told
