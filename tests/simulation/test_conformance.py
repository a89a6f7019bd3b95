"""Every method keeps what its guarantee says (`dpfl check`), and those that do not are told by the
check that they fail.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import dpfl_cli.config.component as component_module
from dpfl_cli.cli import check as checking
from dpfl_cli.cli.check import SMALL, Case, cases, check, checked
from dpfl_cli.cli.main import main
from dpfl_cli.config.component import components, lookup
from dpfl_cli.config.compose import compose_config
from dpfl_cli.simulation import conformance
from dpfl_cli.simulation.checked import note_check, passed
from dpfl_cli.simulation.conformance import Contribution, Kit, Play
from dpfl_cli.simulation.neighbours import held, with_records
from dpfl_cli.simulation.plan import load_components, make_plan
from dpfl_cli.simulation.plugins import ENVIRONMENT, load_plugins
from dpfl_cli.simulation.results import privacy_report
from dpfl_cli.simulation.run_plan import federation_of
from dpfl_cli.simulation.store import CLAIMED

load_components()
FEW = "algorithm.local_steps=3"
ONE = "algorithm.local_steps=1"
MINIBATCH = "algorithm.batch_size=1"
METHODS: dict[str, list[list[str]]] = {  # settings besides the defaults
    "fedavg": [[], [FEW, MINIBATCH]],
    "fedexp": [[], ["algorithm.step=naive"]],
    "fedopt": [[], ["algorithm.optimizer=yogi", MINIBATCH]],
    "scaffold": [
        *([f"algorithm.control={c}", "algorithm.release=double"] for c in ("sent", "raw")),
        ["algorithm.control=clipped", "algorithm.warm_start=true"],
        [FEW, MINIBATCH],
    ],
    "fedavg_record": [[FEW], [ONE], [FEW, MINIBATCH, "algorithm.sampling=poisson"]],
    "scaffold_record": [
        [FEW],
        [ONE, "algorithm.warm_start=true", "algorithm.warm_idle_rounds=1"],
        [FEW, MINIBATCH, "algorithm.sampling=epoch_permutation"],
    ],
    "adaptdp": [[FEW], [ONE, MINIBATCH, "algorithm.radius_batch_size=1"]],
    "scaffnew": [
        [],
        ["algorithm.control=clipped"],
        ["algorithm.schedule=bernoulli", "algorithm.final_release=true"],
        ["algorithm.watched_client=0", MINIBATCH],
    ],
    "fedfc": [[], ["algorithm.cov_norm=paper", "algorithm.budget=fraction"]],
    "fedfc_record": [[], ["algorithm.cov_norm=paper", "algorithm.psd_floor=none"]],
    "fednew": [[f"algorithm.dual={dual}"] for dual in ("off", "own_update", "paper")],
    "fednew_record": [[f"algorithm.dual={dual}"] for dual in ("off", "paper")],
    "isrl_dp": [["algorithm.average=linear", "algorithm.radius=1.0"]],
    "primal_dual": [
        ["algorithm.strong_convexity=0.1"],
        ["algorithm.schedule=static", "algorithm.report=messages"],
    ],
}
REFUSED = {  # of these trust models, and why
    ("fedexp", "central", "algorithm.step=naive"): "needs every client's noisy message",
    **{
        (name, "central", word): "nobody adds noise to a client's own steps"
        for name in ("fedavg_record", "scaffold_record", "adaptdp")
        for word in (FEW,)
    },
}
BUILT_IN = [
    pytest.param(name, case, id=" ".join(case.words).replace("algorithm.", ""))
    for name, variants in METHODS.items()
    for words in variants
    for case in cases(lookup("algorithm", name), words)
]
PRIVUNIT = ["dp=ldp_privunit"]
COHORTS = ["dp=cdp", "participation.cohort=3", *SMALL[1:]]
MORE = [  # ways in which some of them are run besides
    *(
        (name, PRIVUNIT)
        for name in ("fedavg", "fedexp", "fedopt", "scaffold", "scaffnew", "fednew")
    ),
    *(
        (name, [*COHORTS, "participation=poisson"])
        for name in ("fedavg", "fedexp", "fedopt", "scaffold")
    ),
    *((name, [*COHORTS, "participation=fixed"]) for name in ("fedavg", "fedexp", "fedopt")),
]
ABSENT = ["dp=record", "dp.relation=zero_out"]
MORE += [
    ("fedavg_record", [*ABSENT, FEW, MINIBATCH, "algorithm.sampling=poisson"]),
    ("scaffold_record", [*ABSENT, FEW, MINIBATCH]),
    ("fednew_record", [*ABSENT, "dp.relation=add_or_remove"]),
    ("fedfc_record", [*ABSENT, "dp.relation=add_or_remove"]),
]
BUILT_IN += [
    pytest.param(name, case, id=f"{name} {words[0]} {words[-1]}")
    for name, words in MORE
    for case in cases(lookup("algorithm", name), words)
]


def test_every_method_of_the_package_is_among_them() -> None:
    found = components("algorithm").items()
    assert {name for name, one in found if one.origin == "dpfl"} == METHODS.keys()


@pytest.mark.parametrize(("name", "case"), BUILT_IN)
def test_a_built_in_method_keeps_what_it_says(name: str, case: Case) -> None:
    rows = check(case, [])
    wrong = {row["check"]: row["why"] for row in rows if row["result"] != "pass"}
    if "dp=ldp_privunit" in case.words:  # it adds no Gaussian noise
        assert "only Gaussian noise is measured" in wrong.pop("noise")
    central = "dp=cdp" in case.words
    for (refused, _, word), why in REFUSED.items():
        if central and refused == name and word in case.words:
            assert why in wrong.pop("all")
    # several steps under shares: the bound of a step does not hold for the next one, which reads
    # the client's own message with its share of the noise alone. Not proved, and not so.
    several = FEW in case.words and not any("batch_size" in word for word in case.words)
    if name == "scaffold_record" and several and "dp=secure_aggregation" in case.words:
        assert "dp.mode=paper" in wrong.pop("sensitivity")
    assert not wrong


# Methods that do not keep what they say.

METHOD = """
from dpfl_cli.algorithms.api import *
from dpfl_cli.privacy.client_values import opened
from dpfl_cli.privacy.mechanism import Call


