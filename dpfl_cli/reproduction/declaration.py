"""What an artifact's yaml says: which runs, how they are reduced, laid out and drawn, and what is claimed about them.

`conf/artifact/<paper>/<id>.yaml` is plain yaml, validated here; an unknown key, label or measure is refused in one line before
anything runs. A label is a name for a choice ("method": "FedEXP"); runs that differ only in their seed have equal
labels and are averaged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.config.paths import conf_dir
from dpfl_cli.reproduction.expression import check_expression, check_formula

ScaleName = Literal["smoke", "quick", "paper"]
SCALES: tuple[ScaleName, ...] = ("smoke", "quick", "paper")  # in order of size
Scalar = bool | int | float | str | None
Label = bool | int | float | str
Where = dict[str, Label | list[Label]]
BEST = "best"  # pseudo-label: true for the cells that a `best` rule chose
MEASURE = "measure"  # pseudo-label: the name of a row's measure
ROUND = "round"  # label of the rows of a series
RANK = "rank"  # label of the k best cells of a `best` rule with `top: k`; 1 is the best


class Part(BaseModel):
    """Base of all parts of a declaration: unknown keys and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Case(Part):
    """One named choice on an axis: Hydra overrides (composed) and plain values (set after composing)."""

    overrides: list[str] = []
    set: dict[str, Scalar] = {}


class Axis(Part):
    """A label and its choices: named `cases`, or `values` of one config `key`."""

    cases: dict[str, Case] = {}
    key: str | None = None
    values: list[Label] = []

    @model_validator(mode="after")
    def _one_kind(self) -> Axis:
        if bool(self.cases) == bool(self.values) or bool(self.values) != bool(self.key):
            raise ValueError("an axis has either `cases`, or a `key` and its `values`")
        for name in self.cases:
            if re.fullmatch(r"[-+.\d][-+.\de]*|true|false", name):
                raise ValueError(f"case {name} reads like a number; give it a name")
        return self


class Zip(Part):
    """A table of settings. Rows are matched by the labels that are axes; other label columns become new labels.

    A combination of axes without a row is left out; one with several rows becomes several runs. "*" matches any choice.
    """

    labels: list[str]
    keys: list[str] = []
    rows: list[list[Scalar]]

    @model_validator(mode="after")
    def _rectangular(self) -> Zip:
        width = len(self.labels) + len(self.keys)
        for number, row in enumerate(self.rows, start=1):
            if len(row) != width:
                raise ValueError(f"row {number} has {len(row)} entries, but there are {width} labels and keys")
        return self


class Block(Part):
    """Runs: the product of the axes, joined with the zipped tables.

    A value is what the axes and zipped tables set, else what the scale sets, else `set`, else what the overrides give. A scale
    whose value no run would get, because an axis or a table sets that key too, is refused.

    Attributes:
      overrides: Hydra overrides of all runs.
      set: values of all runs, by dotted config key.
      labels: labels that all runs share.
      scales: the scales at which the block takes part.
      at: more values, by scale.
      exclusive: the runs are for their times: each is run alone, one after another, anew whenever the artifact is made.
    """

    overrides: list[str] = []
    set: dict[str, Scalar] = {}
    labels: dict[str, Label] = {}
    axes: dict[str, Axis] = {}
    zip: list[Zip] = []
    scales: list[ScaleName] = list(SCALES)
    at: dict[ScaleName, dict[str, Scalar]] = {}
    exclusive: bool = False

    @property
    def varied(self) -> dict[str, str]:
        """The config keys that axes and zipped tables set, each with the part that sets it."""
        found = {key: f"axes.{name}" for name, axis in self.axes.items() for case in axis.cases.values() for key in case.set}
        found |= {axis.key: f"axes.{name}" for name, axis in self.axes.items() if axis.key is not None}
        return found | {key: f"zip.{number}" for number, table in enumerate(self.zip) for key in table.keys}

    @property
    def label_names(self) -> list[str]:
        return [*self.labels, *self.axes, *(name for table in self.zip for name in table.labels)]


class Scale(Part):
    """How much of it: number of seeds (0, 1, ...), values, choices left on an axis, minutes on two cores."""

    seeds: int = Field(ge=1)
    minutes: float = Field(gt=0)
    set: dict[str, Scalar] = {}
    axes: dict[str, list[Label]] = {}
    note: str = ""


class Use(Part):
    """The runs of another artifact, or those of them with these labels: the very same runs, not copies."""

    artifact: str
    where: Where = {}


