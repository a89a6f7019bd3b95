"""Composition: the menu composes, and what is wrong is said in one line with the nearest right
name.
"""

from __future__ import annotations

import itertools
import shutil

import pytest
import yaml
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

from dpfl_cli.cli.list import GROUPS, describe, line_of, summary_of
from dpfl_cli.config.component import SEED, components, lookup
from dpfl_cli.config.compose import (
    VERSION_BASE,
    compose_config,
    compose_jobs,
    explained,
    options_changed,
    plain,
    register_resolvers,
)
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.config.identity import canonical_json, content_id
from dpfl_cli.config.options import documented, option_files
from dpfl_cli.config.own_files import values_of
from dpfl_cli.config.paths import conf_dir
from dpfl_cli.simulation.plan import load_components, make_plan, with_values
from dpfl_cli.simulation.run_plan import CHOSEN

SMALL = ["dataset.clients=12", "dataset.dimension=5", "rounds=3"]


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        make_plan(compose_config([*SMALL, *overrides]))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["algorithm=fedxp"], "algorithm=fedxp: did you mean fedexp?"),
        (["dp=ldpp"], "did you mean ldp"),
        (
            ["algorithm.clipnorm=1"],
            "algorithm.clipnorm: unknown option; did you mean algorithm.clip_norm?",
        ),
        (["dp.eps=4"], "dp.eps: unknown option; did you mean dp.epsilon?"),
        (["roundss=3"], "roundss: unknown option; did you mean rounds?"),
        (["clip_norm=1"], "clip_norm: unknown option; did you mean algorithm.clip_norm?"),
        (["name=x"], "name: unknown option; choose from: accountant"),
        (["relation=zero_out"], "relation: unknown option; did you mean dp.relation?"),
        (["+roundss=3"], "roundss: unknown option; did you mean rounds?"),
        (["rounds=many"], "rounds='many'"),
        (["rounds=2.5"], "rounds=2.5"),
        (["seed=-1"], "seed=-1"),
        (["algorithm.clip_norm=-1"], "algorithm.clip_norm=-1"),
        (["algorithm.local_lr=nan"], "algorithm.local_lr=nan"),
        (["mechanism.noise_multiplier=0"], "mechanism.noise_multiplier=0"),
        (["dp.delta=0"], "dp.delta=0"),
        (["dp.epsilon=-3"], "dp.epsilon=-3"),
        (["dp=cdp", "mechanism=privunit"], "write mechanism=central_gaussian"),
        (["dp=ldp", "mechanism=privunit"], "accountant=gdp cannot price this run"),
        (["dp=none", "dp.epsilon=3"], "adds no noise to calibrate"),
        (["dp=ldp", "dp.epsilon=3", "mechanism.noise_multiplier=1"], "both given"),
        (["algorithm=fedexp_naive", "dp=cdp"], "naive"),
        (["dp=ldp", "algorithm.clip_norm=null"], "clip"),
        (["dp=ldp", "dp.relation=add_or_remove"], "write dp.relation=zero_out"),
        (
            ["dp=secure_aggregation", "dp.relation=add_or_remove", "algorithm=fedavg"],
            "share of the noise",
        ),
        (["dp.convention=fedxp"], "dp.convention=fedxp: no such convention; did you mean fedexp?"),
        (["dp.trust=locl"], "dp.trust='locl'"),
        (["dp.convention=???"], "dp.convention: it has no default; write dp.convention=VALUE"),
        (["rounds"], "rounds: not an override"),
        (["seed.x=1"], "seed.x: unknown option; nothing is below a value"),
        (["+rounds=3"], "+rounds: it is there already; write rounds=VALUE"),
        (["+algorithm=fedavg"], "algorithm: chosen twice; write algorithm=NAME once"),
        (["+hydra/launcher=basic"], "chosen twice; write it once, without + if dpfl has one"),
        (["~seeds"], "~seeds: there is no such option to drop"),
        (["~rounds=5"], "~rounds: it has another value; set it by rounds=VALUE"),
        (["~experiment=x"], "~experiment=x: there is no such choice to drop"),
        (
            ["~evaluation.every"],
            "evaluation.every: missing; give it a value, as evaluation.every=…",
        ),
        (["~dp"], "~dp: every run has one; choose another, as dp=NAME"),
        (["~launcher"], "~launcher: every run has one; set what is in it"),
    ],
)
def test_bad_configs_are_refused_in_one_line(overrides: list[str], expected: str) -> None:
    assert expected in refused(*overrides)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (f"seed={'9' * 5000}", "999...: Exceeds the limit"),
        ("seed=range(0,1,0)", "must not be zero"),
        ("seed=range(0,3),1", "seed=range(0,3),1: "),
        ("seed=1,2,1", "a value is listed twice"),
        ("dp=null", "`dpfl list dp` shows them"),
        ("algorithm@x=1", "`dpfl list algorithm` shows them"),
        ("dp=ldp,null", "`dpfl list dp` shows them"),
        ("dp.name=foo", "as dp=NAME"),
        ("scale=", "empty; give it a value, or null"),
        ("dataset.path=''", "empty; give it a value, or null"),
        ("--seed=3", "--seed=3: not an override; write key=value"),
        ("hydra.run.dir=x", "set DPFL_OUTPUTS"),
        ("hydra.sweep.dir=x", "set DPFL_OUTPUTS"),
        ("hydra.job.chdir=true", "set DPFL_OUTPUTS"),
        ("dataset.clients=1000000000001", "more than 1000000000, which no machine holds"),
    ],
)
def test_what_hydra_would_take_or_break_at_is_refused(word: str, expected: str) -> None:
    assert expected in refused(word)


