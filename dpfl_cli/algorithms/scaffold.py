"""DP-SCAFFOLD at client level: control variates against client drift, whole updates clipped and
noised.

References:
  Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: Stochastic Controlled Averaging for
    Federated Learning", ICML 2020, arXiv:1910.06378, Algorithm 1 with option II, full
    participation.
  Noble, Bellet, Dieuleveut, "Differentially Private Federated Learning on Heterogeneous Data",
    AISTATS 2022, arXiv:2111.09278 (DP-SCAFFOLD, there with noise in the local steps).
  Takakura, Liew, Hasegawa, "Accelerating Differentially Private Federated Learning via Adaptive
    Extrapolation", 2025, arXiv:2504.09850, compare with it without spelling it out; this is the
    client-level form whose curves agree with theirs.

Round, with server control c, client controls h_i, tau local steps of size eta_l:
    raw_i   = LOCAL(w, i) with steps v <- v - eta_l (grad f_i(v) - h_i + c)
    Delta_i = CLIP(raw_i)
    cbar    = what the mechanism makes of mean_i Delta_i
    h_i    <- h_i - c - X_i / (tau eta_l)
    w      <- w + eta_g cbar
    c      <- -cbar / (tau eta_l)
(c is then c + mean_i of the change of h_i, where X_i averages to cbar, as it does under local trust
with `sent`. Elsewhere the noise of every mean stays in c - mean_i h_i, a random walk: the error of
the controls grows with the square root of the rounds.)
Where a client takes part with probability q < 1, the h_i of those that are away rest, and
    c      <- c + q (-cbar / (tau eta_l) - c)
as in Karimireddy et al., c + (1/M) sum_i of the change of h_i, but for the public q M in place of
the number of clients that happen to take part. There is no `warm_start` then, in which all do.

X_i by `control`:
    sent     what the client transmitted: its noisy message where it adds noise itself (local),
             Delta_i where it does not (central, none), that with its share of the noise under
             secure aggregation;
    clipped  Delta_i;
    raw      raw_i, zero where that is not finite.
With `warm_start` the first round begins with h_i <- a clipped gradient of f_i at w, as X_i by
`control` holds it, and c <- what the mechanism makes of its mean, one release more (Noble et al.;
Krouka, Koskela, Kulkarni, PoPETs 2025(1), Algorithm 4). With `release=double` the server control
comes from a release of its own, c <- -kbar / (tau eta_l), where kbar is the mean of "control", and
`sent` controls take X_i from it. (The change of control, -c - Delta_i / (tau eta_l), is a known
affine map of Delta_i, so Delta_i is what is released.)

Releases:
    "warm_start"  (once) CLIP(grad f_i(w)): sensitivity as that of the update.
    "update"      Delta_i in a ball of radius C: 2C under replace_one, C under zero_out and
                  add_or_remove.
    "control"     (double) Delta_i once more, same sensitivity.
single: c is post-processing of cbar and costs nothing. double: each has noise multiplier sqrt(2) z;
two Gaussian releases of multiplier sqrt(2) z compose to one of multiplier z, so both options cost
the same. (PrivUnit has no multiplier: double then costs twice as much, and the ledger says so.)

Proved under local and central trust for every control: h_i is a function of the client's own data
and of what was released before (under local trust the client's own messages are among that), and
Delta_i is clipped whatever h_i is. So, given the past releases, Delta_i depends on no other
client's data and has the sensitivity above. Under secure aggregation the same holds of `clipped`
and `raw` controls, given the sums that were released before. `sent` controls hold the client's
share of the noise, which no release of the sum shows (not proved), unless every message carries the
whole noise: then it is the messages that are priced.
"""

import math
from functools import partial
from typing import Literal

from dpfl_cli.algorithms.api import (
    CLIPPED,
    Bounded,
    ClientSide,
    ConfigError,
    LocalSettings,
    Positive,
    Release,
    ReleaseSpec,
    Round,
    RoundResult,
    Setup,
    State,
    Streams,
    Tensor,
    algorithm,
    clip,
    first_round,
    kept_share_gaps,
    local_update,
    per_run,
    torch,
    update_diagnostics,
    zeros_of,
)