TIMES = ("first", "last", "final", "min", "max", "series")  # of a run that a measure may be taken at, beside a round


class Measure(Part):
    """A number of every group of runs.

    Exactly one of:
      metric: a metric of metrics.csv, taken `at` its first, last, final (mean of the last evaluations), min or max value, at a
        round (a number), or as a series over rounds; or a dotted path into result.json, such as timing.seconds_per_round. One
        that leads to a mapping of rounds (timing.compute) is taken in the same ways; a text or a yes or no is shown as it is.
      price: epsilon of the planned ledger under an accountant (with `options`), or under the run's own ("run"); `part` all, or
        what the paper's convention prices. No training.
      fact: a dotted path into what a plan knows: config keys, clients, dimension, records, problem.* (its optimum, found by
        solving it), theory.* (what ScaffNew's closed forms advise for it: local_steps, iterations, rounds), sizes.* (its
        clients' records: train.mean, train.std, test.mean, test.std), ledger.* (its releases) and attack.* (what they cost on the
        worst data known); a number or a text. No training.
      formula: arithmetic over such facts, as 2 * fact("clients") * fact("dimension"). No training.
      layers: "parameters" or "outputs" of every layer of the model. No training.
      derived: a number computed from other rows, in the language of predicates. There is one for every combination of the labels
        in `per` that the rows with `where` have; functions on rows take those labels, if they do not name them themselves.

    Attributes:
      rounds: the rounds that a series is taken at; all evaluated ones if empty.
      per: the labels of a derived measure.
      where: only runs with these labels; with `best` or `rank` among them only cells that a `best` rule chose.
      plus: more metrics that are added to `metric`; where a run does not report one it adds nothing.
      seeds: over the seeds of a group the mean (with its spread), or the smallest or largest, which holds for every run.
      better: which is better; last and final of a diverged run count as infinitely bad, or as unknown where this is not given.
        First, min and max are of what it reported before.
      absent: the value where a run does not report the metric (a constant step, say).
      round_up: decimals that the value is rounded up to.
      decimals: shown in tables; null: four significant digits.
    """

    metric: str | None = None
    plus: list[str] = []
    at: str | int = "final"
    rounds: list[Annotated[int, Field(ge=0)]] = []
    seeds: Literal["mean", "min", "max"] = "mean"
    price: str | None = None
    options: dict[str, Scalar] = {}
    part: Literal["all", "convention"] = "all"
    fact: str | None = None
    formula: str | None = None
    layers: Literal["parameters", "outputs"] | None = None
    derived: str | None = None
    per: list[str] = []
    better: Literal["lower", "higher"] | None = None
    absent: float | None = None
    round_up: int | None = None
    decimals: int | None = None
    title: str = ""
    unit: str = ""
    where: Where = {}

    @field_validator("at")
    @classmethod
    def _a_time(cls, at: str | int) -> str | int:
        if at not in TIMES and not (isinstance(at, int) and at >= 0):
            raise ValueError(f"{at} is none of {', '.join(TIMES)}, and no round (0, 1, ...)")
        return at

    @model_validator(mode="after")
    def _one_source(self) -> Measure:
        sources = (self.metric, self.price, self.fact, self.formula, self.layers, self.derived)
        if sum(source is not None for source in sources) != 1:
            raise ValueError("a measure has exactly one of `metric`, `price`, `fact`, `formula`, `layers`, `derived`")
        if self.rounds and not self.is_series:
            raise ValueError("`rounds` is for a series; write at: series")
        if self.per and self.derived is None:
            raise ValueError("`per` is for a derived measure; a measure of runs has the labels of its runs")
        return self

    @property
    def trains(self) -> bool:
        return self.metric is not None

    @property
    def is_series(self) -> bool:
        return self.metric is not None and self.at == "series"

    @property
    def of_chosen(self) -> bool:
        """Whether it is taken only of cells that a `best` rule chose, and so after the choice."""
        return self.derived is None and bool({BEST, RANK} & set(self.where))


class Best(Part):
    """Choice of the best cell of a grid `over` some labels, by one measure: marks its rows, and adds rows best.<label>.

    A chosen cell at an end of a numeric label with two or more values is flagged as on the edge of the grid.

    Attributes:
      over: the labels of the grid; rows that lack some of them (another method's) have a smaller grid. The choice is made
        separately for every combination of the other labels.
      measure: a number of every run; or a series with `rounds`, for a choice at each of them.
      top: how many cells are chosen; more than one get a label `rank`, and `best` is true for rank 1 only.
    """

    over: list[str] = Field(min_length=1)
    measure: str
    top: int = Field(1, ge=1)
    where: Where = {}
    note: str = ""


