"""Numbers change only with a revision (law 4)."""

from __future__ import annotations

import copy
import json

import pytest

from dpfl_cli.config.errors import DataError
from tests import golden


@pytest.mark.parametrize("name", list(golden.RUNS))
def test_golden_run(name: str) -> None:
    known = json.loads(golden.FILE.read_text())
    assert name in known, "a new golden run: make golden"
    try:
        new = golden.compute(name)
    except DataError as error:
        pytest.skip(str(error))
    assert new["id"] == known[name]["id"], "the identity changed (config or revision): make golden"
    assert not golden.differs(new, known[name]), "numbers changed under the same identity: raise a revision, then make golden"


def test_a_changed_number_is_noticed() -> None:
    run = golden.compute("fedavg ldp")
    changed = copy.deepcopy(run)
    changed["row"]["distance"] *= 1 + 1e-6
    assert golden.differs(changed, run) == ["distance"]
    del changed["row"]["distance"]
    assert golden.differs(changed, run) == ["distance"]
