"""DP-FedEXP: the server extrapolates by a step that it estimates from what the mechanism lets it
see.

References:
  Takakura, Liew, Hasegawa, "Accelerating Differentially Private Federated Learning via Adaptive
    Extrapolation", 2025, arXiv:2504.09850: Algorithm 1 (section 3.1, local DP, Gaussian or
    PrivUnit), Algorithm 2 (section 3.2, central DP), equation (8) and Algorithm 5 (norm estimation
    behind PrivUnit), Propositions 4.1 and 4.2 (privacy).
  Jhunjhunwala, Wang, Joshi, "FedExP: Speeding Up Federated Averaging via Extrapolation", ICLR 2023,
    arXiv:2301.09604 (without privacy; its factor 1/2 and the constant in its denominator are the
    options `half` and `denominator_epsilon`).

Round:
    Delta_i = CLIP(LOCAL(w, i))
    cbar    = what the mechanism makes of mean_i Delta_i
    num     = an estimate of (1/M) sum_i ||Delta_i||^2
    eta_g   = max{1, num / ||cbar||^2}
    w      <- w + eta_g cbar

The numerator:
    local    The server sees c_i and computes num = (1/M) sum_i shat_i, where shat_i estimates
             ||Delta_i||^2 from c_i alone. Gaussian: shat_i = ||c_i||^2 - d sigma^2, without bias.
             PrivUnit: norm estimation, biased downwards by at most C^2 / (4 k^2).
    central  A second release "squared_norm" of (1/M) sum_i ||Delta_i||^2.
    none     The same without noise; the floor 1 then never binds (Jensen).
`step=naive` takes num = (1/M) sum_i ||c_i||^2 with its noise in it (the paper's warning example,
local DP only).

Releases:
    "update"        Delta_i in a ball of radius C: 2C under replace_one, C under zero_out and
                    add_or_remove.
    "squared_norm"  (central, none) ||Delta_i||^2 in [0, C^2]: C^2 under every relation, C^2 / M in
                    the mean. Same group as "update": both are functions of the same Delta_i.

By the paper's rule the noise of "squared_norm" has std sigma_xi = d sigma^2 / M on the mean, where
sigma^2 / M is the variance per coordinate of the noise on mean_i Delta_i. With noise multiplier z
under replace_one, sigma^2 / M = (2 C z / M)^2, so sigma_xi = 4 d C^2 z^2 / M^2; divided by C^2 / M
that is the noise multiplier 4 d z^2 / M. Under zero_out and add_or_remove the noise on mean_i
Delta_i is half as large for the same z, but the multiplier of this release stays 4 d z^2 / M: four
times the paper's std, and priced as what it is.

Proved under local and central trust: Delta_i depends on the client's own data and on w; w and eta_g
are functions of releases; clients hold no state. Local: eta_g costs nothing, it is computed from
messages that are already paid for.
"""

from typing import Literal

from dpfl_cli.algorithms.api import (
    CLIPPED,
    ConfigError,
    LocalSettings,
    NoiseOrNone,
    NonNegative,
    Release,
    ReleaseSpec,
    Round,
    RoundResult,
    Setup,
    State,
    Tensor,
    algorithm,
    bounded_local_update,
    per_run,
    squared_norms,
    start,
    torch,
    update_diagnostics,
    vector_norms,
)


class FedExpSettings(LocalSettings):
    """Settings of `fedexp`."""

    step: Literal["adaptive", "naive"] = "adaptive"
    half: bool = False
    denominator_epsilon: NonNegative = 0.0
    squared_norm_noise: NoiseOrNone = None


@algorithm(
    "fedexp",
    paper="Takakura, Liew, Hasegawa 2025, arXiv:2504.09850",
    unit="client",
    away="stateless",
    trusts=("none", "local", "central"),
    proved=("local", "central"),
)
class FedExp:
    """DP-FedEXP: server step extrapolated from the norms of the updates."""

    hyper: FedExpSettings

    @staticmethod
    def releases(settings: FedExpSettings, run: Setup) -> list[ReleaseSpec]:
        given, scale = settings.squared_norm_noise, 4 * run.dimension / run.cohort
        local = run.trust == "local"
        if local and given is not None:
            raise ConfigError(
                "algorithm.squared_norm_noise: under local trust the squared norms are estimated "
                "from the messages, not released; leave it null"
            )
        if not local and settings.step == "naive":
            raise ConfigError(
                f"algorithm.step=naive under dp.trust={run.trust}: it needs every client's noisy "
                "message; use dp=ldp or dp=ldp_privunit, or algorithm.step=adaptive"
            )
        note = f"client update {CLIPPED}"
        if local:
            return [ReleaseSpec("update", note=note)]
        return [
            ReleaseSpec("update", group="update", note=note),
            ReleaseSpec(
                "squared_norm",
                shape="scalar",
                group="update",
                quantity="squared_norms",
                # 4 d z^2 / M, for sigma_xi = d sigma^2 / M
                multiplier=lambda z: scale * z**2 if given is None else given,
                note="squared norm of the clipped update, in [0, C^2]: sensitivity C^2 under every "
                "relation",
            ),
        ]

    init = staticmethod(start)

    def round(self, state: State, at: Round) -> RoundResult:
        model = state.server["model"]  # w
        update = bounded_local_update(at, model, self.hyper)  # Delta_i
        release = at.release("update", update)
        mean = release.mean  # cbar
        local = at.mechanism.trust == "local"
        if local:
            numerator = at.mechanism.squared_norms(release).mean(dim=-1)
        else:  # the server does not see messages
            numerator = at.release("squared_norm", squared_norms(update)).mean
        step = self._ratio(numerator, mean).clamp(min=1.0)  # eta_g
        if self.hyper.step == "naive":
            step = self._naive(release)
        model = model + per_run(step, model) * mean

        def diagnostics() -> dict[str, Tensor]:
            common = update_diagnostics(update)
            target = self._ratio(common["mean_squared_norm"], mean)
            naive = {"server_step_naive": self._naive(release)} if local else {}
            return {**naive, "server_step": step, "server_step_target": target, **common}

        return State({"model": model}), diagnostics

    def _naive(self, release: Release) -> Tensor:
        """[R] the step of the numerator (1/M) sum_i ||c_i||^2, with the noise in it."""
        return self._ratio(vector_norms(release.received).square().mean(dim=-1), release.mean)

    def _ratio(self, numerator: Tensor, mean: Tensor) -> Tensor:
        """[R] numerator / ||cbar||^2; 1 where cbar is zero, for then no step moves the model.

        Jhunjhunwala et al.'s form has 2 (||cbar||^2 + epsilon) below.
        """
        below = vector_norms(mean).square() + self.hyper.denominator_epsilon
        if self.hyper.half:
            below = 2 * below
        return torch.where(below > 0, numerator / below, 1.0)