class Own(LocalSettings):
    clip_norm: Bound = 1.0
    local_lr: Number = 0.05
    local_steps: int = 2


@algorithm("faulty", revision=1, paper="", unit="client", trusts=["central"], proved=["central"])
class Faulty:
    hyper: Own

    @staticmethod
    def releases(settings, run):
        return [ReleaseSpec("update"){MORE_RELEASES}]

    def init(self, objective, streams):
        return State({"model": objective.initial(streams)}, {CLIENTS})

    def round(self, state, at):
        model = state.server["model"]
        update = bounded_local_update(at, model, self.hyper)
        extra, clients, shown = 0.0, {}, {}
        {BEFORE}
        mean = at.release("update", update).mean
        {AFTER}
        return State({"model": model + mean + extra}, clients), shown
"""
RAW = "opened(at.objective.gradient(at.at_clients(model)))"
INNER = "at.objective._ClientSide__objective"
METHOD_FAULTS = {  # what is wrong -> the check that tells, and the code
    "marked values in the server's state": (
        "marks", {"AFTER": "extra = update.values.mean(dim=1)"}),
    "raw values in the server's state": (
        "influence", {"AFTER": "extra = opened(update.values).mean(dim=1)"}),
    "noise taken off again": (
        "influence", {"AFTER": "extra = (opened(update.values).mean(1) - mean) / 2"}),
    "raw values kept from round to round in the object": (
        "marks",
        {"AFTER": f"extra = getattr(self, 'kept', 0.0); self.kept = {RAW}.mean(dim=1)"}),
    "a velocity that is lost with an interrupt": (
        "marks", {"AFTER": "extra = getattr(self, 'v', 0.0); self.v = mean"}),
    "a client's state without its mark": (
        "marks", {"CLIENTS": "{'own': torch.zeros(objective.runs, objective.clients, "
                  "objective.dimension)}", "AFTER": f"clients = {{'own': {RAW}}}"}),
    "a diagnostic without its mark": (
        "influence", {"AFTER": f"shown = {{'gradient': {RAW}.sum(dim=(1, 2))}}"}),
    "numbers of records": (
        "influence",
        {"AFTER": f"extra = mean * {INNER}.records.double().mean(1, keepdim=True)"}),
    "runs that mix": ("influence", {"AFTER": "mean = mean / mean.norm()"}),
    "runs that mix after a warm-up": (
        "influence", {"AFTER": "mean = mean / mean.norm() if at.number[0] > 5 else mean"}),
    "half the sensitivity": (
        "sensitivity",
        {"BEFORE": "object.__setattr__(update, 'replace_one', update.replace_one / 2)"}),
    "a clip norm of the data": (
        "influence",
        {"BEFORE": "update = clip(update.values, "
         "opened(update.values).norm(dim=2).amax(1).clamp(min=1e-3))"}),
    "a release that is not charged": (
        "ledger",
        {"BEFORE": "spec = at.mechanism._site.specs[0]['update']; moved = update.replace_one; "
         "call = Call(spec, update, np.ones(len(model)), 99 + at.number, moved, moved); "
         "extra = at.mechanism._released(call).mean"}),
    "a release that is declared and never made": (
        "ledger", {"MORE_RELEASES": ", ReleaseSpec('other')"}),
    "a run that ends by its data": (
        "influence",
        {"BEFORE": f"assert {RAW}.abs().amax() < 1e9"}),
    "less noise, behind the mechanism's back": (
        "noise",
        {"BEFORE": "m = at.mechanism; draw = type(m)._noisy; "
         "m._noisy = lambda call, mean, std: draw(m, call, mean, 0.9 * std)"}),
}  # fmt: skip

MECHANISM = """
import torch
from dpfl_cli.config.component import component
from dpfl_cli.privacy.gaussian import CentralGaussian, GaussianSettings


