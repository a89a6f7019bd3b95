"""Composition: the menu composes, and what is wrong is said in one line with the nearest right name."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import ClassVar

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from hypothesis import given
from hypothesis import strategies as st

from dpfl_cli.cli.listing import GROUPS, describe, documented, option_files, preset_of
from dpfl_cli.config.component import Settings, components, lookup
from dpfl_cli.config.compose import CONFIG_ERRORS, VERSION_BASE, compose_config, compose_jobs, plain, register_resolvers
from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.config.identity import canonical_json, content_id
from dpfl_cli.config.paths import conf_dir
from dpfl_cli.simulation.plan import load_components, make_plan, with_values

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
        (["algorithm.clipnorm=1"], "algorithm.clipnorm: unknown option; did you mean clip_norm?"),
        (["+algorithm.clipnorm=1"], "algorithm.clipnorm: unknown option; did you mean clip_norm?"),
        (["roundss=3"], "roundss: unknown option; did you mean rounds?"),
        (["+roundss=3"], "roundss: unknown option; did you mean rounds?"),
        (["rounds=many"], "rounds='many'"),
        (["rounds=0"], "rounds=0"),
        (["rounds=2.5"], "rounds=2.5"),
        (["seed=-1"], "seed=-1"),
        (["algorithm.clip_norm=-1"], "algorithm.clip_norm=-1"),
        (["algorithm.clip_norm=abc"], "algorithm.clip_norm='abc'"),
        (["algorithm.local_lr=nan"], "algorithm.local_lr=nan"),
        (["mechanism.noise_multiplier=0"], "mechanism.noise_multiplier=0"),
        (["dp.delta=0"], "dp.delta=0"),
        (["dp.delta=1"], "dp.delta=1"),
        (["dp.epsilon=-3"], "dp.epsilon=-3"),
        (["dataset.clients=0"], "dataset.clients=0"),
        (["algorithm=fedavg", "algorithm.local_steps=0"], "algorithm.local_steps=0"),
        (["dp=cdp", "mechanism=privunit"], "write mechanism=central_gaussian"),
        (["dp=ldp", "mechanism=privunit"], "accountant=gdp cannot price this run"),
        (["dp=none", "dp.epsilon=3"], "adds no noise to calibrate"),
        (["dp=ldp", "dp.epsilon=3", "mechanism.noise_multiplier=1"], "both given"),
        (["algorithm=fedexp_naive", "dp=cdp"], "naive"),
        (["dp=ldp", "algorithm.clip_norm=null"], "clip"),
        (["dp.convention=fedxp"], "dp.convention=fedxp: no such convention; did you mean fedexp?"),
        (["dp.trust=locl"], "dp.trust='locl'"),
        (["rounds"], "rounds: not an override"),
    ],
)
def test_bad_configs_are_refused_in_one_line(overrides: list[str], expected: str) -> None:
    assert expected in refused(*overrides)


def test_every_option_of_every_group_has_a_line_and_documented_keys() -> None:
    for group in GROUPS:
        assert option_files(group), group
        for path in option_files(group):
            from dpfl_cli.cli.listing import summary_of

            assert summary_of(path), f"{path.name} does not say what it is"
            for key, _, comment in documented(path):
                assert comment or key.endswith("name"), f"{path.name}: {key} is not documented"


def test_config_files_and_settings_have_the_same_fields() -> None:
    load_components()
    for group in ("algorithm", "mechanism", "accountant", "dataset", "partitioner", "model"):
        known = components(group)
        for path in option_files(group):
            rows = {key.removeprefix(f"{group}."): value for key, value, _ in documented(path) if not key.startswith("hints.")}
            name = rows.pop("name")
            assert set(rows) == set(known[name].settings.model_fields), path
        assert {
            row for path in option_files(group) for key, row, _ in documented(path) if key in ("name", f"{group}.name")
        } == set(known)


def test_every_method_composes_with_every_trust_model_it_supports() -> None:
    load_components()
    for algorithm, dp in itertools.product(option_files("algorithm"), option_files("dp")):
        own = ["algorithm.strong_convexity=0.1"] if algorithm.stem == "primal_dual" else []
        own += ["algorithm.local_steps=1"] if algorithm.stem in ("scaffnew", "fedavg_scheduled") else []  # a release a round
        config = compose_config([*SMALL, f"algorithm={algorithm.stem}", f"dp={dp.stem}", *own])
        method, dp_settings = lookup("algorithm", config["algorithm"]["name"]).target, config["dp"]
        refused = dp_settings["trust"] not in method.trusts or (
            dp_settings["unit"] not in method.units and dp_settings["trust"] != "none"
        )
        strange = algorithm.stem == "fedexp_naive" and dp.stem in ("cdp", "none")
        strange |= algorithm.stem == "fedfc" and dp.stem == "ldp_privunit"  # a covariance is no vector of the model's size
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
    with pytest.raises(ConfigError, match=r"protects a record, not a client .*; write dp\.unit=record, or dp=record"):
        make_plan(compose_config(words))
    if steps:
        with pytest.raises(ConfigError, match=r"local_steps=2 under dp\.trust=central|is not proved with these settings"):
            make_plan(compose_config([*words, "dp.unit=record", "algorithm.local_steps=2"]))


def test_root_of_the_menu_is_documented() -> None:
    for key, _, comment in documented(conf_dir() / "config.yaml"):
        assert comment or key.startswith("hydra"), key


def test_identity_depends_on_what_changes_numbers_and_on_nothing_else() -> None:
    base = compose_config(SMALL)
    plan = make_plan(base)
    same = {"runtime.device": "cpu", "runtime.checkpoint_every": 1.0, "launcher.memory": 10**6, "runtime.force": True}
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


def test_a_revised_value_of_an_option_renews_only_the_runs_that_use_it() -> None:
    class Revised(Settings):
        revised: ClassVar[Mapping[str, Mapping[str, int]]] = {"solver": {"cholesky": 2}}
        solver: str
        damping: float = 1.0

    assert Revised(solver="cg").identity() == {"solver": "cg", "damping": 1.0}
    assert Revised(solver="cholesky").identity() == {"solver": "cholesky", "damping": 1.0, "solver_revision": 2}


def test_unknown_keys_in_changes_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean clip_norm"):
        with_values(compose_config(SMALL), {"algorithm.clip_nrm": 1.0})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values, min_size=2), st.randoms())
def test_identity_does_not_depend_on_the_order_of_keys(values: dict, random: object) -> None:
    items = list(values.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    assert content_id(dict(items)) == content_id(values)
    assert len(content_id(values)) == 12


@given(json_values, json_values)
def test_different_values_have_different_texts(one: object, other: object) -> None:
    if canonical_json(one) == canonical_json(other):
        assert one == other


@given(st.text(), st.lists(st.text(min_size=1), min_size=1))
def test_a_hint_names_only_known_words(word: str, known: list[str]) -> None:
    hint = nearest(word, known)
    assert hint.startswith("choose from") or hint.removeprefix("did you mean ").removesuffix("?") in known


LIBSVM = ["dataset=libsvm", "dataset.path=tests/data/small.libsvm", "dp=record", "partitioner.clients=4"]


def test_a_penalty_is_for_methods_with_a_proximal_step() -> None:
    words = [
        "dataset=libsvm",
        "dataset.path=tests/data/small.libsvm",
        "dp=record",
        "model.penalty=l1_box",
        "partitioner.clients=4",
    ]
    assert make_plan(compose_config([*words, "algorithm=primal_dual"])).model.settings.penalty == "l1_box"
    with pytest.raises(ConfigError, match=r"model\.penalty=l1_box: algorithm=fedavg_record .*; write algorithm=primal_dual"):
        make_plan(compose_config([*words, "algorithm=fedavg_record"]))


def test_a_step_that_diverges_whatever_the_data_is_refused() -> None:
    words = [
        "dataset=libsvm",
        "dataset.path=tests/data/small.libsvm",
        "dp=record",
        "algorithm=primal_dual",
        "partitioner.clients=4",
    ]
    with pytest.raises(ConfigError, match=r"algorithm\.step"):
        make_plan(compose_config([*words, "algorithm.step=1.5"]))


@pytest.mark.parametrize("algorithm", [path.stem for path in option_files("algorithm")])
def test_every_method_lists_its_releases(algorithm: str, capsys: pytest.CaptureFixture[str]) -> None:
    describe("algorithm", algorithm, conf_dir() / "algorithm" / f"{algorithm}.yaml")
    releases = capsys.readouterr().out.split("releases:")[1]
    often = "vector, 1 in some rounds, by a public schedule)" if algorithm in ("scaffnew", "fedavg_scheduled") else "per round)"
    assert often in releases
    assert "input should" not in releases


def test_an_option_that_sets_another_ones_component_is_listed_as_its_preset() -> None:
    found = {path.stem: preset_of("algorithm", path) for path in option_files("algorithm")}
    presets = {"fedgd": "fedavg", "fedgd_record": "fedavg_record", "fedexp_naive": "fedexp"}
    assert {name: of for name, of in found.items() if name in presets} == presets
    assert not any(found[name] for name in ("fedavg", "fedfc", "scaffold_record"))
    assert preset_of("model", conf_dir() / "model" / "softmax.yaml") is None  # its component bears a name of no option
    assert preset_of("dp", conf_dir() / "dp" / "cdp.yaml") is None


@pytest.mark.parametrize("algorithm", ["fedavg_record", "scaffold_record"])
def test_batches_are_refused_where_a_record_may_be_gone(algorithm):
    """Another record takes its place in the batch: that moves a mean by 2C / b, where add_or_remove states C / b."""
    words = [f"algorithm={algorithm}", "dp=record", "dataset.records_per_client=4", "algorithm.batch_size=2", "rounds=2"]
    for sampling in ("without_replacement", "epoch_permutation"):
        chosen = [*words, f"algorithm.sampling={sampling}", "algorithm.local_steps=2"]
        with pytest.raises(ConfigError, match="holds another one in its place"):
            make_plan(compose_config([*chosen, "dp.relation=add_or_remove"]))
        for relation in ("replace_one", "zero_out"):
            make_plan(compose_config([*chosen, f"dp.relation={relation}"]))


def test_a_damped_solve_without_damping_is_refused():
    words = ["algorithm=fednew_record", "dp=secure_aggregation", "dp.unit=record", "algorithm.penalty=0"]
    with pytest.raises(ConfigError, match="would lose its digits"):
        make_plan(compose_config([*words, "algorithm.damping=1e-7"]))
    make_plan(compose_config([*words, "algorithm.damping=1e-2"]))


@pytest.mark.parametrize(
    "jobs",
    [
        [["algorithm=fedexp", "seed=1"], ["algorithm=fedexp", "seed=2"], ["seed=3", "algorithm=fedavg"]],
        # defaults that follow from other values, and from one another
        [["dp=cdp", "dp.epsilon=2.0"], ["dp=cdp", "dp.epsilon=null"], ["dp=ldp", "dp.epsilon=2.0"], ["dp.trust=central"]],
        [["hints.local_steps=3", "dataset=mnist"], ["algorithm.local_steps=5"], ["algorithm.local_steps='${hints.clients}'"]],
        # what Hydra does in the order of the words, and what is no single value
        [["++launcher.memory=1", "launcher.memory=2"], ["launcher.memory=2", "++launcher.memory=1"], ["~rounds"], ["+new=1"]],
        [["runtime={force: true}"], ["runtime.force=true"], ["dataset.name=a b"], ["algorithm={clip_norm: 2}"], ["rounds=[1,2]"]],
    ],
)
def test_the_jobs_of_a_sweep_compose_as_one_by_one(jobs):
    register_resolvers()
    with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE, job_name="dpfl"):
        loader = GlobalHydra.instance().config_loader()
        sweep = loader.load_configuration("config", ["hydra/launcher=joblib"], RunMode.MULTIRUN)
        together = compose_jobs(loader, sweep, [*jobs, *jobs])
        assert repr(together) == repr([plain(loader.load_sweep_config(sweep, job)) for job in [*jobs, *jobs]])


@pytest.mark.parametrize("word", ["algorithm=fedxp", "algorithm.clip_nrm=1", "seed.x=1", "~sed", "+seed=1", "seed@x=1", "a b"])
def test_a_wrong_job_of_a_sweep_says_what_hydra_says(word):
    with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE, job_name="dpfl"):
        loader = GlobalHydra.instance().config_loader()
        sweep = loader.load_configuration("config", [], RunMode.MULTIRUN)
        said = []
        for compose in (lambda job: compose_jobs(loader, sweep, [job]), lambda job: plain(loader.load_sweep_config(sweep, job))):
            with pytest.raises((*CONFIG_ERRORS, ConfigError)) as caught:
                compose(["rounds=3", word])
            said.append((type(caught.value), str(caught.value)))
        assert said[0] == said[1]
