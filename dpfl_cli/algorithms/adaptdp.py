"""AdaptDP-FedAvg: record-level local steps whose clip norm follows a private estimate of the
gradients' size.

Reference: Fukami, Murata, Niwa, "Adaptive Clipping for Differential Private Federated Learning in
  Interpolation Regimes", TMLR 2025, OpenReview vvSHlH3a8V, section 3.3, Algorithm 1; with the clip
  norm fixed it is `fedavg_record` (its Algorithm 2).

Round r of R, with P clients, model x and a batch of b (or b_C) fresh records of a client in every
line that has one:
    s_p <- what the mechanism makes of (1/b_C) sum_j min(||grad l_pj(x)||^2, G^2)
    nu   = sqrt(2 mean_p sd_p^2 / P) sqrt(ln(2 P R / u)),  sd_p the standard deviation of the noise
           in s_p
    C_r  = min(sqrt(max(0, 2 tau (mean_p s_p + nu))), G)
    v_p <- x; K times:
      v_p <- v_p - eta (what the mechanism makes of (1/b) sum_j CLIP(grad l_pj(v_p), C_r)
                        + grad h(v_p))
    x   <- x + mean_p (v_p - x), projected onto the ball of radius B (none: as it is)
(The paper's listing evaluates the gradient of a step at the step's own result; its proof and
Algorithm 2 do as above.)

Releases:
    "radius"    once a round, a number in [0, G^2] per record: replacing one of the b_C records
                moves the mean by at most G^2 / b_C (`sensitivity=tight`); the paper takes
                2 G^2 / b_C, which is as valid and noisier (`paper`).
    "gradient"  K times a round: 2 C_r / b (replace_one), C_r / b (others) on a fixed batch. C_r is
                a function of past releases.
Batches are fresh uniform subsets without replacement at every step
(`sampling=without_replacement`), which is what the amplification of accountant=wang_rdp is for.
With `epoch_permutation` the steps of an epoch take the parts of one permutation: every record is in
one of them, so that an epoch costs what one step does, without amplification. `with_replacement`
may hold a record several times, for which no sensitivity is proved.

Noise of the radius: `radius_noise_multiplier`, std over sensitivity; null makes the radius releases
of all rounds cost, at order 1 + ceil(2 ln(1 / delta) / epsilon) of the target, as much as all
gradient releases (the paper's split of its budget).

Diagnostics: `radius`, C_r, which is released; `clipped_fraction`, the share of the radius's batch
that C_r clips at x: not.

Proved as `fedavg_record` is: under local trust for any K, under central trust and secure
aggregation for K = 1.
"""

from math import ceil, log
from typing import Literal

from dpfl_cli.algorithms.api import (
    BatchSize,
    Field,
    NoiseOrNone,
    Number,
    Positive,
    PositiveOrNone,
    RecordSettings,
    ReleaseSpec,
    Round,
    RoundResult,
    Setup,
    State,
    Tensor,
    algorithm,
    gradient_release,
    local_steps_gaps,
    noisy_steps,
    np,
    per_run,
    projected,
    start,
)
from dpfl_cli.privacy.diagnostics import record_diagnostics
from dpfl_cli.privacy.subsampling import balanced_multiplier

RADIUS = (
    "mean of the records' squared gradient norms, each clipped to G^2: sensitivity G^2 / m under "
    "every relation"
)


class AdaptDpSettings(RecordSettings):
    """Settings of `adaptdp`; clip_norm is the cap G of the radius. The noise of its two releases is
    balanced for batches of one size.
    """

    sampling: Literal["without_replacement", "epoch_permutation", "with_replacement"] = (
        "without_replacement"
    )

    radius_batch_size: BatchSize = None  # b_C
    radius_multiplier: Positive = 1.0  # tau
    radius_floor: Positive = 1e-9
    radius_noise_multiplier: NoiseOrNone = None
    sensitivity: Literal["tight", "paper"] = "tight"
    offset: Literal["formula", "none"] = "formula"  # nu
    offset_failure: Number = Field(0.01, gt=0, lt=1)  # u
    projection_radius: PositiveOrNone = None  # B
    target_epsilon: PositiveOrNone = None
    target_delta: Number = Field(1e-4, gt=0, lt=1)


@algorithm(
    "adaptdp",
    paper="Fukami, Murata, Niwa, TMLR 2025, OpenReview vvSHlH3a8V",
    unit="record",
    needs={"clipped_gradient", "squared_gradient_norms"},
)
class AdaptDp:
    """AdaptDP-FedAvg: noisy local steps, clipped at a private estimate of the gradients' size."""

    hyper: AdaptDpSettings

    gaps = staticmethod(local_steps_gaps)

    @staticmethod
    def releases(settings: AdaptDpSettings, run: Setup) -> list[ReleaseSpec]:
        steps = gradient_release(settings, run)
        size, rate = settings.radius_batch_size, None
        if size is not None:
            rate = size / run.fewest() if size < run.fewest() else None
        given, target = settings.radius_noise_multiplier, settings.target_epsilon
        order = 2 if target is None else 1 + ceil(2 * log(1 / settings.target_delta) / target)
        share = steps.per_round / steps.disjoint  # releases of gradients to one of the radius

        def multiplier(z: float) -> float:
            """That of the radius, by the gradients'."""
            if given is not None:
                return given
            return balanced_multiplier(z, steps.rate, share, rate, order)

        radius = ReleaseSpec(
            "radius",
            "scalar",
            multiplier=multiplier,
            rate=rate,
            sums_suffice=steps.sums_suffice,
            note=RADIUS,
        )
        return [radius, steps]

    init = staticmethod(start)

    def round(self, state: State, at: Round) -> RoundResult:
        hyper, model, objective = self.hyper, state.server["model"], at.objective  # x
        size, cap = hyper.radius_batch_size, hyper.clip_norm  # b_C, G
        batch = None if size is None else at.batch(size, at.number, "radius batch")
        factor = 2.0 if hyper.sensitivity == "paper" else 1.0
        squares, norms = objective.squared_norms_mean(
            at.at_clients(model), cap.square(), batch, factor
        )
        release = at.release("radius", squares)  # s_p
        level = release.mean + self._offset(release.noise_std, at)
        radius = (2 * hyper.radius_multiplier * level).clamp(min=0.0).sqrt()
        radius = radius.clamp(per_run(hyper.radius_floor, radius), per_run(cap, radius))  # C_r
        _, mean = noisy_steps(at, hyper, model, clip_norm=radius, last=False)
        clipped = record_diagnostics(norms, radius, objective.divisors(batch))
        state = State({"model": projected(mean, hyper.projection_radius)})
        return state, {"radius": radius, **clipped}

    def _offset(self, std: Tensor | None, at: Round) -> Tensor | float:
        """nu [R]; the noise of one client's number has the standard deviation std [R] or [R, M],
        that of their mean 1 / P of it summed in squares, whoever adds it.
        """
        if std is None or self.hyper.offset == "none":
            return 0.0
        squares = std.square() if std.dim() == 1 else std.square().mean(dim=1)
        clients = at.objective.clients
        if at.mechanism.trust == "local":
            squares = squares / clients
        failure = per_run(self.hyper.offset_failure, squares)
        horizons = per_run(np.array(at.mechanism.rounds), squares)
        return (2 * squares).sqrt() * (2 * clients * horizons / failure).log().sqrt()