class PaperTable(Part):
    """Where the paper's numbers are.

    Attributes:
      file: CSV in paper_numbers/<paper>/.
      measures: the CSV's word in column `metric` -> our measure, or several that have other rows.
      columns: our label -> the CSV's column; values are compared by their titles.
      names: our value -> the CSV's word, where that is not its title.
      note: CSV column with a remark on each number.
      factor: what the CSV's values are multiplied by, such as 100 for shares that we give in percent.
      where: only our rows with these labels get numbers.
    """

    file: str
    measures: dict[str, str | list[str]]
    columns: dict[str, str]
    names: dict[str, str] = {}
    note: str | None = None
    factor: float = 1.0
    where: Where = {}

    def measures_of(self, word: str) -> list[str]:
        """Our measures of the CSV's word; none where it is not among them."""
        found = self.measures.get(word, [])
        return [found] if isinstance(found, str) else found


class TableSpec(Part):
    """One table: labels down the side, labels across the top, measures in each cell; the paper's number beside ours."""

    caption: str = ""
    rows: list[str]
    columns: list[str] = []
    cells: list[str]
    where: Where = {}
    notes: list[str] = []


class Mark(Part):
    """A vertical line in a figure.

    Attributes:
      at: a number, or a measure, whose values in a panel each get a line: in the colour of the series that they belong to, or in
        grey where all series of the panel have the same one.
      title: of all its lines in the legend.
    """

    at: float | str
    title: str


class FigureSpec(Part):
    """One figure, a panel per value of the labels in `panels` (one or two).

    lines: y over x (a numeric label, or a measure of the same labels), a line per `series`, and with `style` one per value of a
      second label, told apart by line style and lightness; with bands of one standard deviation over seeds.
    bars: groups along x, a bar per `series`, with error bars, and marks where the paper's numbers are.
    heatmap: one number per x and y, the best cell framed; one colour scale for the panels of a row.

    Attributes:
      log: axes that are logarithmic.
      share_y: one range of y for all panels.
      spread: bands or error bars of one standard deviation.
      spread_floor: a value that the quantity cannot fall below: bands end there.
      numbers: the value over every bar.
      title: over one of several figures.
    """

    kind: Literal["lines", "bars", "heatmap"]
    x: str
    y: str = ""
    measures: list[str]
    series: str | None = None
    style: str | None = None
    panels: list[str] = []
    where: Where = {}
    log: list[Literal["x", "y", "colour"]] = []
    x_title: str = ""
    y_title: str = ""
    y_range: list[float] = Field([], max_length=2)
    share_y: bool = False
    spread: bool = True
    spread_floor: float | None = None
    numbers: bool = False
    marks: list[Mark] = []
    title: str = ""

    @model_validator(mode="after")
    def _one_legend(self) -> FigureSpec:
        if self.series is not None and len(self.measures) > 1:
            raise ValueError("either `series`, or several measures, tell the lines apart; draw two figures, as a list")
        if self.style is not None and (self.kind != "lines" or self.series is None or self.style == self.series):
            raise ValueError("`style` is a second label, beside `series`, of a figure of lines")
        return self


class Claim(Part):
    """A statement of the paper (or of ours about it) as a predicate over the artifact's rows.

    Attributes:
      expected: what a reproduction has to find, for all scales or by scale; "either" where nothing is known.
      scale: the smallest scale at which it means something.
      kind: claim, or invariant: what follows from a definition and can only fail by a mistake; counted apart.
      note: what the verdict depends on.
    """

    id: str
    text: str
    source: str
    predicate: str
    expected: Verdict | dict[ScaleName, Verdict]
    scale: ScaleName = "quick"
    kind: Literal["claim", "invariant"] = "claim"
    note: str = ""

    def expected_at(self, scale: str) -> str:
        return self.expected if isinstance(self.expected, str) else self.expected.get(scale, "either")  # type: ignore[call-overload]


Verdict = Literal["holds", "does not hold", "either"]