def test_a_seed_may_be_any_number_and_is_declared_as_one() -> None:
    small = [
        "dataset.clients=12",
        "dataset.dimension=5",
        "partitioner=iid",
        "partitioner.clients=2",
    ]
    assert make_plan(compose_config([*small, "partitioner.seed=5000000000"]))
    for group in CHOSEN:
        for one in components(group).values():
            for name, field in one.settings.model_fields.items():
                assert ("seed" in name) == (SEED in field.metadata), (one.name, name)


def test_a_key_that_is_twice_in_a_file_is_refused(tmp_path, monkeypatch) -> None:
    shutil.copytree(conf_dir(), tmp_path / "conf")
    with (tmp_path / "conf" / "scale" / "smoke.yaml").open("a") as file:
        file.write("rounds: 4\n")
    monkeypatch.setattr("dpfl_cli.config.compose.conf_dir", lambda: tmp_path / "conf")
    options_changed()
    assert "found duplicate key rounds" in refused("scale=smoke")


def test_defaults_may_follow_from_other_choices(tmp_path) -> None:
    """As those of no file of ours do."""
    (tmp_path / "experiment").mkdir()
    own = "# @package _global_\ndefaults: [{/scale@spare: '${experiment}'}]\n"
    for name, rounds in (("smoke", 3), ("quick", 25)):
        (tmp_path / "experiment" / f"{name}.yaml").write_text(own)
        words = [f"hydra.searchpath=[file://{tmp_path}]", f"+experiment={name}"]
        assert compose_config(words)["spare"] == {"rounds": rounds}


def test_every_option_of_every_group_has_a_line_and_documented_keys() -> None:
    for group in GROUPS:
        assert option_files(group), group
        for path in option_files(group):
            assert summary_of(path), f"{path.name} does not say what it is"
            for key, _, comment in documented(path):
                assert comment or key.endswith("name"), f"{path.name}: {key} is not documented"
    for key, _, comment in documented(conf_dir() / "config.yaml"):
        assert comment or key.startswith("hydra"), key


