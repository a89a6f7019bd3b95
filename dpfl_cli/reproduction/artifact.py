"""What a paper's artifacts are made of: runs, measures, tables, figures, claims.

An artifact is a table or a figure of a paper. Its runs are a plain function of the scale that
yields `Run`s; what is measured, laid out and drawn are the small typed values below; a claim is a
function on the rows (`claim`, `comparison`). Everything is checked before anything runs.

A label is a name for a choice ("method": "FedEXP"); runs that differ only in their seed have equal
labels. A paper's settings are presets of their own, conf/experiment/<paper>/<name>.yaml, which runs
name like any other Hydra override: "+experiment=fedexp/mnist".
"""

import inspect
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.reproduction.claim import Claim
from dpfl_cli.reproduction.measure import Best, Checked, Measure, Metric, Values, Where

Scale = Literal["smoke", "quick", "paper"]
Seeds = PositiveInt | range | Sequence[NonNegativeInt]  # so many, 0, 1, ..., or which
SCALES: tuple[Scale, ...] = ("smoke", "quick", "paper")  # in order of size


def listed(seeds: Seeds) -> Sequence[int]:
    """Which seeds they are."""
    return range(seeds) if isinstance(seeds, int) else seeds


@dataclass(frozen=True)
class Paper:
    """A paper, as it is cited.

    Attributes:
      looks: label, or "measure" -> its value -> the number of its colour and line style, the same
        on every page; other values take those that are left, in the order of the page.
      titles: how labels and their values are written on every page that does not say otherwise.
    """

    key: str
    authors: str
    title: str
    where: str
    looks: Mapping[str, Mapping[Any, int]] = field(default_factory=dict, hash=False)
    titles: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def citation(self) -> str:
        return f"{self.authors}, “{self.title}”, {self.where}"


@cache  # those of a grid are often the same
def _split(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))


@dataclass(frozen=True)
class Run(Checked):
    """One run for every seed of the scale.

    Attributes:
      labels: the choices that it stands for.
      overrides: what `dpfl run` takes: "dataset=mnist", "+experiment=fedexp/mnist"; a list, or one
        text of words; of a key that is there twice the last counts. Every distinct list of them is
        composed once, so that what varies in a large grid belongs into `values`.
      values: config keys that are set after composing: {"algorithm.local_lr": 0.1}.
      exclusive: it is for its times: alone, one after another, anew for every artifact.
      seeds: its own, in place of the scale's, and as there how many or which; fixed before any
        result.
    """

    labels: Where
    overrides: Sequence[str]
    values: Values = field(default_factory=dict)
    exclusive: bool = False
    seeds: Seeds = ()

    def __post_init__(self) -> None:
        if isinstance(self.overrides, str):
            try:
                object.__setattr__(self, "overrides", [*_split(self.overrides)])
            except ValueError as error:
                raise ConfigError(f"run: overrides={self.overrides!r}: {error}") from None
        super().__post_init__()


Runs = Iterator[Run]


@dataclass(frozen=True)
class Size(Checked):
    """How much of it a scale is.

    Attributes:
      seeds: how many, 0, 1, ..., or which; fixed before any result.
      minutes: on two cores, of what is not done yet.
      note: what is smaller than in the paper, in words.
      cells: which part of the paper's cells it has, where not all: "4 of 9 epsilons".
      full: this is the paper's size, or size plays no part; by default at scale=paper. Otherwise
        verdicts are "at reduced size".
      gpu: takes so long without a GPU that it is run there by its own name alone, not as one of
        its paper's or of all, unless its runs are finished.
    """

    seeds: Seeds
    minutes: Annotated[NonNegativeFloat, Field(allow_inf_nan=False)]
    note: str = ""
    full: bool | None = None
    cells: str = ""
    gpu: bool = False

    @property
    def which(self) -> Sequence[int]:
        """The seeds."""
        return listed(self.seeds)


SEARCH_SEEDS = (1000, 1001)  # of a search's two stages; the seeds of a size are others