class Declaration(Part):
    """An artifact's yaml: `runs` of its own, those of another artifact (`use`), or both; one figure, or a list of them."""

    title: str
    shows: str
    source: str
    scales: dict[ScaleName, Scale] = {}
    runs: list[Block] = []
    use: Use | None = None
    measures: dict[str, Measure]
    show: dict[str, str] = {}
    best: list[Best] = []
    titles: dict[str, str] = {}
    paper_numbers: PaperTable | None = None
    input_shape: list[int] = []
    classes: int | None = None
    tables: list[TableSpec]
    figure: FigureSpec | list[FigureSpec]
    claims: list[Claim] = []
    notes: list[str] = []

    @property
    def figures(self) -> list[FigureSpec]:
        return self.figure if isinstance(self.figure, list) else [self.figure]

    @model_validator(mode="after")
    def _runs_or_use(self) -> Declaration:
        if not self.runs and self.use is None:
            raise ValueError("an artifact has `runs`, or `use`, or both")
        if not self.figures:
            raise ValueError("`figure` is an empty list; give at least one")
        if self.runs and set(self.scales) != set(SCALES):
            raise ValueError(f"`scales` must say what {', '.join(SCALES)} are")
        if len({m.layers is None for m in self.measures.values()}) > 1:
            raise ValueError(
                "measures of layers stand alone: none of runs (metric), plans (price, fact, formula), rows (derived) beside them"
            )
        return self


@dataclass(frozen=True)
class Artifact:
    """A declaration with its name, `<paper>/<id>`, and the resolved reference to another artifact's runs."""

    name: str
    path: Path
    declaration: Declaration
    used: Artifact | None = None

    @property
    def paper(self) -> str:
        return self.name.split("/")[0]

    def scale(self, scale: str) -> Scale:
        """What a scale means here; an artifact that only uses another's runs may restate only its minutes."""
        own = self.declaration.scales.get(scale)  # type: ignore[call-overload]
        if self.used is None or self.declaration.runs:
            assert own is not None
            return own
        base = self.used.scale(scale)
        return base if own is None else base.model_copy(update={"minutes": own.minutes, "note": own.note or base.note})

    @property
    def trains(self) -> bool:
        """Whether runs are needed, or plans are enough."""
        return any(measure.trains for measure in self.declaration.measures.values())

    @cached_property
    def labels(self) -> list[str]:
        """The labels of its rows, in the order of the table's columns."""
        blocks = [*self.declaration.runs, *(self.used.declaration.runs if self.used is not None else [])]
        names = [name for block in blocks for name in block.label_names]
        if any(measure.layers for measure in self.declaration.measures.values()):
            names += ["layer", "output"]
        if any(measure.is_series for measure in self.declaration.measures.values()):
            names.append(ROUND)
        if any(rule.top > 1 for rule in self.declaration.best):
            names.append(RANK)
        return list(dict.fromkeys(names))

    @cached_property
    def measures(self) -> list[str]:
        """Names of the measures, with those that `best` rules add: best.<label>."""
        return list(
            dict.fromkeys([*self.declaration.measures, *(f"best.{name}" for rule in self.declaration.best for name in rule.over)])
        )

    def title_of(self, value: Any) -> str:
        """How a label's value, a label or a measure is written for readers."""
        titles = {**(self.used.declaration.titles if self.used is not None else {}), **self.declaration.titles}
        if isinstance(value, str):
            if value in titles:
                return titles[value]
            measure = self.declaration.measures.get(value)
            return measure.title or value if measure is not None else value
        return f"{value:g}" if isinstance(value, float) else str(value)


def artifact_names() -> list[str]:
    """All artifacts there are, `<paper>/<id>`, sorted."""
    root = conf_dir() / "artifact"
    return sorted(f"{path.parent.name}/{path.stem}" for path in root.glob("*/*.yaml"))


def select_artifacts(words: Sequence[str]) -> list[Artifact]:
    """The artifacts that words mean: `all`, a paper, `<paper>/<id>`, or the path of a yaml file.

    Raises:
      ConfigError: an unknown name, with the nearest one; two files that would be written to one folder.
    """
    names = artifact_names()
    papers = list(dict.fromkeys(name.split("/")[0] for name in names))
    chosen: list[str] = []
    for word in words:
        if word == "all":
            chosen += names
        elif word in papers:
            chosen += [name for name in names if name.split("/")[0] == word]
        elif word in names or word.endswith((".yaml", ".yml")):
            chosen.append(word)
        else:
            raise ConfigError(f"{word}: no such artifact; {nearest(word, ['all', *papers, *names])} (dpfl reproduce --list)")
    found: dict[str, Artifact] = {}
    for artifact in (load_artifact(name) for name in dict.fromkeys(chosen)):
        other = found.setdefault(artifact.name, artifact)
        if other.path.resolve() != artifact.path.resolve():
            raise ConfigError(f"{artifact.path}: {other.path} is called {artifact.name} too; rename one of the files")
    return list(found.values())


