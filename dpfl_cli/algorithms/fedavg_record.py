"""DP-FedAvg at record level: noise inside the local steps.

References:
  Noble, Bellet, Dieuleveut, "Differentially Private Federated Learning on Heterogeneous Data",
    AISTATS 2022, arXiv:2111.09278 (DP-FedAvg there), with all clients in every step.
  Zhang, Fay, Johansson, "Dynamic Privacy Allocation for Locally Differentially Private Federated
    Learning with Composite Objectives", 2023, arXiv:2308.01139, compare with it; Krouka, Koskela,
    Kulkarni, PoPETs 2025(1), call its form with one local step DP-FedGD.

Round, with m_i records of client i, losses l_ij and a regulariser h that depends on no data:
    v_i <- w; repeat K times:
      G_i <- what the mechanism makes of (1/m_i) sum_j CLIP(grad l_ij(v_i), C)
      v_i <- v_i - eta_l (G_i + grad h(v_i))
    w   <- w + eta_g mean_i (v_i - w)

Releases:
    "gradient"  K times a round: the mean of clipped gradients moves by at most 2C / m_i when a
                record of client i is replaced, by C / m_i when it is left out (with 1 / m_i fixed
                and public). mean_i (v_i - w) is computed from the released means.

Proved under local trust for any K: v_i is a function of the client's own past messages and of w,
both released, so every G_i is the mechanism applied to a quantity of known sensitivity given past
releases; adaptive composition over K T messages. Under central trust and secure aggregation for
K = 1, where the gradient is taken at w itself. With more local steps under secure aggregation v_i
holds only the client's share of the noise, which no release shows: composition over the sums does
not cover it.
"""

from dpfl_cli.algorithms.api import (
    Positive,
    RecordSettings,
    ReleaseSpec,
    Round,
    RoundResult,
    Setup,
    State,
    algorithm,
    gradient_release,
    local_steps_gaps,
    noisy_steps,
    per_run,
    start,
)


class FedAvgRecordSettings(RecordSettings):
    """Settings of `fedavg_record`."""

    server_lr: Positive = 1.0  # eta_g


@algorithm(
    "fedavg_record",
    paper="Noble et al. 2022, arXiv:2111.09278",
    unit="record",
    needs={"clipped_gradient"},
)
class FedAvgRecord:
    """DP-FedAvg at record level: local steps on clipped, noised gradients."""

    hyper: FedAvgRecordSettings

    gaps = staticmethod(local_steps_gaps)

    @staticmethod
    def releases(settings: FedAvgRecordSettings, run: Setup) -> list[ReleaseSpec]:
        return [gradient_release(settings, run)]

    init = staticmethod(start)

    def round(self, state: State, at: Round) -> RoundResult:
        model = state.server["model"]  # w
        _, mean = noisy_steps(at, self.hyper, model, last=False)  # mean_i v_i
        step = per_run(self.hyper.server_lr, model) * (mean - model)
        return State({"model": model + step}), {}