@dataclass(frozen=True, kw_only=True)
class Search(Checked):
    """At its scales the cells of a grid (of the labels that a `Best` is over) are found in stages:
    all of them at reduced size with one seed, the best few at full size with another, and the best
    of these with the seeds of the size. What is in no grid of several cells has all seeds at once.

    Attributes:
      reduced: of a run, the config values that make it cheap, as lambda run: {"rounds": 3}.
      note: what these are, in words.
      keep: how many cells of a grid go on to full size; a single one has all seeds at once.
      where: only grids with these labels are searched; all cells of others have all seeds.
      whole: labels of grids run at full size as a whole, to see what is missed; chosen beforehand.
      beyond: points of these grids that are run with them and are no candidates.
      always: labels of cells that have all seeds whatever is found, because claims ask for them.
      finalists: all that were kept have all seeds: claims choose among them with every seed.
    """

    reduced: Callable[[Run], Values]
    note: str
    keep: PositiveInt = 3
    scales: Sequence[Scale] = ("paper",)
    where: Where = field(default_factory=dict)
    whole: Sequence[Where] = ()
    beyond: Callable[[], Runs] = lambda: iter(())
    always: Sequence[Where] = ()
    finalists: bool = False


# few runs of scale=quick, made small: no artifact declares them (see `grid.runs_of`)
TRIAL = Size(1, 0.3, "a trial: few and small runs, to see that it works")


def sized(quick: Size, paper: Size, smoke: Size = TRIAL) -> dict[Scale, Size]:
    """The sizes of an artifact by scale."""
    return {"smoke": smoke, "quick": quick, "paper": paper}


def untrained(note: str = "nothing is trained", minutes: float = 0.01) -> dict[Scale, Size]:
    """The sizes of an artifact of plans alone, which are those of the paper at every scale."""
    return dict.fromkeys(SCALES, Size(1, minutes, note, full=True))


# --- pages ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table(Checked):
    """Labels down the side, labels across the top, measures in each cell; the paper's number
    beside. Each of them is one name, or several: Table("Loss", "method", "clients", "loss").
    """

    caption: str = ""
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    cells: Sequence[str] = ()
    _: KW_ONLY
    where: Where = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Figure(Checked):
    """One figure, a panel per value of the labels in `panels` (one or two).

    lines: y over x (a numeric label, or a measure of the same labels), a line per `series`.
    bars: groups along x, a bar per `series`, and marks where the paper's numbers are.
    heatmap: one number per x and y, the best cell framed; one colour scale for all panels, of two
    labels for those with one value of the first.

    Attributes:
      log: axes that are logarithmic: "x", "y", "colour".
      spread: bands or error bars of one standard deviation over seeds, or of what the measure of
        this name says; they end at the measure's `bounds`.
      fits: in words -> a function of x, in which every line is fitted by least squares; drawn
        beside it, with R^2.
      y_range: the ends of the axis; the legend says which lines go on beyond.
      numbers: the value over every bar.
      marks: a measure -> its title; vertical lines at the values that it has in the panel.
      title: over the figure, below the artifact's title.
    """

    kind: Literal["lines", "bars", "heatmap"]
    x: str
    measures: Sequence[str]
    _: KW_ONLY
    y: str = ""
    series: str | None = None
    panels: Sequence[str] = ()
    where: Where = field(default_factory=dict)
    log: Sequence[str] = ()
    x_title: str = ""
    y_title: str = ""
    y_range: Annotated[Sequence[float], Field(min_length=2, max_length=2)] | None = None
    share_y: bool = False
    spread: bool | str = True
    fits: Mapping[str, Callable[[float], float]] = field(default_factory=dict, hash=False)
    numbers: bool = False
    marks: Mapping[str, str] = field(default_factory=dict, hash=False)
    title: str = ""


ABOVE: Sequence[Claim] = []  # no other list is it: the claims above an artifact in its file