def start_state(objective: ClientSide, streams: Streams) -> State:
    """The initial model w, and controls of zero: c at the server, one at every client."""
    model = objective.initial(streams)
    server = {"model": model, "control": torch.zeros_like(model)}
    return State(server, {"control": zeros_of(objective, model)})


def warmed(at: Round, state: State, control: Tensor, own: Tensor) -> State:
    """The state with these controls for the runs in their first round."""
    first = at.number == 1
    control = at.where(first, control, state.server["control"])
    own = at.where(first, own, state.clients["control"])
    return State({**state.server, "control": control}, {"control": own})


class ScaffoldSettings(LocalSettings):
    """Settings of `scaffold`."""

    control: Literal["sent", "clipped", "raw"] = "sent"
    release: Literal["single", "double"] = "single"
    server_lr: Positive = 1.0  # eta_g
    warm_start: bool = False


@algorithm(
    "scaffold",
    paper="Karimireddy et al. 2020, arXiv:1910.06378; Noble et al. 2022, arXiv:2111.09278",
    unit="client",
    away="rests",
)
class Scaffold:
    """DP-SCAFFOLD: client updates corrected by control variates, clipped and averaged."""

    hyper: ScaffoldSettings

    gaps = staticmethod(partial(kept_share_gaps, "clipped"))

    @staticmethod
    def releases(settings: ScaffoldSettings, run: Setup) -> list[ReleaseSpec]:
        if settings.warm_start and run.sampling is not None:
            raise ConfigError(
                "algorithm.warm_start=true: every client's control begins with a gradient of its "
                "own, but only some take part in a round; write algorithm.warm_start=false, or "
                "participation=full"
            )
        sent = settings.control == "sent"
        spec = partial(ReleaseSpec, echo=sent, sums_suffice=not sent)
        note = f"once, at the start: client gradient {CLIPPED}"
        first = [spec("warm_start", made=first_round(run), note=note)]
        first = first if settings.warm_start else []
        if settings.release == "single":
            return [*first, spec("update", note=f"client update {CLIPPED}")]
        # two of multiplier sqrt(2) z compose to one Gaussian release of multiplier z
        half = partial(spec, multiplier=lambda z: math.sqrt(2.0) * z)
        note = f"{CLIPPED}; multiplier sqrt(2) z"
        return [
            *first,
            half("update", note=f"client update {note}"),
            half("control", note=f"the same update for the control, {note}"),
        ]

    init = staticmethod(start_state)

    def round(self, state: State, at: Round) -> RoundResult:
        hyper, model = self.hyper, state.server["model"]  # w
        if hyper.warm_start and (at.number == 1).any():
            raw = at.objective.gradient(at.at_clients(model))
            update = clip(raw, hyper.clip_norm)
            release = at.release("warm_start", update, charged=at.number == 1)
            memory = self._remembered(raw, update, release)
            state = warmed(at, state, release.mean, memory)
        control = state.server["control"]  # c
        drift = control.unsqueeze(1) - state.clients["control"]  # c - h_i
        raw = local_update(at, model, hyper, drift)
        update = clip(raw, hyper.clip_norm)  # Delta_i
        release = at.release("update", update)
        second = at.release("control", update) if hyper.release == "double" else release

        memory = self._remembered(raw, update, second)  # X_i
        length = hyper.local_steps * hyper.local_lr  # tau eta_l
        own = -torch.addcdiv(drift, memory, per_run(length, memory))  # h_i - c - X_i / (tau eta_l)
        model = model + per_run(hyper.server_lr, model) * release.mean
        fresh = -second.mean / per_run(length, second.mean)
        server = {"model": model, "control": torch.lerp(control, fresh, at.mechanism.rate)}
        return State(server, {"control": own}), lambda: update_diagnostics(update)

    def _remembered(self, raw: Tensor, bounded: Bounded, release: Release) -> Tensor:
        """[R, M, d] what client controls keep of a contribution."""
        if self.hyper.control == "sent":
            return release.echo
        if self.hyper.control == "clipped":
            return bounded.values
        finite = torch.isfinite(raw).all(dim=-1, keepdim=True)
        return torch.where(finite, raw, 0.0)
