"""data.parts and data.shuffle in configurations: defaults, round trips, `show`, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfbnn import api
from rayfbnn.data import read_dataset
from rayfbnn.data.dataset import order_of_cases, shuffled, unshuffled
from rayfbnn.data.training import read_training
from rayfbnn.describe.data import unlike_parts
from rayfbnn.errors import ConfigError
from rayfbnn.mcmc.hybrid import Hybrid
from rayfbnn.mcmc.operation import with_inner
from rayfbnn.spec import RunSpec
from rayfbnn.spec.methods import automatic_parts
from tests.support.small import SMALL, small, small_spec, write_train

HYBRID = {"op": "hybrid", "steps": 6, "stepsize": 0.3}
CYCLIC = {**HYBRID, "partitions": 3, "order": "cyclic"}
TEMPERING = [{"op": "sample-sigmas"}, {"op": "heatbath"}, HYBRID]


def raw_with(*operations: dict[str, Any], parts: Any = 3, **changes: Any) -> dict[str, Any]:
    data = {**SMALL["data"], "parts": parts}
    return small(data=data, phase=[{"iterations": 4, "operations": list(operations)}], **changes)


def test_parts_are_shuffled_unless_the_configuration_says_otherwise() -> None:
    spec = RunSpec.from_dict(raw_with(CYCLIC))
    assert (spec.n_parts, spec.data.shuffle) == (3, True)
    assert spec.to_dict()["data"]["shuffle"] is True
    assert RunSpec.from_json(spec.to_json()) == spec
    kept = raw_with(CYCLIC)
    kept["data"]["shuffle"] = False
    assert RunSpec.from_dict(kept).data.shuffle is False
    whole = RunSpec.from_dict(small())
    assert (whole.n_parts, whole.data.shuffle) == (1, None)
    assert not {"parts", "shuffle"} & set(whole.to_dict()["data"])


def test_automatic_parts_become_a_number_with_the_cases(tmp_path: Path) -> None:
    write_train(tmp_path)
    spec = RunSpec.from_dict(raw_with(HYBRID, parts="auto"), base_dir=tmp_path)
    assert spec.data.parts == "auto"
    resolved, _ = read_training(spec)
    assert resolved.data.parts == 1
    assert RunSpec.from_json(resolved.to_json()).data.parts == 1
    assert automatic_parts(n_cases=2**20, n_inputs=2**10) == 16
    assert automatic_parts(n_cases=2**20, n_inputs=2**10 + 1) == 17
    assert automatic_parts(n_cases=2, n_inputs=2**30) == 2


def test_default_phases_of_parts_need_no_whole(tmp_path: Path) -> None:
    raw = raw_with(CYCLIC)
    del raw["phase"]
    spec = RunSpec.from_dict(raw)
    operations = {operation for phase in spec.phase for operation in with_inner(phase.operations)}
    assert not any(operation.op == "hybrid-marginal" for operation in operations)
    assert any(isinstance(operation, Hybrid) for operation in operations)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "outputs": (
        {"op": "hybrid-marginal", "over": ["outputs"], "steps": 3, "stepsize": 0.2},
        r"phase\[0\]\.operations\[1\]: hybrid-marginal over outputs needs all cases in one place; leave out"
        r" data\.parts, or integrate over precisions alone",
    ),
    "simulated tempering": (
        {
            "op": "simulated-tempering",
            "inverse_temperatures": [1, 0.5],
            "log_weights": [0, -1],
            "operations": TEMPERING,
        },
        r"phase\[0\]\.operations\[1\]: simulated-tempering needs all cases in one place",
    ),
    "tempered transition": (
        {"op": "tempered-transition", "inverse_temperatures": [1, 0.5], "operations": TEMPERING},
        r"phase\[0\]\.operations\[1\]: tempered-transition needs all cases in one place",
    ),
    "metropolis-1": (
        {"op": "metropolis-1", "stepsize": 0.2},
        r"phase\[0\]\.operations\[1\]: metropolis-1 computes energies for one parameter after another",
    ),
    "slice-1 in a repeat": (
        {"op": "repeat", "times": 2, "operations": [{"op": "slice-1", "stepsize": 0.2}]},
        r"phase\[0\]\.operations\[1\]\.operations\[0\]: slice-1 computes energies for one parameter",
    ),
    "sghmc": (
        {"op": "sghmc", "steps": 3, "stepsize": 0.2, "batch": 4},
        r"phase\[0\]\.operations\[1\]: sghmc draws its batches from all cases",
    ),
    "permuted dynamic": (
        {"op": "dynamic", "steps": 2, "stepsize": 0.2, "partitions": 3, "permuted": True},
        r"phase\[0\]\.operations\[1\]: dynamic visits parts only in their own order",
    ),
    "other partitions": (
        {**HYBRID, "partitions": 4, "order": "cyclic"},
        r"phase\[0\]\.operations\[1\]\.partitions: must be 3, the number of data\.parts, or 1 for full",
    ),
    "random order": (
        {**HYBRID, "partitions": 3},
        r'phase\[0\]\.operations\[1\]\.order: must be "cyclic" with data\.parts = 3',
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_a_whole_is_refused_by_name(name: str, tmp_path: Path) -> None:
    operation, message = REFUSED[name]
    write_train(tmp_path)
    raw = raw_with({"op": "heatbath"}, operation)
    raw["data"]["train"] = str(tmp_path / "train.csv")
    with pytest.raises(ConfigError, match=message):
        api.sample(raw, tmp_path / "run.zarr", workers=0, progress=False)
    assert [file.name for file in tmp_path.iterdir()] == ["train.csv"]
    raw["data"]["parts"] = 1
    RunSpec.from_dict(raw)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (0, r'data\.parts: must be a whole number of at least 1, "auto", or left out, got 0'),
        (-2, r"data\.parts: must be a whole number of at least 1"),
        (2.5, r"data\.parts: must be a whole number of at least 1"),
        ("many", r"data\.parts: must be a whole number of at least 1"),
        (13, r"data\.parts: must be at most 12, the number of training cases, got 13"),
    ],
)
def test_parts_that_make_no_sense_are_refused(parts: Any, message: str, tmp_path: Path) -> None:
    write_train(tmp_path)
    raw = raw_with(HYBRID, parts=parts)
    raw["data"]["train"] = str(tmp_path / "train.csv")
    with pytest.raises(ConfigError, match=message) as caught:
        api.sample(raw, tmp_path / "run.zarr", workers=0, progress=False)
    assert len(str(caught.value).splitlines()) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["train.csv"]


def test_devices_and_marginal_likelihoods_need_a_whole(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.parts: only the CPU supports cases in several parts"):
        RunSpec.from_dict(raw_with(CYCLIC, device="gpu"))
    spec = small_spec(tmp_path, data={**SMALL["data"], "parts": 3}, phase=raw_with(CYCLIC)["phase"])
    with pytest.raises(ConfigError, match=r"data\.parts: a marginal likelihood needs all cases"):
        api.evidence(spec, progress=False)


def test_the_order_of_cases_depends_on_their_number_alone(tmp_path: Path) -> None:
    whole, divided = (
        small_spec(tmp_path),
        small_spec(tmp_path, data={**SMALL["data"], "shuffle": True}, seed=3),
    )
    table, cases = read_dataset(whole), read_dataset(divided)
    order = order_of_cases(12)
    assert sorted(order) == list(range(12)) and not np.array_equal(order, np.arange(12))
    assert np.array_equal(cases.inputs, table.inputs[order])
    assert np.array_equal(cases.targets, table.targets[order])
    assert np.array_equal(cases.input_center, table.input_center)
    assert unshuffled(cases).hash == table.hash == unshuffled(shuffled(table)).hash


def test_show_describes_the_parts(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, data={**SMALL["data"], "parts": 5}, phase=raw_with(HYBRID)["phase"])
    text = api.show(spec)
    assert "5 parts of cases in random order, 2 or 3 in each; chains travel from part to part" in text
    assert "data.shuffle = true" in text and "differs between the parts" not in text
    assert "at 3 cases" in text and "visits are too short to ask all" in text
    assert "parts" not in api.show(small_spec(tmp_path))


@pytest.mark.parametrize("kind", ["real", "class"])
def test_parts_that_are_not_alike_are_seen(kind: str) -> None:
    model = {"kind": "class", "classes": 3} if kind == "class" else SMALL["model"]
    raw = raw_with(HYBRID, model=model)
    raw["data"]["shuffle"] = False
    spec = RunSpec.from_dict(raw)
    numbers = np.random.default_rng(5).normal(size=300)
    values = np.digitize(numbers, [-0.4, 0.4]).astype(float) if kind == "class" else numbers
    assert unlike_parts(spec, values[:, None]) == []
    (line,) = unlike_parts(spec, np.sort(values)[:, None])
    expected = "the share of label" if kind == "class" else "the mean ranges from"
    assert expected in line and "set data.shuffle = true" in line
    assert unlike_parts(spec, np.full((300, 1), 2.0)) == []