class Settings(GaussianSettings):
    noise_multiplier: float | None = 2.5


@component("mechanism", "faulty", revision=1, settings=Settings)
class Faulty(CentralGaussian):
    def _noisy(self, call, mean, std):
        {BODY}
"""
OF_OTHERS = "the noise of the first run in all of a stack"
MECHANISM_FAULTS = {
    "less noise than is priced": "return super()._noisy(call, mean, 0.9 * std)",
    "the same noise in every round": "still = call._replace(address=0 * call.address); "
    "return super()._noisy(still, mean, std)",
    OF_OTHERS: "first = std[:1].expand(len(std), *std.shape[1:]); "
    "return super()._noisy(call, mean, first)",
    "a normaliser in which neighbours differ": "values = call.values.checked(); found = super()."
    "_noisy(call, mean, std); there = (values.abs().sum(2) > 0).sum(1, keepdim=True); "
    "return found - values.mean(1) + values.sum(1) / there.clamp(min=1)",
}
MODEL = """
from dpfl_cli.config.component import component
from dpfl_cli.models.linear import LinearRegression, LinearRegressionSettings
from dpfl_cli.privacy.client_values import opened
from dpfl_cli.privacy.record_bounds import record_mean


@component("model", "faulty", revision=1, settings=LinearRegressionSettings)
class Faulty(LinearRegression):
    {BODY}