def test_config_files_and_settings_have_the_same_fields() -> None:
    load_components()
    for group in ("algorithm", "mechanism", "accountant", "dataset", "partitioner", "model"):
        known = {  # benchmarks and tests register some of their own
            name: one
            for name, one in components(group).items()
            if one.target.__module__.startswith("dpfl_cli.")
        }
        for path in option_files(group):
            rows = {
                key.removeprefix(f"{group}."): value
                for key, value, _ in documented(path)
                if not key.startswith("hints.")
            }
            name = rows.pop("name")
            assert set(rows) == set(known[name].settings.model_fields), path
        assert {
            row
            for path in option_files(group)
            for key, row, _ in documented(path)
            if key in ("name", f"{group}.name")
        } == set(known)


def test_comments_go_on_in_the_lines_below(tmp_path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text(
        "# @package _global_\n# A method\n"
        "one: 1  # a comment,\n        # and its end\n# of what follows\n"
        "two:\n  three: 3\n    # below its key\n  # of four\n  four: [4]  # last\n"
    )
    assert list(documented(path)) == [
        ("one", "1", "a comment, and its end"),
        ("two.three", "3", "below its key"),
        ("two.four", "[4]", "last"),
    ]


def test_what_aliases_repeat_is_counted() -> None:
    assert values_of(yaml.compose("a: &a [1, 2]\nb: [*a, *a]\n")) == 13


def test_every_method_composes_with_every_trust_model_it_supports() -> None:
    load_components()
    for algorithm, dp in itertools.product(option_files("algorithm"), option_files("dp")):
        own = ["algorithm.strong_convexity=0.1"] if algorithm.stem == "primal_dual" else []
        own += (
            ["algorithm.local_steps=1"]
            if algorithm.stem in ("scaffnew", "fedavg_scheduled")
            else []
        )  # a release a round
        config = compose_config([*SMALL, f"algorithm={algorithm.stem}", f"dp={dp.stem}", *own])
        method, dp_settings = lookup("algorithm", config["algorithm"]["name"]).target, config["dp"]
        refused = dp_settings["trust"] not in method.trusts or (
            dp_settings["unit"] != method.unit and dp_settings["trust"] != "none"
        )
        strange = algorithm.stem == "fedexp_naive" and dp.stem in ("cdp", "none")
        strange |= (
            algorithm.stem == "fedfc" and dp.stem == "ldp_privunit"
        )  # a covariance is no vector of the model's size
        if refused or strange:
            with pytest.raises(ConfigError, match=r"(write|is not defined under|needs) "):
                make_plan(config)
            continue
        assert make_plan(config).ledger().releases >= 3


@pytest.mark.parametrize("algorithm", ["fedavg_record", "scaffold_record", "isrl_dp"])
@pytest.mark.parametrize("dp", ["cdp", "secure_aggregation"])
def test_record_level_methods_run_under_a_server_that_sees_sums(algorithm: str, dp: str) -> None:
    words = [*SMALL, f"algorithm={algorithm}", f"dp={dp}"]
    steps = [] if algorithm == "isrl_dp" else ["algorithm.local_steps=1"]
    plan = make_plan(compose_config([*words, "dp.unit=record", *steps]))
    assert plan.ledger().entries[0].unit == "record"
    with pytest.raises(
        ConfigError,
        match=r"protects a record, not a client .*; write dp\.unit=record, or dp=record",
    ):
        make_plan(compose_config(words))
    if steps:
        with pytest.raises(
            ConfigError,
            match=r"local_steps=2 under dp\.trust=central|is not proved with these settings",
        ):
            make_plan(compose_config([*words, "dp.unit=record", "algorithm.local_steps=2"]))


def test_identity_depends_on_what_changes_numbers_and_on_nothing_else() -> None:
    base = compose_config(SMALL)
    plan = make_plan(base)
    same = {
        "runtime.device": "cpu",
        "runtime.checkpoint_every": 1.0,
        "launcher.memory": 10**6,
        "runtime.force": True,
    }
    assert make_plan(with_values(base, same)).id == plan.id
    for key, value in {
        "seed": 1,
        "rounds": 4,
        "algorithm.clip_norm": 0.5,
        "mechanism.noise_multiplier": 0.5,
        "dp.delta": 1e-6,
        "dataset.dimension": 6,
        "evaluation.average_last": 2,
    }.items():
        assert make_plan(with_values(base, {key: value})).id != plan.id, key


def test_unknown_keys_in_changes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"did you mean algorithm\.clip_norm"):
        with_values(compose_config(SMALL), {"algorithm.clip_nrm": 1.0})