@dataclass(frozen=True, kw_only=True)
class Artifact(Checked):
    """A table or figure of a paper.

    Attributes:
      paper: the PAPER of the package of its file; None for an artifact of a file of one's own.
      shows: what a reader sees in it, in a few sentences.
      source: where in the paper it stands, such as "Table 4; settings of Table 2".
      runs: its runs at a scale, in the order of its rows.
      search: how the cells that `best` chooses are found, at its scales; else all are run.
      show: more columns of table.csv: name -> a fact of the plan.
      titles: how labels, their values and measures are written for readers.
      numbers: what a paper says, to stand beside: a CSV file, sought from the folder of this one,
        with the columns measure, value, labels, and std and note where there are any; `best` is
        True in lines of chosen cells, `round` the one of a series. dpfl's own artifacts have theirs
        in paper_numbers/.
      paper_runs: over how many runs the paper's spreads are; 0 where it does not say.
      claims: if not given, those above it in its file, below the artifact before.
      runs_of: another artifact's name, where the runs are that one's.
      notes: own choices that the paper does not give, and what else a reader has to know; scale ->
        text: on its page alone.
      scale: at which it is asked for (`at`); by itself an artifact is at scale=quick.
      asked: the seeds of a command (`grid.with_seeds`), in place of all that are declared.
    """

    paper: Paper | None = None
    id: str
    title: str
    shows: str
    source: str = ""
    sizes: Mapping[Scale, Size]
    runs: Callable[[Scale], Iterable[Run]]
    measures: Mapping[str, Measure]
    best: Sequence[Best] = ()
    search: Search | None = None
    show: Mapping[str, str] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict, hash=False)
    numbers: str | Path = ""
    paper_runs: NonNegativeInt = 0
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    claims: Sequence[Claim] = field(default_factory=lambda: ABOVE)
    notes: Sequence[str | Mapping[Scale, str]] = ()
    runs_of: str = ""
    scale: Scale = "quick"
    asked: range = range(0)

    def __post_init__(self) -> None:
        super().__post_init__()
        module = getattr(self._function, "__globals__", {})
        if self.paper is None:
            package = sys.modules.get(module.get("__package__", ""))
            object.__setattr__(self, "paper", getattr(package, "PAPER", None))
        if self.claims is ABOVE:
            object.__setattr__(self, "claims", _claims_above(module))

    @property
    def name(self) -> str:
        return f"{self.paper.key if self.paper else 'local'}/{self.id}"

    @cached_property
    def path(self) -> Path:
        """The file that declares it."""
        return Path(inspect.getsourcefile(self._function) or "")

    @property
    def _function(self) -> Callable[..., Any]:
        """That of its runs, of which they may give a part of the arguments."""
        return self.runs.func if isinstance(self.runs, partial) else self.runs

    def at(self, scale: str) -> Self:
        """The same at a scale; a ConfigError where there is no such size of it."""
        for known in self.sizes:
            if known == scale:
                return replace(self, scale=known)
        raise ConfigError(f"artifact {self.name}: no scale={scale}; {nearest(scale, self.sizes)}")

    @property
    def size(self) -> Size:
        return self.sizes[self.scale]

    @property
    def declared(self) -> Iterable[Run]:
        """Its runs, those of a trial at their usual size."""
        return self.runs("quick" if self.size is TRIAL else self.scale)

    @property
    def full(self) -> bool:
        """Whether this is the paper's size."""
        given = self.size.full
        return self.scale == "paper" if given is None else given

    def seeds(self, run: Run) -> Sequence[int]:
        """The seeds of a run; one where nothing is trained."""
        which = self.asked or listed(run.seeds) or self.size.which
        return which if self.trains else range(1)

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return f"{self.scale}-seeds-{self.asked[0]}-{self.asked[-1]}" if self.asked else self.scale

    @property
    def searched(self) -> Search | None:
        """The search at this scale, if there is one."""
        return self.search if self.search and self.scale in self.search.scales else None

    @cached_property
    def choices(self) -> dict[str, list[Any]]:
        """Every label of its runs -> its values, at any scale."""
        found: dict[str, dict[Any, None]] = {}
        for scale in self.sizes:
            for run in self.at(scale).declared:
                for name, value in run.labels.items():
                    found.setdefault(name, {})[value] = None
        return {name: list(values) for name, values in found.items()}

    @property
    def trains(self) -> bool:
        """Whether runs are needed, or plans are enough."""
        return bool(self.metrics)

    @property
    def metrics(self) -> list[Metric]:
        return [measure for measure in self.measures.values() if isinstance(measure, Metric)]

    @cached_property
    def measure_names(self) -> list[str]:
        """Names of the measures, with those that `best` adds: best.<label>."""
        added = (f"best.{name}" for rule in self.best for name in rule.over)
        return list(dict.fromkeys([*self.measures, *added]))

    def is_choice(self, measure: str) -> bool:
        """Whether it is best.<label>, or derived and a value of a label."""
        return measure not in self.measures or bool(getattr(self.measures[measure], "over", ""))

    def title_of(self, value: Any) -> str:
        """How a label, its value or a measure is written for readers."""
        if isinstance(value, str):
            known = self.measures.get(value)
            common = self.paper.titles if self.paper else {}
            own = self.titles.get(value) or (known.title if known else "")
            return own or common.get(value, value)
        return f"{value:g}" if isinstance(value, float) else str(value)


def _claims_above(module: Mapping[str, Any]) -> list[Claim]:
    """The claims, and lists of them, that a module has defined since its last artifact."""
    found: list[Claim] = []
    for value in module.values():
        many = value if isinstance(value, list) else [value]
        found = [] if isinstance(value, Artifact) else found
        found += [one for one in many if isinstance(one, Claim)]
    return found