"""
MODEL_FAULTS = {
    "gradients per record that are not clipped": (
        "sensitivity",
        ("algorithm=fedavg_record", "dp=record"),
        "def clipped_gradient(self, parameters, clip_norm, batch=None):\n"
        "        mean = self.gradient(parameters)\n"
        "        return record_mean(mean, clip_norm, self.divisors(batch))"),
    "clients that meet": (
        "influence",
        ("algorithm=fedavg", "dp=ldp"),
        "def local_descent(self, *given):\n        found = opened(super().local_descent(*given))\n"
        "        return found - found.mean(dim=1, keepdim=True)"),
}  # fmt: skip


def failed_checks(
    source: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str
) -> set[str]:
    """The checks that `dpfl check` says a file fails."""
    monkeypatch.setenv("DPFL_OUTPUTS", str(folder / "outputs"))
    monkeypatch.setenv(ENVIRONMENT, "")
    path = folder / "faulty.py"
    path.write_text(source)
    declared = re.search(r'component\("(\w+)"', source)
    group = declared[1] if declared else "algorithm"
    try:
        code = main(["check", str(path), *words, "--quiet"])
    finally:
        component_module._registry[group].pop("faulty", None)
    (noted,) = (folder / "outputs" / "checks").iterdir()
    rows = [row for way in json.loads(noted.read_text()).values() for row in way]
    assert (code == 0) == passed(rows)
    return {row["check"] for row in rows if row["result"] == "FAIL"}


def method(**parts: str) -> str:
    source = METHOD
    for name in ("MORE_RELEASES", "BEFORE", "AFTER", "CLIENTS"):
        default = {"MORE_RELEASES": "", "CLIENTS": "{}"}.get(name, "pass")
        source = source.replace("{" + name + "}", parts.get(name, default))
    return source


@pytest.mark.parametrize("what", METHOD_FAULTS)
def test_a_faulty_method_is_told_by_the_right_check(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_, parts = METHOD_FAULTS[what]
    assert check_ in failed_checks(method(**parts), tmp_path, monkeypatch)


def test_what_an_error_kept_from_being_looked_at_is_not_said_to_have_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = method(BEFORE=f"assert {RAW}.abs().amax() < 1e8")
    assert failed_checks(source, tmp_path, monkeypatch) == {"influence"}
    shown = capsys.readouterr().out
    assert shown.count("not reached") == 4
    assert " pass" not in shown


def test_a_mechanism_without_a_level_is_checked_at_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise that no default says how strong it is would be refused, and nothing checked."""
    body = MECHANISM_FAULTS["less noise than is priced"]
    source = MECHANISM.replace("{BODY}", body).replace("| None = 2.5", "| None = None")
    assert "noise" in failed_checks(source, tmp_path, monkeypatch)


MEETING = {"BEFORE": "own = opened(update.values); other = own + 0.1 * own.sum(1, keepdim=True); "
           "update = clip(of_cohort(client_values(other), update.cohort), "
           "torch.ones(len(model)).double())"}  # fmt: skip


def drawn_method(**parts: str) -> str:
    """For rounds in which clients are drawn."""
    given = "from dpfl_cli.privacy.client_values import client_values, of_cohort\n"
    return given + method(**parts).replace('unit="client"', 'unit="client", away="stateless"')


def test_clients_of_a_cohort_do_not_meet_unnoticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["participation=poisson"]
    assert "influence" in failed_checks(drawn_method(**MEETING), tmp_path, monkeypatch, *words)