def test_an_id_is_of_values_not_of_their_order() -> None:
    values = {"a": {"x": 1, "y": None}, "b": [1, 2.0], "c": "1"}
    turned = {"c": "1", "b": [1, 2.0], "a": {"y": None, "x": 1}}
    assert content_id(values) == content_id(turned)
    assert len(content_id(values)) == 12
    others = ({**values, "c": 1}, {**values, "b": [2.0, 1]}, {**values, "a": {"x": 1}}, {})
    assert len({canonical_json(one) for one in (values, *others)}) == 5


LIBSVM = [
    "dataset=libsvm",
    "dataset.path=tests/data/small.libsvm",
    "dp=record",
    "partitioner.clients=4",
]


def test_a_penalty_is_for_methods_with_a_proximal_step() -> None:
    words = [*LIBSVM, "model.penalty=l1_box"]
    assert (
        make_plan(compose_config([*words, "algorithm=primal_dual"])).model.settings.penalty
        == "l1_box"
    )
    with pytest.raises(
        ConfigError,
        match=r"model\.penalty=l1_box: algorithm=fedavg_record .*; write algorithm=primal_dual",
    ):
        make_plan(compose_config([*words, "algorithm=fedavg_record"]))


def test_a_step_that_diverges_whatever_the_data_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.step"):
        make_plan(compose_config([*LIBSVM, "algorithm=primal_dual", "algorithm.step=1.5"]))


@pytest.mark.parametrize("algorithm", [path.stem for path in option_files("algorithm")])
def test_every_method_lists_its_releases(
    algorithm: str, capsys: pytest.CaptureFixture[str]
) -> None:
    describe("algorithm", algorithm)
    releases = capsys.readouterr().out.split("releases:")[1]
    often = (
        "vector, 1 in some rounds, by a public schedule)"
        if algorithm in ("scaffnew", "fedavg_scheduled")
        else "per round)"
    )
    assert often in releases
    assert "input should" not in releases


def test_an_option_that_sets_another_ones_component_is_listed_as_its_preset() -> None:
    found = {path.stem: line_of("algorithm", path) for path in option_files("algorithm")}
    presets = {"fedgd": "fedavg", "fedgd_record": "fedavg_record", "fedexp_naive": "fedexp"}
    for name, of in presets.items():
        assert found[name].endswith(f" [preset of algorithm={of}]")
    # of softmax, the component bears a name of no option
    for group, name in (("algorithm", "fedavg"), ("model", "softmax"), ("dp", "cdp")):
        assert "preset of" not in line_of(group, conf_dir() / group / f"{name}.yaml")


@pytest.mark.parametrize("algorithm", ["fedavg_record", "scaffold_record"])
def test_batches_are_refused_where_a_record_may_be_gone(algorithm):
    """Another record takes its place in the batch: that moves a mean by 2C / b, where add_or_remove
    states C / b.
    """
    words = [
        f"algorithm={algorithm}",
        "dp=record",
        "dataset.records_per_client=4",
        "algorithm.batch_size=2",
        "rounds=2",
    ]
    for sampling in ("without_replacement", "epoch_permutation"):
        chosen = [*words, f"algorithm.sampling={sampling}", "algorithm.local_steps=2"]
        with pytest.raises(ConfigError, match="holds another one in its place"):
            make_plan(compose_config([*chosen, "dp.relation=add_or_remove"]))
        for relation in ("replace_one", "zero_out"):
            make_plan(compose_config([*chosen, f"dp.relation={relation}"]))


