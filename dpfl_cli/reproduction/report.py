"""The report: a static site of every table and figure that is there, which needs no network."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pandas as pd
from markupsafe import Markup

from dpfl_cli.config.errors import StoreError
from dpfl_cli.config.paths import conf_dir
from dpfl_cli.reproduction.artifact import Artifact
from dpfl_cli.reproduction.folder import Made, folders, publish
from dpfl_cli.reproduction.grid import commands
from dpfl_cli.reproduction.judge import (
    CHANGED,
    GROUPS,
    IN_SPREAD,
    NEAR,
    NOT_RUN,
    PARTLY,
    STANDINS,
    Verdict,
)
from dpfl_cli.reproduction.measure import DASH, MEASURE, ROUND
from dpfl_cli.reproduction.paper_numbers import beside_paper
from dpfl_cli.reproduction.tables import CSV, labels_of
from dpfl_cli.reproduction.templating import MARKDOWN, template
from dpfl_cli.reproduction.verdict import FAILS, HOLDS, UNDECIDED, interval_text

ASSETS = ("report.css", "report.js")
FINDINGS = (HOLDS, FAILS, UNDECIDED, NOT_RUN)
COUNTED = {name: title for name, title in GROUPS.items() if name != "invariant"}
Of = Callable[[str, Mapping[str, Any]], bool]  # of a page and one of its runs
# hours that scale=paper may take on two cores, and the runs that they are for, where not all
BUDGET: Mapping[str, Mapping[str, Of | None]] = {
    "adaptdp": {"2 without table5": lambda page, run: page != "table5"},
    "dynamic": {"2": None},
    "fedexp": {"2": None},
    "fednew": {"8": None},
    "scaffnew": {
        "2.5 for mushrooms": lambda page, run: page in ("fig12", "fig12_splits", "scaling"),
        "3 for CIFAR-10 in fig2 and fig3, which have five seeds, at one horizon and at five": (
            lambda page, run: page in ("fig2", "fig3") and run["labels"]["task"] == "cifar10"
        ),
    },
}
# hours on two cores with nothing else running, by docs/speed.md
ON_TWO_CORES = {"dynamic": "about 2.2", "fedexp": "2.0", "fednew": "about 11.5"}
REDUCED_SIZE = " (reduced size)"  # in a page's first line
POINTS = 80  # rounds of a curve that a plot keeps

VerdictCounts = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, kw_only=True)
class Shown(Made):
    """An artifact's folder, as its page shows it.

    Attributes:
      declared: None for one of a file of one's own that is not at hand, or that has changed since.
      scales: at which it is there.
      before: the same at the largest scale below that is there.
    """

    declared: Artifact | None
    scales: Sequence[str]
    before: Shown | None

    @property
    def is_largest(self) -> bool:
        return self.scale == self.scales[-1]

    @property
    def url(self) -> str:
        return f"{self.artifact}/{self.scale}/index.html"

    @property
    def heading(self) -> str:
        """What the page is called; at a size below the paper's it ends by saying so."""
        return self.page.partition("\n")[0].partition(": ")[2]

    @property
    def title(self) -> str:
        return self.heading.removesuffix(REDUCED_SIZE)

    @property
    def reduced(self) -> bool:
        return self.heading.endswith(REDUCED_SIZE)

    @property
    def in_part(self) -> bool:
        """Whether it has a part of the paper's cells alone, which the horizon then ends with."""
        return ";" in (self.manifest.get("tested_to") or "")

    @cached_property
    def sections(self) -> dict[str, Markup]:
        """The page's sections by heading, as HTML; what is before the first is ""."""
        _, _, body = self.page.partition("\n")
        first, *others = re.split(r"^## (.*)\n", body, flags=re.MULTILINE)
        texts = {"": first, **dict(zip(others[::2], others[1::2], strict=True))}
        return {heading: Markup(MARKDOWN.render(text)) for heading, text in texts.items()}

    @property
    def listed(self) -> list[dict[str, Any]]:
        """Its claims, each with its group and where it stands."""
        return [{**vars(one), "group": one.group, "of": self} for one in self.claims]

    @property
    def counts(self) -> VerdictCounts:
        return totals([self])

    @property
    def numbers_at_full_size(self) -> str:
        """How its numbers compare with the paper's, where it is at the paper's size."""
        return "" if self.reduced else self.numbers

    @property
    def numbers_of_any_size(self) -> str:
        """The same at every size, in brackets at a reduced one."""
        return f"({self.numbers})" if self.reduced and self.numbers else self.numbers

    @property
    def standin(self) -> bool:
        """Whether all of its data stand in for the paper's."""
        data = self.manifest.get("data") or ()
        return bool(data) and all(one.endswith("(standin)") for one in data)

    @property
    def tried(self) -> str:
        """Its paper's claims: how many hold / fail / are undecided, in brackets at reduced size;
        those on stand-ins apart.
        """
        forms = {"paper": "{}", "paper_standin": f"{{}} {STANDINS}"}
        forms |= {"reduced": "({})", "reduced_standin": f"({{}} {STANDINS})"}
        texts = [
            form.format(" / ".join(str(counts[one]) for one in (HOLDS, FAILS, UNDECIDED)))
            for group, form in forms.items()
            if any((counts := self.counts[group]).values())
        ]
        return "; ".join(texts) or DASH

    @property
    def changes(self) -> list[tuple[Verdict, str, str, str]]:
        """Claims of which `before` found otherwise: each with that finding, what differs between
        the sizes, and a comparison that changed.
        """
        if self.before is None:
            return []
        earlier = {one.id: one for one in self.before.claims}
        changes = []
        for one in self.claims:
            known = earlier.get(one.id)
            if known and known.finding != one.finding:
                start, end = (made.manifest["tested_to"] for made in (self.before, self))
                further = f"{start} → {end}" if start != end else ""
                shown = "; ".join(filter(None, [one.added_to(known), further])) or DASH
                changes.append((one, known.finding, shown, one.why_not(known)))
        return changes

    @property
    def minutes(self) -> float | None:
        if self.declared is None or self.declared.runs_of:
            return None
        return self.declared.size(self.scale).minutes if self.declared.trains else 0.0

    @property
    def at_edge(self) -> int:
        """How many chosen points lie at the end of what was searched."""
        found = re.findall(r"of \d+\)(?: in (\d+) cells)?", self.manifest.get("edges", ""))
        return sum(int(cells or 1) for cells in found)

    @property
    def has_figure(self) -> bool:
        return (self.folder / "figure.png").exists()

    @cached_property
    def commands(self) -> list[str]:
        """The `dpfl run` lines that its runs amount to."""
        return list(commands(self.declared, self.scale)) if self.declared else []

    @cached_property
    def presets(self) -> dict[str, str]:
        """The presets that its runs are built on: name -> YAML."""
        names = dict.fromkeys(re.findall(r"\+experiment=(\S+)", "\n".join(self.commands)))
        return {name: (conf_dir() / f"experiment/{name}.yaml").read_text() for name in names}

    @cached_property
    def files(self) -> dict[str, bytes]:
        """What can be downloaded: all of its folder, the runs' commands and presets."""
        found = {path.name: path.read_bytes() for path in sorted(self.folder.iterdir())}
        texts = {f"{name.replace('/', '_')}.yaml": text for name, text in self.presets.items()}
        if self.commands:
            texts["commands.txt"] = "\n".join(self.commands) + "\n"
        return found | {name: text.encode() for name, text in texts.items()}

    @cached_property
    def points(self) -> dict[str, Any]:
        """Means over seeds of every number and curve, and the paper's, for the page's plot."""
        title = self.declared.title_of if self.declared else str
        parts = [pd.read_csv(self.folder / name) for name in CSV]
        frame = pd.concat(parts).astype({"value": float})
        labels = labels_of(frame)
        keys = [*labels, MEASURE, ROUND]
        rounds = sorted(frame[ROUND].dropna().unique())
        kept = [*rounds[:: len(rounds) // POINTS + 1], *rounds[-1:], math.nan]
        cells = frame[frame[ROUND].isin(kept)].groupby(keys, sort=False, dropna=False)["value"]
        means = cells.agg(["mean", "std", "count"]).reset_index()
        known = beside_paper(self.declared, means) if self.declared else means.assign(paper=None)
        columns = [*means.columns, "paper"]
        rows = [[_plain(value) for value in row] for row in known[columns].to_numpy().tolist()]
        rows = [row for row in rows if row[len(keys)] is not None]
        words = {str(value) for row in rows for value in row[: len(keys) - 1]} | set(labels)
        titles = {word: shown for word in sorted(words) if (shown := title(word)) != word}
        figures = self.declared.figures if self.declared else ()
        # the first figure of a measure says whether its scale is logarithmic
        first = {measure: figure.log for figure in reversed(figures) for measure in figure.measures}
        log = [measure for measure, axes in first.items() if {"y", "colour"} & set(axes)]
        return {"labels": labels, "rows": rows, "titles": titles, "log": log}


def _plain(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.5g}") if math.isfinite(value) else None


def totals(shown: Iterable[Shown]) -> VerdictCounts:
    """The claims of several artifacts: group -> finding -> how many."""
    found = Counter((one.group, one.finding) for each in shown for one in each.claims)
    return {group: {name: found[group, name] for name in FINDINGS} for group in COUNTED}


def numbers(lines: Iterable[str]) -> str:
    """How many numbers of several pages are near the papers', of those that they compare.

    Args:
      lines: how each page says it.
    """
    line, texts = "; ".join(lines), []
    for what in (IN_SPREAD, NEAR):
        found = re.findall(rf"(\d+) of (\d+) {what}", line)
        near, all_of = (sum(map(int, column)) for column in zip(("0", "0"), *found, strict=True))
        texts.append(f"{near} of {all_of} {what}")
    return "; ".join(texts)


def of_these(shown: Sequence[Shown]) -> str:
    """The same of pages that say less of what the papers found, which count among them."""
    untrained = numbers(one.numbers_at_full_size for one in shown if not one.manifest["runs"])
    said = f"on pages where nothing is trained, of settings, counts and closed forms: {untrained}"
    if standins := [one.numbers_at_full_size for one in shown if one.standin]:
        said = f"on pages of stand-ins alone: {numbers(standins)}; {said}"
    return f"of these, {said}"


def hours(shown: Iterable[Shown], of: Of = lambda page, run: True) -> str:
    """What all runs of artifacts took, a run that several of them share once; on GPUs apart."""
    runs = {
        run["id"]: run
        for one in shown
        for run in one.manifest["runs"]
        if of(one.artifact.partition("/")[2], run)
    }
    took = Counter[bool]()
    for run in runs.values():
        took["gpu" in run] += run.get("seconds", 0) / 3600
    texts = [f"{took[gpu]:.2f}{' on a GPU' * gpu}" for gpu in (False, True) if took[gpu]]
    return " and ".join(texts) or DASH


def budget(paper: str, shown: Sequence[Shown]) -> str:
    """What a paper's pages may take, and what those runs that it is for took."""
    asked = [
        f"{words}; so counted {hours(shown, of)}" if of else words
        for words, of in BUDGET.get(paper, {}).items()
    ]
    return f" (budget: {'; '.join(asked)})" if asked else ""


def partly(shown: Iterable[Shown]) -> int:
    """How many of the papers' claims compare runs on stand-ins and others too."""
    claims = [one for each in shown for one in each.claims if not one.ours]
    return sum(one.data == PARTLY for one in claims)


def _filled(file: str, **given: Any) -> str:
    """A template filled in with what is given and what all of them may use."""
    return template(file)(
        groups=COUNTED,
        findings=FINDINGS,
        totals=totals,
        budget=budget,
        partly=partly,
        hours=hours,
        numbers=numbers,
        of_these=of_these,
        two_cores=ON_TWO_CORES,
        changed=CHANGED,
        interval=interval_text,
        **given,
    )


def index_md(root: Path) -> str:
    """The overview of a folder of artifacts in markdown: totals, and a line for each artifact."""
    found = folders(root)
    front = [one for one in _shown(found, {}) if one.is_largest]
    damaged = [one for one in found if one.damage]
    return _filled("index.md.j2", shown=front, damaged=damaged, papers=_by_paper(front))


def _shown(found: Iterable[Made], artifacts: Mapping[str, Artifact]) -> list[Shown]:
    """The folders that can be read, with their declarations."""
    shown = []
    whole = (one for one in found if not one.damage)
    for name, scales in itertools.groupby(whole, lambda one: one.artifact):
        mine, declared, before = list(scales), artifacts.get(name), None
        for made in mine:
            known = declared if declared and made.scale in declared.sizes else None
            before = Shown(
                **vars(made), declared=known, scales=[one.scale for one in mine], before=before
            )
            shown.append(before)
    return shown


def _by_paper(shown: Sequence[Shown]) -> dict[str, list[Shown]]:
    papers = itertools.groupby(shown, lambda one: one.paper)
    return {name: list(mine) for name, mine in papers}


def write_report(
    outputs: Path,
    artifacts: Mapping[str, Artifact],
    command: str,
    changed: Container[str] | None = None,
) -> Path:
    """Writes outputs/report anew, from outputs/artifacts and, for what is not there, from
    outputs/published; returns its front page.

    Args:
      artifacts: declarations, for titles, commands and cost.
      command: what made it.
      changed: the artifacts whose pages are made; those of others stay where they are there. None
        for all.

    Raises:
      StoreError: there is nothing to show, or the site cannot be written.
    """
    found = folders(outputs / "artifacts", outputs / "published")
    if not found:
        raise StoreError(
            f"{outputs}: no artifacts and nothing published; dpfl reproduce makes what is shown"
        )
    pages = _shown(found, artifacts)
    front = [one for one in pages if one.is_largest]
    damaged = [one.folder for one in found if one.damage]
    papers = _by_paper(front)
    of_papers = [one.paper for one in artifacts.values() if one.paper is not None]
    cited, declared = {one.key: one for one in of_papers}, Counter(one.key for one in of_papers)
    missing = sorted(artifacts.keys() - {one.artifact for one in found})
    filled = partial(_filled, papers=papers, cited=cited, command=command, top="")
    files: dict[str, str | bytes] = {
        "index.html": filled(
            "index.html.j2", shown=front, damaged=damaged, declared=declared, missing=missing
        ),
        "claims.html": filled("claims.html.j2", shown=front),
    }
    for name, mine in papers.items():
        files[f"{name}.html"] = filled("paper.html.j2", name=name, shown=mine)
    old = outputs / "report"
    if not all((old / f"{name}.html").exists() for name in papers):
        changed = None  # every page leads to every paper
    for one in pages:
        if changed is not None and one.artifact not in changed and (old / one.url).exists():
            kept = (old / one.url).parent
            files |= {str(path.relative_to(old)): path.read_bytes() for path in kept.iterdir()}
            continue
        files |= {f"{Path(one.url).parent}/{name}": text for name, text in one.files.items()}
        files[one.url] = filled("artifact.html.j2", one=one, top="../../../")
    for name in ASSETS:
        files[name] = (Path(__file__).with_name("templates") / name).read_bytes()
    publish(old, files)
    return old / "index.html"