@pytest.mark.parametrize("law", ["poisson", "fixed"])
def test_an_honest_method_passes_where_clients_are_drawn(
    law: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [f"participation={law}", "dp.noise=secret"]
    own = drawn_method(BEFORE=f"law = {law!r}")  # a file is loaded once
    assert failed_checks(own, tmp_path, monkeypatch, *words) == set()


@pytest.mark.parametrize(
    ("relation", "told"), [("replace_one", set()), ("zero_out", {"sensitivity"})]
)
def test_a_record_may_be_absent(
    relation: str, told: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half the sensitivity is found there too, where neighbours move half as far."""
    half = MODEL.replace(
        "{BODY}",
        "def clipped_gradient(self, *given):\n        found = super().clipped_gradient(*given)\n"
        "        object.__setattr__(found, 'zero_out', found.zero_out / 2)\n"
        f"        return found  # under {relation}: a file is loaded once",
    )
    words = ["algorithm=fedavg_record", ONE, "dp=record", f"dp.relation={relation}"]
    assert failed_checks(half, tmp_path, monkeypatch, *words) == told


def test_a_method_may_make_a_release_that_nobody_is_charged_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second round, by its public schedule: what nobody receives need have no noise."""
    every = method(BEFORE="due = at.mechanism.due('update', at.number)")
    every = every.replace('ReleaseSpec("update"', 'ReleaseSpec("update", made=MADE(run.rounds)')
    every = re.sub(
        r'at\.release\("update", (\w+)\)', r'at.release("update", \1, charged=due)', every
    )
    assert "charged=due" in every
    made = "import numpy as np\nMADE = lambda rounds: np.arange(rounds) % 2 == 0\n"
    assert failed_checks(made + every, tmp_path, monkeypatch) == set()


def test_a_client_who_never_takes_part_shows_nothing() -> None:
    words = [*COHORTS[:2], "participation=poisson", "dataset=synthetic", "dataset.clients=5000"]
    (case,) = cases(lookup("algorithm", "fedavg"), words)
    (row,) = check(case, [])
    assert row["result"] == "refused"
    assert "takes part in none of 3 rounds" in row["why"]


@pytest.mark.parametrize("what", MECHANISM_FAULTS)
def test_a_faulty_mechanism_is_told(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = MECHANISM.replace("{BODY}", MECHANISM_FAULTS[what])
    told = {"noise"} | ({"influence"} if what == OF_OTHERS else set())
    assert failed_checks(source, tmp_path, monkeypatch) == told


@pytest.mark.parametrize("what", MODEL_FAULTS)
def test_a_faulty_model_is_told(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_, words, body = MODEL_FAULTS[what]
    assert check_ in failed_checks(MODEL.replace("{BODY}", body), tmp_path, monkeypatch, *words)


def test_of_the_cases_of_one_check_those_that_failed_are_noted_last(monkeypatch: Any) -> None:
    """So that no case that passes covers up one that an error ended."""
    found = [[{"result": result}] for result in ("FAIL", "pass", "FAIL", "pass")]
    noted: list[Any] = []
    monkeypatch.setattr(
        checking,
        "check",
        lambda _, notes: notes.extend((None, "algorithm", one) for one in found) or [],
    )
    monkeypatch.setattr(checking, "note_check", lambda *note: noted.append(note[2][0]["result"]))
    checking.checked("fedavg", ["dp=cdp"])
    assert noted == sorted(noted, reverse=True)
    assert "FAIL" in noted


def test_an_honest_method_passes_and_is_remembered_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert failed_checks(method(), tmp_path, monkeypatch) == set()


def of_the_guide(folder: Path) -> dict[str, Path]:
    """The mechanisms that docs/own-mechanism.md shows: name -> file."""
    guide = (Path(__file__).parents[2] / "docs" / "own-mechanism.md").read_text()
    files = {}
    for name, code in re.findall(r"```python\n# (\w+)\.py\n(.*?)```", guide, re.DOTALL):
        files[name] = folder / f"{name}.py"
        files[name].write_text(code)
    return files


TRUSTS = {"laplace": "ldp", "central_laplace": "cdp"}  # of the mechanisms of the guide


@pytest.mark.usefixtures("own_components")
@pytest.mark.parametrize("name", TRUSTS)
def test_noise_that_is_not_gaussian_is_not_said_to_have_passed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path))
    file = of_the_guide(tmp_path)[name]
    words = ["mechanism.epsilon=2", "accountant=pure"]
    used = ["algorithm=fedavg", f"mechanism={name}", f"dp={TRUSTS[name]}", "dp.mode=paper"]
    assert main(["check", str(file), *words, "--quiet"]) == 0
    plan = make_plan(compose_config([*used, *words]))
    assert "passed, but noise not measured" in capsys.readouterr().out
    said = str(privacy_report(plan, plan.ledger())["guarantee"])
    assert said.endswith(f"checked, but for its noise, which is not measured: dpfl check {file}")


@pytest.mark.usefixtures("own_components")
@pytest.mark.parametrize(("name", "noisy"), [("laplace", "values"), ("central_laplace", "mean")])
def test_a_release_without_noise_is_told_whatever_its_law(
    name: str, noisy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path))
    file = of_the_guide(tmp_path)[name]
    text = file.read_text()
    assert text.count(f"noisy = {noisy} + ") == 1
    file.write_text(text.replace(f"noisy = {noisy} + ", f"noisy = {noisy} + 0 * "))
    rows = checked(str(file), ["mechanism.epsilon=2", "accountant=pure", "algorithm=fedavg"])
    (noise,) = [row["why"] for row in rows if row["result"] == "FAIL"]
    assert "'update' comes out as it went in, without noise: its epsilon is infinite" in noise


def test_a_release_whose_noise_a_method_multiplies_by_zero_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = method().replace('ReleaseSpec("update")', 'ReleaseSpec("update", multiplier=NONE)')
    source = source.replace("class Own", "def NONE(z):\n    return 0 * z\n\n\nclass Own")
    assert failed_checks(source, tmp_path, monkeypatch) == {"noise"}


@pytest.mark.usefixtures("own_components")
@pytest.mark.parametrize(
    ("name", "parts", "drawn"),
    [
        ("laplace", 50, []),
        ("central_laplace", 50**2, []),
        ("central_laplace", 10**2, ["participation=fixed", "participation.cohort=10"]),
    ],
)
def test_the_noise_of_the_guide_is_what_it_says(
    name: str, parts: int, drawn: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mean of M clients that send zeros: of variance 2 (sqrt(d) S / epsilon)^2 / M where each
    adds noise, and of 1 / M of that where the server does, which then is a Laplace variable.
    """
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path))
    words = ["algorithm=fedavg", "algorithm.local_lr=1e-12", "algorithm.clip_norm=0.5", "rounds=1"]
    words += ["dp.mode=paper", "accountant=pure", "mechanism.epsilon=2"]
    words += ["evaluation.final_window=1", "dataset.dimension=20000", "dataset.clients=50"]
    words += ["--plugin", str(of_the_guide(tmp_path)[name]), f"mechanism={name}"]
    assert main(["run", "--quiet", f"dp={TRUSTS[name]}", *drawn, *words]) == 0
    (model,) = tmp_path.glob("runs/*/model.npz")
    noise = np.load(model)["model"]
    assert noise.var() == pytest.approx(2 * 20000 / 4 / parts, rel=0.08)  # 5 standard errors
    if name == "central_laplace":  # of a normal variable it would be 1.13 times as much
        assert abs(noise).mean() == pytest.approx((20000 / 4 / parts) ** 0.5, rel=0.035)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["algorithm.batch_size=10", "dp=cdp"], 0, "fedavg: passed\n"),
        (["algorithm.local_steps=0", "dp=cdp"], 2, "fedavg: refused, and so not checked\n"),
    ],
)
def test_a_check_deals_enough_records_and_a_refusal_is_no_fault(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "fedavg", *words, "--quiet"]) == code
    assert capsys.readouterr().out.endswith(said)


def test_a_guarantee_says_whether_its_method_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path))
    file = str(Path(__file__).parents[1] / "cli" / "my_method.py")
    load_plugins([file])
    words = ["dataset.clients=8", "dataset.dimension=4", "rounds=2", "algorithm.local_steps=3"]

    def guarantee(*changed: str) -> str:
        plan = make_plan(compose_config(["algorithm=fedmomentum", "dp=cdp", *words, *changed]))
        return str(privacy_report(plan, plan.ledger())["guarantee"])

    assert f"not checked: dpfl check {file}" in guarantee()
    plan = make_plan(compose_config(["algorithm=fedmomentum", "dp=cdp", *words]))
    ended = [("marks", "FAIL"), ("noise", "not reached")]  # by an error: of other data, say
    failed = f"{CLAIMED}: FAILED its check"
    for rows, said in (
        (ended, failed),
        ([("marks", "pass")], "trust: proved"),
        ([("marks", "FAIL")], failed),
        ([("marks", "pass")], failed),  # which no other trial takes back
    ):
        found = [{"check": check, "result": result} for check, result in rows]
        note_check(plan, "algorithm", found)
        assert "not checked" not in guarantee("algorithm.local_lr=0.3", "seed=1")
        assert said in guarantee()
    other = f"not checked with these settings: dpfl check {file}"
    assert f"{other} algorithm.local_steps=4" in guarantee("algorithm.local_steps=4")
    assert other in guarantee("dp=ldp")
    drawn = ["participation=poisson", "participation.cohort=3"]
    monkeypatch.setattr(lookup("algorithm", "fedmomentum").target, "away", "stateless")
    assert f"{other} {FEW} participation=poisson" in guarantee(*drawn)
    known = make_plan(compose_config(["algorithm=fedavg", "dp=cdp", *words]))
    assert "check" not in privacy_report(known, known.ledger())["guarantee"]


@pytest.mark.parametrize(
    ("dtype", "excess", "within"),
    [
        (torch.float32, 1e-3, True),  # what float32 rounds beside a mean of norm 1
        (torch.float32, 1e-2, False),
        (torch.float64, 1e-5, False),
    ],
)
def test_rounding_is_no_distance(dtype: torch.dtype, excess: float, within: bool) -> None:
    """Of a mean over so many records that one of them moves it by 1e-4."""
    sensitivity = torch.full((2, 1), 1e-4, dtype=torch.float64)
    values = torch.tensor([1.0, 1.0 - 1e-4 * (1 + excess)], dtype=torch.float64).to(dtype)
    mask, noise = np.ones(2, bool), torch.zeros(2, 1, 1)
    one = Contribution("step", values.reshape(2, 1, 1), sensitivity, mask, None, noise)
    play: Any = object.__new__(Play)
    play.contributions = [one]
    setup, dp = SimpleNamespace(relation="replace_one"), SimpleNamespace(unit="record")
    play.stack = SimpleNamespace(members=[0, 1], plan=SimpleNamespace(setup=setup, dp=dp))
    assert bool((play.distances() <= 1).all()) is within


@pytest.mark.parametrize(
    ("noise", "why"),
    [
        ("as priced", ""),
        ("one number for all coordinates", "times the variance"),
        ("the same in both halves", "times the variance"),
        ("uniform", "is not Gaussian"),
    ],
)
def test_noise_that_only_looks_as_priced_is_found(
    noise: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[k, R, M, d] draws whose variance is right."""
    generator = np.random.default_rng(0)
    draws = generator.standard_normal((2, 20, 3, 10))
    if noise == "one number for all coordinates":
        draws = draws[..., :1].repeat(10, axis=-1)
    elif noise == "the same in both halves":
        draws[..., 5:] = draws[..., :5]
    elif noise == "uniform":
        draws = generator.uniform(-(3**0.5), 3**0.5, draws.shape)
    made = SimpleNamespace(contributions=[])
    monkeypatch.setattr(conformance, "Play", lambda *_, **__: made)
    found = {"step": torch.from_numpy(draws)}
    monkeypatch.setattr(conformance, "priced_noise", lambda play: found)
    nothing: Any = None
    kit = Kit([], nothing)
    kit._noise()
    assert bool(kit.faults["noise"]) == bool(why)
    assert why in "".join(kit.faults["noise"])


@pytest.mark.parametrize(
    "words",
    [
        ["algorithm=fedavg", "model=mlp", "algorithm.local_lr=20", "model.hidden=[30]"],
        ["algorithm=fedfc"],
        ["algorithm=fednew", "algorithm.curvature=covariance"],
    ],
    ids=lambda words: words[0],
)
def test_how_many_records_a_client_holds_rounds_nobody_elses_sums(words: list[str]) -> None:
    """Rows of zeros change how a sum is rounded; local steps may make much of that."""
    shape = ["dataset=synthetic_alpha_beta", "dataset.clients=5", "rounds=1", "dp=cdp"]
    plan = make_plan(compose_config([*shape, *words]))
    federation = federation_of(plan)
    features, targets = held(federation)
    others = [
        with_records(federation, (features[some], targets[some]))
        for some in (np.arange(number) % len(targets) for number in (401, 404, 350))
    ]
    for one in Play([plan] * 4, [federation, *others], shown=False).contributions:
        assert torch.equal(one.values[:, 1:], one.values[:1, 1:].expand_as(one.values[:, 1:]))