@lru_cache(maxsize=256)
def load_artifact(name: str) -> Artifact:
    """Reads and checks one artifact, by name or by the path of its file (whose name is then `local/<stem>`)."""
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        name = f"local/{path.stem}"
    else:
        path = conf_dir() / "artifact" / f"{name}.yaml"
        if not path.is_file():
            raise ConfigError(f"{name}: no such artifact; {nearest(name, artifact_names())} (dpfl reproduce --list)")
    artifact = _parsed(name, path)
    _check(artifact)
    return artifact


def _parsed(name: str, path: Path) -> Artifact:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"artifact {name}: not yaml: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"artifact {name}: not a declaration; it needs title, runs, measures, tables and figure")
    values.pop("anchors", None)  # room for yaml anchors
    for where, text in _texts(values, ""):
        if re.fullmatch(r"[-+]?\d+[eE][-+]?\d+", text):
            raise ConfigError(
                f"artifact {name}: {where}={text}: yaml reads this as text, not as a number; write 1.0e-4 or 0.0001"
            )
    try:
        declaration = Declaration.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"artifact {name}: {_first(error)}") from None
    used = load_artifact(declaration.use.artifact) if declaration.use is not None else None
    if used is not None and used.used is not None:
        raise ConfigError(f"artifact {name}: use.artifact={used.name} uses the runs of {used.used.name} itself; name that one")
    return Artifact(name, path, declaration, used)


