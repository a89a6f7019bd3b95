"""What a run's id is made of."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from pydantic import Field

from dpfl_cli.config.component import Settings
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.config.identity import content_id, identity_of, stored_config
from dpfl_cli.config.own_files import import_own
from dpfl_cli.papers import own
from dpfl_cli.simulation.plan import make_plan, with_values
from tests.defaults import FILE, REQUIRED, current, problems

SMALL = ["dataset.clients=12", "dataset.dimension=5", "rounds=3"]


def test_the_defaults_of_every_revision_are_kept() -> None:
    """A default that changes raises its component's revision; `python -m tests.defaults` writes new
    options and revisions down.
    """
    kept, now = json.loads(FILE.read_text()), current()
    assert problems(kept, now) == []
    assert {key: kept.get(key) for key in now} == now


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({"b": 2}, "c: option a is gone: raise the revision"),
        ({"a": 2, "b": 2}, "c: the default of a was 1 and is 2: raise the revision"),
        ({"a": 1, "b": 2, "new": REQUIRED}, "c: option new is new and has no default"),
        ({"a": 1, "b": 2, "new": None}, None),
        ({"a": 1, "b": REQUIRED}, "c: the default of b was 2 and is '(required)'"),
    ],
)
def test_forgetting_a_revision_is_seen(now: dict, said: str | None) -> None:
    found = problems({"c": {"a": 1, "b": 2}}, {"c": now})
    assert len(found) == (said is not None)
    assert said is None or found[0].startswith(said)


def test_an_option_at_its_default_is_not_hashed() -> None:
    class Before(Settings):
        rate: float
        steps: int = 1

    class After(Before):
        scale: float = Field(1.0, gt=0)

    assert Before(rate=0.5).identity() == After(rate=0.5).identity() == {"rate": 0.5}
    assert After(rate=0.5, steps=1, scale=1).identity() == {"rate": 0.5}
    assert After(rate=0.5, steps=2, scale=3).identity() == {"rate": 0.5, "steps": 2, "scale": 3.0}


@pytest.mark.parametrize("words", [["algorithm=fedavg"], ["algorithm=scaffold", "dp=cdp"]])
def test_a_stored_config_has_every_option_and_its_own_id(words: list[str]) -> None:
    plan = make_plan(compose_config([*SMALL, *words]))
    stored = stored_config(plan.config, plan.identity)
    assert stored["algorithm"]["server_lr"] == 1.0
    assert "algorithm.server_lr" in stored["unhashed"]
    assert identity_of(stored) == plan.identity
    assert content_id(identity_of(stored)) == plan.id


def test_runs_of_other_settings_have_other_ids() -> None:
    base = compose_config(SMALL)
    changes = [{}, {"seed": 1}, {"algorithm.half": True}, {"algorithm.batch_size": 1}]
    plans = [make_plan(with_values(base, change)) for change in changes]
    assert len({plan.id for plan in plans}) == len(changes)


def test_what_lies_beside_a_file_and_is_imported_by_a_path_it_makes_is_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    file, helper = tmp_path / "own.py", tmp_path / "beside_own_helper.py"
    text = "import sys\nsys.path.insert(0, sys.argv and {!r})\nimport beside_own_helper\n"
    file.write_text(text.format(str(tmp_path)) + "VALUE = beside_own_helper.VALUE\n")
    found = []
    for value in (1, 2):
        helper.write_text(f"VALUE = {value}\n")
        os.utime(helper, (10**9 + value, 10**9 + value))  # bytecode is by the second
        module = import_own(str(file), "model.path=")
        assert value == module.VALUE
        found.append(module.__name__)
    assert found[0] != found[1]


@pytest.mark.parametrize("code", ["VALUE = {}\n", "raise ValueError({})\n"])
def test_the_code_that_runs_is_the_content_that_counts(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the bytecode that Python kept of a file of this size and second."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "own.py"
    for value in (1, 2):
        file.write_text(code.format(value))
        os.utime(file, (10**9, 10**9))
        if code.startswith("VALUE"):
            module = import_own(str(file), "model.path=")
            assert value == module.VALUE
        else:
            with pytest.raises(ConfigError, match=f"ValueError: {value}"):
                own(file)
