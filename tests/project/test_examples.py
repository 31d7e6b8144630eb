"""The examples and the README's first problem: complete, readable, and they run."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayfbnn
from rayfbnn.data import read_dataset
from rayfbnn.spec import RunSpec
from rayfbnn.streams import Purpose, Streams
from tests.support.pages import ROOT, first_problem

# The 70,000 images are not included; test_all_of_mnist_is_prepared_from_a_folder_and_fitted stands for them.
EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*.toml") if path.stem != "all_images")
# A few iterations of short trajectories, which show that an example runs, not what it finds.
SHORT = ["chains=2", "chains_per_batch=2", "draws_per_block=4", "phase[-1].iterations=4"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_finds_its_data(path: Path) -> None:
    spec = RunSpec.from_toml(path)
    dataset = read_dataset(spec)
    spec.check_data(dataset.n_cases)
    assert (path.parent / "README.md").exists()


def test_robot_arm_runs_from_file_to_predictions(tmp_path: Path) -> None:
    folder = ROOT / "examples" / "robot_arm"
    short = [*SHORT, "phase[1].iterations=1", "phase[2].iterations=1"]
    short += ["phase[2].operations[2].steps=40", "phase[3].operations[2].steps=40"]
    summary = rayfbnn.sample(
        folder / "hybrid.toml", tmp_path / "run.zarr", set=short, workers=0, progress=False
    )
    assert (summary.chains, summary.draws) == (2, 4)
    prediction = rayfbnn.predict(tmp_path / "run.zarr", data=folder / "test.csv")
    assert prediction.summary["cases"] == 200
    assert prediction.summary["squared_error"] < 2  # of targets whose variances sum to 4.8


def test_the_first_problem_of_the_readme_has_ten_lines() -> None:
    assert len(first_problem().splitlines()) <= 10


def test_functions_from_the_prior_run_from_file_to_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="the plots extra is not installed")
    folder = ROOT / "examples" / "prior_functions"
    monkeypatch.syspath_prepend(folder)  # as for `python figures.py`
    summary = rayfbnn.prior(folder / "prior.toml", tmp_path / "prior.zarr", draws=3)
    assert (summary.chains, summary.draws) == (1, 3)
    rayfbnn.plot(tmp_path / "prior.zarr", out=tmp_path / "plots")
    runpy.run_path(str(folder / "figures.py"))["main"]([str(tmp_path), "--only", "2.1"])
    assert (tmp_path / "figure_2_1.png").stat().st_size > 10_000


def test_the_first_picture_has_both_predictions_on_one_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure_module = pytest.importorskip("matplotlib.figure", reason="the plots extra is not installed")
    figures: list[Any] = []
    write = figure_module.Figure.savefig
    monkeypatch.setattr(
        figure_module.Figure,
        "savefig",
        lambda figure, file, **how: figures.append(figure) or write(figure, file, **how),
    )
    script = runpy.run_path(str(ROOT / "examples" / "first_picture" / "draw.py"))
    script["main"]([str(tmp_path / "first.png"), "--iterations", "300", "--draws", "40"])
    sampled, exact = figures[0].axes
    assert sampled.get_title(loc="left").startswith("Markov chains: 8 chains of 300 draws")
    assert exact.get_title(loc="left").startswith("Exact posterior: 40 draws")
    assert sampled.get_ylim() == exact.get_ylim()
    medians = [axis.lines[0].get_ydata() for axis in (sampled, exact)]
    # The spread of functions is below 0.4, so the median of 40 draws has an error below 0.08.
    assert np.abs(medians[0] - medians[1])[25:-25].max() < 0.3


@pytest.mark.parametrize(("name", "test_file"), [("boston", "test.csv"), ("led", "test.csv.gz")])
def test_a_problem_of_the_benchmarks_runs_from_file_to_predictions(
    name: str, test_file: str, tmp_path: Path
) -> None:
    folder = ROOT / "examples" / name
    short = ["phase[0].iterations=1", "phase[1].iterations=1", *SHORT]
    short += ["phase[-1].operations[-1].steps=20", "phase[-1].operations[-1].window=5"]
    summary = rayfbnn.sample(
        folder / f"{name}.toml", tmp_path / "run.zarr", set=short, workers=0, progress=False
    )
    assert (summary.chains, summary.draws) == (2, 4)
    prediction = rayfbnn.predict(tmp_path / "run.zarr", data=folder / test_file)
    assert prediction.summary["cases"] == {"boston": 253, "led": 5000}[name]


def test_boston_is_split_in_halves_without_a_case_in_both() -> None:
    halves = [
        (ROOT / "examples" / "boston" / name).read_text().splitlines() for name in ("train.csv", "test.csv")
    ]
    assert halves[0][0] == halves[1][0]
    assert [len(half) for half in halves] == [254, 254]
    assert not set(halves[0][1:]) & set(halves[1][1:])


@pytest.mark.long
def test_all_of_mnist_is_prepared_from_a_folder_and_fitted(tmp_path: Path) -> None:
    """The configuration is that for all images; two test images stand for 10,000, and 20 for 60,000."""
    source, example = tmp_path / "data", ROOT / "examples" / "approximations" / "mnist"
    source.mkdir()
    prepare = runpy.run_path(str(ROOT / "examples" / "mnist" / "prepare.py"))["main"]
    with pytest.raises(SystemExit, match="there is no train-images-idx3-ubyte"):
        prepare([str(source), "--out", str(tmp_path / "all")])
    assert not (tmp_path / "all").exists()
    for name, n in (("train", 20), ("t10k", 2)):
        streams = Streams(seed=1, chains=np.arange(n, dtype=np.uint64))
        pixels = streams.integers(256, Purpose.TARGET_VALUE, (784,)).astype(np.uint8)
        header = b"\0\0\x08\x03" + np.array([n, 28, 28], dtype=">i4").tobytes()
        (source / f"{name}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        header = b"\0\0\x08\x01" + np.array([n], dtype=">i4").tobytes()
        (source / f"{name}-labels-idx1-ubyte").write_bytes(header + bytes(i % 10 for i in range(n)))
    prepare([str(source), "--out", str(tmp_path / "all")])
    shutil.copy(example / "all_images.toml", tmp_path)
    phases = [f"methods.sghmc.phase[{number}]" for number in range(2)]
    short = [f"{phase}.{key}" for phase in phases for key in ("iterations=2", "operations[1].batch=10")]
    short += ["methods.bbb.steps=3", "methods.bbb.batch=10", "methods.bbb.draws=3"]
    for method in ("sghmc", "bbb"):
        path = tmp_path / f"{method}.zarr"
        options = {"method": method, "set": short, "workers": 0, "progress": False}
        rayfbnn.sample(tmp_path / "all_images.toml", path, **options)
        assert rayfbnn.predict(path, data=tmp_path / "all" / "test.parquet").summary["cases"] == 2


@pytest.mark.parametrize("form", ["csv", pytest.param("idx", marks=pytest.mark.long)])
def test_mnist_is_prepared_from_a_file_and_runs(form: str, tmp_path: Path) -> None:
    digits = np.arange(20, dtype=np.uint8) % 10
    streams = Streams(seed=1, chains=np.arange(20, dtype=np.uint64))
    pixels = streams.integers(256, Purpose.TARGET_VALUE, (784,)).astype(np.uint8)
    pixels[0, 0], pixels[1, 0] = 255, 0
    if form == "csv":
        source = tmp_path / "images.csv"
        np.savetxt(source, np.column_stack([pixels, digits]), fmt="%d", delimiter=",")
    else:
        source = tmp_path / "train-images-idx3-ubyte"
        source.write_bytes(b"\0\0\x08\x03" + np.array([20, 28, 28], dtype=">i4").tobytes() + pixels.tobytes())
        labels = tmp_path / "train-labels-idx1-ubyte"
        labels.write_bytes(b"\0\0\x08\x01" + np.array([20], dtype=">i4").tobytes() + digits.tobytes())
    prepare = runpy.run_path(str(ROOT / "examples" / "mnist" / "prepare.py"))["main"]
    prepare([str(source), "--test", str(source), "--out", str(tmp_path / "mnist"), "--cases", "10"])
    spec = RunSpec.from_toml(tmp_path / "mnist" / "mnist.toml")
    dataset = read_dataset(spec)
    assert dataset.inputs.shape == (10, 784)
    assert (dataset.inputs[0] == pixels[0] / 255).all()
    assert dataset.targets[-1, 0] == 9
    short = [*SHORT, "phase[0].iterations=1", "phase[1].operations[2].steps=10"]
    summary = rayfbnn.sample(
        tmp_path / "mnist" / "mnist.toml", tmp_path / "run.zarr", set=short, workers=0, progress=False
    )
    assert summary.draws == 4
    prediction = rayfbnn.predict(tmp_path / "run.zarr", data=tmp_path / "mnist" / "test.parquet")
    assert prediction.summary["cases"] == 20


def write_splits(folder: Path) -> None:
    """A table of 40 made-up cases with two splits and results of others, laid out as the published ones."""
    numbers = Streams(5, np.arange(40, dtype=np.uint64)).normal(Purpose.TARGET_VALUE, (3,))
    data, results = folder / "data", folder / "results"
    data.mkdir(parents=True)
    results.mkdir()
    table = np.column_stack([numbers[:, 0] + 0.1 * numbers[:, 2], numbers[:, :2]])  # the target is first
    np.savetxt(data / "data.txt", table)
    np.savetxt(data / "index_features.txt", [2, 1], fmt="%d")
    np.savetxt(data / "index_target.txt", [0], fmt="%d")
    for split, is_test in enumerate([np.arange(40) < 10, np.arange(40) >= 30]):
        np.savetxt(data / f"index_train_{split}.txt", np.flatnonzero(~is_test))  # as 1.000e+01
        np.savetxt(data / f"index_test_{split}.txt", np.flatnonzero(is_test), fmt="%d")
    for name in ("test_MC_rmse", "test_ll"):
        (results / f"{name}_100_xepochs_1_hidden_layers.txt").write_text("0.5\n0.25\n")


def test_the_book_page_has_the_kept_results_of_published_splits() -> None:
    script = runpy.run_path(str(ROOT / "examples" / "uci" / "uci.py"))
    page = (ROOT / "docs" / "book.md").read_text()
    kept = script["read_kept"](ROOT / "tests" / "data" / "uci.jsonl")
    assert script["replaced"](page, script["table"](kept)) == page
    assert len(kept) == 7 and all(len(one["cells"]) == len(script["HEAD"]) for one in kept.values())
    for one in kept.values():  # rows, where they are kept, give what is shown
        assert "rows" not in one or script["summaries"](one["rows"]) == {one["dataset"]: one}


def test_published_splits_are_run_once_and_compared(tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "examples" / "uci" / "uci.py"))
    write_splits(tmp_path / "made_up")
    page, out = tmp_path / "page.md", tmp_path / "out"
    page.write_text(f"before\n{script['START']}\nold\n{script['END']}\nafter\n")
    words = [str(tmp_path / "made_up"), "--out", str(out), "--length", "0.001", "--chains", "2"]
    script["main"]([*words, "--splits", "0"])
    keep = tmp_path / "kept.jsonl"
    keep.write_text(json.dumps({"dataset": "another", "cells": ["another"] * 11, "notes": []}) + "\n")
    more = ["--page", str(page), "--keep", str(keep), "--workers", "2"]
    script["main"]([*words, *more])  # split 1 in another process
    kept = script["read_kept"](keep)
    assert list(kept) == ["another", "made_up"] and [row["split"] for row in kept["made_up"]["rows"]] == [
        0,
        1,
    ]
    assert "| another | another |" in page.read_text()
    lines = (out / "made_up" / "results.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["split"] for row in rows] == [0, 1] and {row["draws"] for row in rows} == {2 * 10}
    test = np.genfromtxt(out / "made_up" / "split_1_test.csv", delimiter=",", names=True)
    table = np.loadtxt(tmp_path / "made_up" / "data" / "data.txt")
    assert np.array_equal(np.column_stack([test["y"], test["x1"], test["x0"]]), table[30:])
    prediction = rayfbnn.predict(out / "made_up" / "split_1.zarr", data=out / "made_up" / "split_1_test.csv")
    assert rows[1]["rmse"] == prediction.summary["y_rmse"] and rows[1]["cases"] == 10
    differences = [row["minus_published"]["log_probability"] for row in rows]
    assert differences == [rows[0]["log_probability"] - 0.5, rows[1]["log_probability"] - 0.25]
    (shown,) = [line.split(" | ") for line in page.read_text().splitlines() if line.startswith("| made_up")]
    mean, error = (float(number) for number in shown[5].split(" ± "))
    assert mean == pytest.approx(np.mean(differences), abs=0.01)
    assert error == pytest.approx(abs(differences[1] - differences[0]) / 2, abs=0.01)
    assert shown[1] == "2" and "old" not in page.read_text()
    assert "made_up, predictions: cannot tell in 2 of 2 splits\n" in page.read_text()
    assert page.read_text().startswith("before\n") and page.read_text().endswith("\nafter\n")
    before = (out / "made_up" / "split_0.seconds").read_text()
    script["main"](words)
    assert (out / "made_up" / "results.jsonl").read_text().splitlines() == lines
    assert (out / "made_up" / "split_0.seconds").read_text() == before
    with pytest.raises(SystemExit, match="has results of made_up with other settings"):
        script["main"]([*words, "--seed", "2"])
    (tmp_path / "made_up" / "data" / "index_test_1.txt").unlink()
    with pytest.raises(SystemExit, match="there is no data/index_test_1.txt in it"):
        script["main"](words)