def _texts(node: Any, where: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _texts(value, f"{where}.{key}" if where else str(key))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _texts(value, f"{where}.{number}")
    elif isinstance(node, str):
        yield where, node


def _first(error: ValidationError) -> str:
    """The first error of a validation as one line, with the nearest right key."""
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        kind: Any = Declaration
        for part in first["loc"][:-1]:
            kind = _kind_at(kind, part)
        fields = kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else {}
        return f"{path}: unknown key; {nearest(str(first['loc'][-1]), fields)}" if fields else f"{path}: unknown key"
    if first["type"] == "missing":
        return f"{path}: missing"
    message = first["msg"].removeprefix("Value error, ")
    return f"{path}: {message[0].lower()}{message[1:]}" if path else message


def _kind_at(kind: Any, part: int | str) -> Any:
    """The model type one step along an error's location."""
    from typing import get_args

    if isinstance(part, int):
        return kind
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if part not in kind.model_fields:
            return kind  # a key of a mapping of such parts
        annotation: Any = kind.model_fields[part].annotation
    else:
        annotation = kind
    models = [one for one in (annotation, *get_args(annotation)) if isinstance(one, type) and issubclass(one, BaseModel)]
    return models[0] if models else annotation


def _check(artifact: Artifact) -> None:
    """Refuses names that nothing defines: labels, measures, functions of predicates."""
    from dpfl_cli.reproduction.rows import COLUMNS  # which is made of declarations

    declaration, labels = artifact.declaration, [*artifact.labels, BEST, MEASURE]
    where = f"artifact {artifact.name}"

    def known(names: Sequence[str], among: Sequence[str], what: str, place: str) -> None:
        for name in names:
            if name not in among:
                raise ConfigError(f"{where}: {place}: no {what} '{name}'; {nearest(name, among)}")

    for number, block in enumerate(declaration.runs):
        reserved = [name for name in block.label_names if name in (*COLUMNS, ROUND, RANK)]
        if reserved:
            raise ConfigError(
                f"{where}: runs.{number}: a label cannot be called {reserved[0]}, which is a column of table.csv; rename it"
            )
        if block.exclusive and not artifact.trains:
            raise ConfigError(f"{where}: runs.{number}.exclusive: nothing is run here; it needs a measure with a `metric`")
        for table in block.zip:
            if not set(table.labels) & {*block.axes, *block.labels} and block.axes:
                raise ConfigError(f"{where}: runs.{number}.zip: none of its labels {table.labels} is an axis")
    axes = [axis for block in declaration.runs for axis in block.axes]
    for size, scale in declaration.scales.items():
        known(list(scale.axes), axes, "axis", f"scales.{size}.axes")
        for name, choices in scale.axes.items():
            of_name = [block.axes[name] for block in declaration.runs if name in block.axes]
            if all(axis.cases for axis in of_name):
                cases = [case for axis in of_name for case in axis.cases]
                known([str(choice) for choice in choices], cases, "case", f"scales.{size}.axes.{name}")
        for number, block in enumerate(declaration.runs):
            for key in {**scale.set, **block.at.get(size, {})}:
                if size in block.scales and key in block.varied:
                    raise ConfigError(
                        f"{where}: scales.{size} sets {key}, which runs.{number}.{block.varied[key]} sets for every run; "
                        "say there what it is, or leave choices out by the scale's `axes`"
                    )
    for rule in declaration.best:
        known([rule.measure], list(declaration.measures), "measure", "best.measure")
        known(rule.over, [name for name in labels if name not in (BEST, MEASURE, ROUND, RANK)], "label", "best.over")
        known(list(rule.where), labels, "label", "best.where")
        chosen = declaration.measures[rule.measure]
        if chosen.is_series and not chosen.rounds:
            raise ConfigError(
                f"{where}: best.measure={rule.measure} is a series; choose by one number of a run, such as at: final, or give it "
                "`rounds`, for a choice at each of them"
            )
        if chosen.derived is not None or chosen.of_chosen:
            raise ConfigError(
                f"{where}: best.measure={rule.measure} is known only after the choice; choose by a measure of all cells"
            )
        if chosen.better is None:
            raise ConfigError(f"{where}: best.measure={rule.measure}: say which is better, as better: lower")
        if {BEST, RANK} & set(rule.where):
            raise ConfigError(f"{where}: best.where: a choice among chosen cells; name labels of runs")
    names = list(declaration.measures)
    for name, measure in declaration.measures.items():
        known(list(measure.where), labels, "label", f"measures.{name}.where")
        known(measure.per, artifact.labels, "label", f"measures.{name}.per")
        if {BEST, RANK} & set(measure.where) and not declaration.best:
            raise ConfigError(f"{where}: measures.{name}.where: nothing is chosen here; it needs a `best` rule")
        if measure.derived is not None:
            try:
                check_expression(
                    measure.derived, [one for one in artifact.measures if one not in names[names.index(name) :]], labels
                )
            except ConfigError as error:
                raise ConfigError(f"{where}: measures.{name}.derived: {error}") from None
        if measure.formula is not None:
            try:
                check_formula(measure.formula)
            except ConfigError as error:
                raise ConfigError(f"{where}: measures.{name}.formula: {error}") from None
    for number, layout in enumerate(declaration.tables):
        known([*layout.rows, *layout.columns, *layout.where], labels, "label", f"tables.{number}")
        known(layout.cells, artifact.measures, "measure", f"tables.{number}.cells")
    for drawn in declaration.figures:
        known([drawn.x], [*labels, *artifact.measures] if drawn.kind == "lines" else labels, "label", "figure.x")
        named = [name for name in (drawn.y, drawn.series, drawn.style) if name] + [*drawn.panels, *drawn.where]
        known(named, labels, "label", "figure")
        known(drawn.measures, artifact.measures, "measure", "figure.measures")
        known([mark.at for mark in drawn.marks if isinstance(mark.at, str)], artifact.measures, "measure", "figure.marks.at")
        if drawn.marks and drawn.kind != "lines":
            raise ConfigError(f"{where}: figure.marks: vertical lines are for a figure of lines, not of kind {drawn.kind}")
    if declaration.use is not None:
        known(list(declaration.use.where), labels, "label", "use.where")
    if declaration.paper_numbers is not None:
        known(list(declaration.paper_numbers.columns), labels, "label", "paper_numbers.columns")
        ours = [name for word in declaration.paper_numbers.measures for name in declaration.paper_numbers.measures_of(word)]
        known(ours, artifact.measures, "measure", "paper_numbers.measures")
    identifiers = [claim.id for claim in declaration.claims]
    for claim in declaration.claims:
        if identifiers.count(claim.id) > 1:
            raise ConfigError(f"{where}: claims: two claims are called {claim.id}")
        try:
            check_expression(claim.predicate, artifact.measures, labels)
        except ConfigError as error:
            raise ConfigError(f"{where}: claim {claim.id}: {error}") from None


Claim.model_rebuild()