def test_a_damped_solve_without_damping_is_refused():
    words = [
        "algorithm=fednew_record",
        "dp=secure_aggregation",
        "dp.unit=record",
        "algorithm.penalty=0",
    ]
    with pytest.raises(ConfigError, match="would lose its digits"):
        make_plan(compose_config([*words, "algorithm.damping=1e-7"]))
    make_plan(compose_config([*words, "algorithm.damping=1e-2"]))


@pytest.mark.parametrize(
    "jobs",
    [
        [
            ["algorithm=fedexp", "seed=1"],
            ["algorithm=fedexp", "seed=2"],
            ["seed=3", "algorithm=fedavg"],
        ],
        # defaults that follow from other values, and from one another
        [
            ["dp=cdp", "dp.epsilon=2.0"],
            ["dp=cdp", "dp.epsilon=null"],
            ["dp=ldp", "dp.epsilon=2.0"],
            ["dp.trust=central"],
        ],
        [
            ["hints.local_steps=3", "dataset=mnist"],
            ["algorithm.local_steps=5"],
            ["algorithm.local_steps='${hints.clients}'"],
        ],
        # what Hydra does in the order of the words, and what is no single value
        [
            ["++launcher.memory=1", "launcher.memory=2"],
            ["launcher.memory=2", "++launcher.memory=1"],
            ["~rounds"],
            ["+new=1"],
        ],
        [
            ["runtime={force: true}"],
            ["runtime.force=true"],
            ["dataset.name=a b"],
            ["algorithm={clip_norm: 2}"],
            ["rounds=[1,2]"],
        ],
    ],
)
def test_the_jobs_of_a_sweep_compose_as_one_by_one(jobs):
    register_resolvers()
    with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE, job_name="dpfl"):
        loader = GlobalHydra.instance().config_loader()
        sweep = loader.load_configuration("config", ["hydra/launcher=joblib"], RunMode.MULTIRUN)
        together = compose_jobs(loader, sweep, [*jobs, *jobs])
        one_by_one = [plain(loader.load_sweep_config(sweep, job)) for job in jobs]
        options_changed()
        assert compose_config(["rounds=3"])["rounds"] == 3  # also while Hydra is at work
        assert repr(together) == repr([*one_by_one, *one_by_one])


@pytest.mark.parametrize(
    "word",
    ["algorithm=fedxp", "algorithm.clip_nrm=1", "seed.x=1", "~sed", "+seed=1", "seed@x=1", "a b"],
)
def test_a_wrong_job_of_a_sweep_says_what_hydra_says(word):
    with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE, job_name="dpfl"):
        loader = GlobalHydra.instance().config_loader()
        sweep = loader.load_configuration("config", [], RunMode.MULTIRUN)
        said = []
        for compose in (
            lambda job: compose_jobs(loader, sweep, [job]),
            lambda job: plain(loader.load_sweep_config(sweep, job)),
        ):
            with pytest.raises(Exception) as caught:  # noqa: PT011
                compose(["rounds=3", word])
            said.append(str(explained(caught.value)))
        assert said[0] == said[1]


def test_a_scale_wins_over_a_presets_rounds_and_the_command_over_both() -> None:
    """A preset says how many rounds a paper has; smoke is three of them whatever it says."""

    def rounds(*overrides: str) -> int:
        return int(compose_config(list(overrides))["rounds"])

    for preset in sorted((conf_dir() / "experiment").glob("*/*.yaml")):
        name = f"+experiment={preset.parent.name}/{preset.stem}"
        assert rounds(name, "scale=smoke") == 3
        assert rounds(name, "scale=smoke", "rounds=7") == 7
    assert rounds("scale=smoke", "+experiment=adaptdp/bank") == 3
    assert rounds("+experiment=adaptdp/bank") == 100
    assert rounds() == 50


def test_an_option_without_a_default_is_named_with_what_to_write() -> None:
    config = OmegaConf.create({"algorithm": {"clip_norm": "???"}})
    with pytest.raises(ConfigError, match=r"algorithm.clip_norm: it has no default; write "):
        plain(config)
