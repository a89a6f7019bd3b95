"""Typed config of the parts that every run has; components bring their own settings."""

from typing import Annotated, Literal

from pydantic import ByteSize, Field, PositiveFloat

from dpfl_cli.config.component import Count, PositiveOrNone, Seed, Settings, Share


class DpSettings(Settings):
    """The trust model, what is protected, how epsilon is stated, and how noise is set from a
    target.

    Attributes:
      calibration: what sets the noise for the target: "accountant" the run's own; "zcdp" and
        "analytic" proved closed forms; "lemma1" and "record_heuristic" formulas of papers, under
        which the target may be nominal (`privacy.nominal`).
      v: the constant of lemma1.
      releases: how many the noise is for: those of the run's own schedule, or as many as a random
        schedule makes on average.
      max_epsilon: a run stops before the first release that would take its epsilon above it.
      noise: "seeded", a function of the run's seed; "secret", drawn from seeds of the operating
        system that nobody keeps, for a run whose model is published (not reproducible).
    """

    name: str
    trust: Literal["none", "local", "central", "secure_aggregation"]
    unit: Literal["client", "record"]
    relation: Literal["replace_one", "add_or_remove", "zero_out"]
    mode: Literal["sound", "paper"]
    epsilon: PositiveOrNone = Field(description="without privacy it is dp=none")
    convention: str | None
    delta: Share
    calibration: Literal["accountant", "zcdp", "analytic", "lemma1", "record_heuristic"] = (
        "accountant"
    )
    v: PositiveOrNone = None
    releases: Literal["realised", "expected"] = "realised"
    max_epsilon: PositiveOrNone = None
    noise: Literal["seeded", "secret"] = "seeded"


class ParticipationSettings(Settings):
    """Which clients take part in a round.

    Attributes:
      name: all of them; each with the same probability; a uniform subset.
      cohort: how many: on average ("poisson"), or exactly ("fixed").
    """

    name: Literal["full", "poisson", "fixed"] = "full"
    cohort: PositiveOrNone = None


class EvaluationSettings(Settings):
    """When models are evaluated, and which: besides after round 0 and the last, after every so many
    rounds, or after these `rounds` alone.
    """

    every: Count
    rounds: Annotated[list[Count], Field(min_length=1)] | None = None
    average_last: Count
    final_window: Count

    def after(self, done: int) -> int:
        """The first round after so many that is evaluated; 0 where none is."""
        if self.rounds is None:
            return done - done % self.every + self.every
        return min((number for number in self.rounds if number > done), default=0)


class RuntimeSettings(Settings):
    """How a run is computed; not part of its identity.

    Attributes:
      noise: who draws noise and batches: "auto" is a GPU itself, the host where there is none;
        "host" draws on the CPU whatever the device, the same numbers on both; "device" draws on the
        GPU, other numbers of the same law.
      keep_model: whether the final model is kept with the result; None is for whoever starts runs
        to decide.
    """

    device: Literal["auto", "cpu", "cuda"]
    noise: Literal["auto", "host", "device"] = "auto"
    checkpoint_every: PositiveFloat
    force: bool
    keep_model: bool | None = None


class LauncherSettings(Settings):
    """What the runs of a command share; not part of a run's identity.

    Attributes:
      memory: bytes, as a number or a text such as 4GiB or 500MB.
      metric: what a sweeper is given of each run.
    """

    memory: Annotated[ByteSize, Field(gt=0)] | None = Field(
        description="write bytes, or a text such as 4GiB or 500MB"
    )
    metric: str | None = None


class RootSettings(Settings):
    """The scalars at the root of a run's config."""

    seed: Seed
    rounds: int = Field(ge=1, le=10**9)
