"""DP-FedAvg at client level: clipped updates, averaged through the mechanism.

References:
  McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep
    Networks from Decentralized Data", AISTATS 2017, arXiv:1602.05629 (FederatedAveraging).
  McMahan, Ramage, Talwar, Zhang, "Learning Differentially Private Recurrent Language Models", ICLR
    2018, arXiv:1710.06963 (the update of a whole client is clipped and noised).
  Takakura, Liew, Hasegawa, "Accelerating Differentially Private Federated Learning via Adaptive
    Extrapolation", 2025, arXiv:2504.09850, Algorithms 1 and 2 with server step eta_g = 1.

Round:
    Delta_i = CLIP(LOCAL(w, i))
    cbar    = what the mechanism makes of mean_i Delta_i
    w      <- w + server_lr cbar

Releases:
    "update"  Delta_i in a ball of radius C: 2C when a client's data are replaced, C when the client
              is left out or zeroed. A mean over M clients moves by that over M.

Proved under every trust model: Delta_i is a function of the client's own data and of w alone, w is
a function of past releases, and clients hold no state. So every round is the mechanism applied to a
quantity of known sensitivity given the past releases, and adaptive composition applies as it
stands, to messages (local) as to sums (central, secure aggregation).
"""

from dpfl_cli.algorithms.api import (
    ALL_TRUSTS,
    CLIPPED,
    LocalSettings,
    Positive,
    ReleaseSpec,
    Round,
    RoundResult,
    Setup,
    State,
    algorithm,
    bounded_local_update,
    per_run,
    start,
    update_diagnostics,
)


class FedAvgSettings(LocalSettings):
    """Settings of `fedavg`."""

    server_lr: Positive = 1.0


@algorithm(
    "fedavg",
    paper="McMahan et al. 2018, arXiv:1710.06963; Takakura et al. 2025, arXiv:2504.09850",
    unit="client",
    away="stateless",
    proved=ALL_TRUSTS,
)
class FedAvg:
    """DP-FedAvg: average of clipped client updates, fixed server step."""

    hyper: FedAvgSettings

    @staticmethod
    def releases(settings: LocalSettings, run: Setup) -> list[ReleaseSpec]:
        return [ReleaseSpec("update", note=f"client update {CLIPPED}")]

    init = staticmethod(start)

    def round(self, state: State, at: Round) -> RoundResult:
        model = state.server["model"]  # w
        update = bounded_local_update(at, model, self.hyper)  # Delta_i
        mean = at.release("update", update).mean  # cbar
        model = model + per_run(self.hyper.server_lr, model) * mean
        return State({"model": model}), lambda: {
            "server_step": self.hyper.server_lr,
            **update_diagnostics(update),
        }
