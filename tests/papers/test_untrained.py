"""Published pages of which nothing is trained, computed anew: no archive holds what they are of."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from dpfl_cli.config.errors import DataError
from dpfl_cli.papers import artifacts
from dpfl_cli.reproduction.artifact import Scale
from dpfl_cli.reproduction.folder import artifact_folder
from dpfl_cli.reproduction.reproduce import prepare, produce
from dpfl_cli.simulation.store import RunStore

PUBLISHED = Path(__file__).parents[2] / "outputs" / "published"
NAMES = [name for name, one in artifacts().items() if not one.trains and name != "cross/audit"]


@pytest.mark.parametrize("scale", ["quick", "paper"])
@pytest.mark.parametrize("name", NAMES)
def test_a_page_without_training_is_what_is_computed_today(
    name: str, scale: Scale, tmp_path: Path
) -> None:
    """To six digits, for other machines round an optimum otherwise."""
    store = RunStore(tmp_path)
    try:
        (job,) = prepare([artifacts()[name].at(scale)], store)
        made = produce(job, store, quiet=True, repeated=None)
    except DataError as error:
        pytest.skip(f"needs data that are not here: {error}")
    folders = PUBLISHED / name / scale, artifact_folder(tmp_path, made.job.artifact)
    published, found = (
        pd.read_csv(folder / "table.csv", keep_default_na=False, na_values=[""])
        for folder in folders
    )
    pd.testing.assert_frame_equal(found, published, check_dtype=False, rtol=1e-6)
    assert not made.gaps
