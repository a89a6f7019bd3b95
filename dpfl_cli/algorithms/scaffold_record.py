"""DP-SCAFFOLD at record level: control variates, and noise inside the local steps.

References:
  Noble, Bellet, Dieuleveut, "Differentially Private Federated Learning on Heterogeneous Data",
    AISTATS 2022, arXiv:2111.09278 (DP-SCAFFOLD), with all clients in every step.
  Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for
    Federated Learning", ICML 2020, arXiv:1910.06378, Algorithm 1 with option II.
  Zhang, Fay, Johansson, "Dynamic Privacy Allocation for Locally Differentially Private Federated
    Learning with Composite Objectives", 2023, arXiv:2308.01139, compare with it.

Round, with server control c = mean_i c_i and client controls c_i:
    v_i <- w; repeat K times:
      G_i <- what the mechanism makes of (1/m_i) sum_j CLIP(grad l_ij(v_i), C)
      v_i <- v_i - eta_l (G_i + grad h(v_i) - c_i + c)
    c_i <- c_i - c + (w - v_i) / (K eta_l)                   (the mean of the K noisy gradients)
    w   <- w + eta_g mean_i (v_i - w)
    c   <- mean_i c_i
c = mean_i c_i, so the drifts c - c_i cancel in every mean over clients, and mean_i v_i and the new
c follow from the released means of the G_i alone. (Under central trust clients hold no noise, so c
is mean_i c_i and the server's noise; that the noise drops out of the drifts is part of the method
there, which with its one local step is gradient descent.) With `warm_start` the first round begins
with c_i <- a noisy gradient at w, one release more. In the first `warm_idle_rounds` rounds w stays
(Noble et al.'s released code); with `extra_inv_n` its step is divided by the number of clients once
more (a reading of Krouka et al.'s figures, whose noise falls as the number of clients grows).

Releases:
    "gradient"    K times a round, as in `fedavg_record`: 2C / m_i under replace_one, C / m_i
                  otherwise.
    "warm_start"  once, the same.

Proved under local trust for any K: c_i and v_i are functions of the client's own past messages and
of what the server sent. Under central trust and secure aggregation for K = 1: c_i does not reach
any released mean then, because gradients are taken at w. With more local steps under secure
aggregation v_i and c_i hold the client's share of the noise only (not proved).
"""

from pydantic import NonNegativeInt

from dpfl_cli.algorithms.api import (
    GRADIENT,
    Positive,
    RecordSettings,
    ReleaseSpec,
    Round,
    RoundResult,
    Setup,
    State,
    algorithm,
    first_round,
    gradient_release,
    local_steps_gaps,
    noisy_steps,
    per_run,
    torch,
)
from dpfl_cli.algorithms.scaffold import start_state, warmed


class ScaffoldRecordSettings(RecordSettings):
    """Settings of `scaffold_record`."""

    server_lr: Positive = 1.0  # eta_g
    warm_start: bool = False
    warm_idle_rounds: NonNegativeInt = 0
    extra_inv_n: bool = False


@algorithm(
    "scaffold_record",
    paper="Noble et al. 2022, arXiv:2111.09278; Karimireddy et al. 2020, arXiv:1910.06378",
    unit="record",
    needs={"clipped_gradient"},
)
class ScaffoldRecord:
    """DP-SCAFFOLD at record level: control variates, local steps on clipped, noised gradients."""

    hyper: ScaffoldRecordSettings

    gaps = staticmethod(local_steps_gaps)

    @staticmethod
    def releases(settings: ScaffoldRecordSettings, run: Setup) -> list[ReleaseSpec]:
        steps = gradient_release(settings, run)
        if not settings.warm_start:
            return [steps]
        first = ReleaseSpec(
            "warm_start",
            made=first_round(run),
            echo=True,
            sums_suffice=steps.sums_suffice,
            note=f"once, at the start: {GRADIENT}",
        )
        return [first, steps]

    init = staticmethod(start_state)

    def round(self, state: State, at: Round) -> RoundResult:
        hyper, model, objective = self.hyper, state.server["model"], at.objective  # w
        if hyper.warm_start and (at.number == 1).any():
            start = at.at_clients(model)
            gradient = objective.clipped_gradient(start, hyper.clip_norm)
            release = at.release("warm_start", gradient, charged=at.number == 1)
            mean = release.mean + objective.regulariser_gradient(model)
            own = release.echo + objective.regulariser_gradient(start)
            state = warmed(at, state, mean, own)
        control = state.server["control"]  # c
        drift = control.unsqueeze(1) - state.clients["control"]  # c - c_i
        local, mean = noisy_steps(at, hyper, model, drift)  # v_i and mean_i v_i
        length = hyper.local_steps * hyper.local_lr  # K eta_l
        own = (model.unsqueeze(1) - local).div_(per_run(length, local)).sub_(drift)
        control = (model - mean) / per_run(length, mean)
        step = per_run(hyper.server_lr, model) * (mean - model)
        if hyper.extra_inv_n:
            step = step / objective.clients
        step = at.where(at.number <= hyper.warm_idle_rounds, torch.zeros_like(step), step)
        return State({"model": model + step, "control": control}, {"control": own}), {}
