"""A configuration without [network] or its priors gets them, and is then as if they had been written."""

from __future__ import annotations

import itertools
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rayfbnn import api
from rayfbnn.data import read_training
from rayfbnn.data.encoding import Encoding, InputColumn
from rayfbnn.describe.configuration import describe
from rayfbnn.errors import ConfigError
from rayfbnn.model.architecture import LayerSpec, ModelSpec, NetworkSpec, PriorSpec
from rayfbnn.model.sampled import SampledPosterior
from rayfbnn.spec import RunSpec
from rayfbnn.spec.defaults import default_priors
from rayfbnn.store.store import Store
from tests.support.problems import MODELS, parse, streams

MANY = 250  # cases, from which on the default network has two layers


def keys(kind: str = "real", *, inputs: int = 4, **more: Any) -> dict[str, Any]:
    names = [f"x{number}" for number in range(inputs)]
    data = {"train": "train.csv", "inputs": names, "targets": ["y"]} | more.pop("data", {})
    return {"data": data, "model": {"kind": kind} | more.pop("model", {}), **more}


KINDS = ["real", "binary", "class", "count", "survival", "heteroscedastic"]


@pytest.mark.parametrize("kind", KINDS)
def test_data_and_kind_are_enough(kind: str) -> None:
    model = {"classes": 3} if kind == "class" else {}
    spec = RunSpec.from_dict(keys(kind, model=model))
    assert [layer.units for layer in spec.network.hidden] == [8]
    assert set(spec.network.priors) == {"ih0", "bh0", "ho0", "io", "bo"}
    assert RunSpec.from_dict(spec.to_dict()) == spec
    assert RunSpec.from_json(spec.to_json()).network == spec.network
    assert spec.data.standardize == (
        ("inputs", "targets") if kind in ("real", "heteroscedastic") else ("inputs",)
    )


def resolved(n_cases: int, kind: str = "real", **more: Any) -> RunSpec:
    """A configuration whose inputs are not named, with what is known of a table of so many cases."""
    raw = keys(kind, **more)
    del raw["data"]["inputs"]
    names = tuple(f"x{number}" for number in range(4))
    return RunSpec.from_dict(raw).resolved(Encoding(names, tuple(map(InputColumn, names)), n_cases=n_cases))


@pytest.mark.parametrize("kind", ["real", "count"])
@pytest.mark.parametrize("n_cases", [60, MANY - 1, MANY, 10**6])
def test_many_cases_with_real_targets_have_two_layers(kind: str, n_cases: int) -> None:
    spec = resolved(n_cases, kind)
    expected = [16, 16] if kind == "real" and n_cases >= MANY else [8]
    assert [layer.units for layer in spec.network.hidden] == expected
    assert ("h0h1" in spec.network_keys.priors) == (len(expected) == 2)
    again = RunSpec.from_json(spec.to_json()).resolved(spec.encoding)
    assert again == spec and again.network == spec.network


def dispersion_of(**more: Any) -> str | None:
    return RunSpec.from_dict(keys("count", **more)).model_keys.dispersion


def test_default_priors_of_counts_bring_a_dispersion() -> None:
    assert dispersion_of() == "0.3:0.5"
    assert dispersion_of(data={"targets": ["y", "z"]}) == "0.3::0.5"
    assert dispersion_of(network={"hidden": [{"units": 5, "activation": "relu"}]}) == "0.3:0.5"
    assert dispersion_of(model={"dispersion": "1:2"}) == "1:2"
    assert dispersion_of(method="laplace") is None
    assert dispersion_of(network={"priors": {"ih0": "1:4", "ho0": "x1:4"}}) is None
    assert 'model.dispersion = "0.3:0.5"' in describe(RunSpec.from_dict(keys("count")))


def test_counts_without_dispersion_are_as_before_there_was_a_default() -> None:
    """Their complete configuration, which stores keep, does not have the word."""
    spec = RunSpec.from_dict(keys("count", model={"dispersion": "none"}))
    assert spec.model == ModelSpec("count")
    stored = spec.to_dict()
    assert stored["model"] == {"kind": "count"} and RunSpec.from_dict(stored) == spec
    raw = keys("count", model={"dispersion": "none"})
    del raw["data"]["inputs"]  # its priors are open until the table is read
    again = RunSpec.from_dict(RunSpec.from_dict(raw).to_dict())
    assert again.model_keys.dispersion == "none"
    assert again.resolved(resolved(60).encoding).to_dict()["model"] == {"kind": "count"}
    with pytest.raises(ConfigError, match="model.dispersion: only count targets have a dispersion"):
        RunSpec.from_dict(keys("real", model={"dispersion": "none"}))


def test_layers_or_priors_that_are_written_are_kept_for_many_cases() -> None:
    layer = {"units": 5, "activation": "relu"}
    assert [one.units for one in resolved(MANY, network={"hidden": [layer]}).network.hidden] == [5]
    priors = {"ih0": "1:4", "ho0": "x1:4"}
    spec = resolved(MANY, network={"priors": priors}, model={"noise": "0.1:1"})
    assert [one.units for one in spec.network.hidden] == [8]


def test_a_configuration_that_was_written_out_before_its_cases_were_read_has_the_layers_for_them() -> None:
    raw = keys()
    del raw["data"]["inputs"]
    again = RunSpec.from_dict(RunSpec.from_dict(raw).to_dict())
    assert again.resolved(resolved(MANY).encoding) == resolved(MANY)


@pytest.mark.parametrize("units", [(16,), (64,), (256,), (8, 8), (16, 16), (64, 64)], ids=str)
def test_functions_of_the_prior_are_alike_whatever_the_number_of_units(units: tuple[int, ...]) -> None:
    """The sizes of outputs, and of their change with an input, are those of eight units in each layer."""
    base = (8,) * len(units)
    for one, other in zip(prior_sizes(units), prior_sizes(base), strict=True):
        assert one == pytest.approx(other, rel=0.1)


@cache
def prior_sizes(units: tuple[int, ...]) -> list[float]:
    """Return the median size of an output and of its changes, over 4,000 draws from the default prior."""
    hidden = tuple(LayerSpec(n, "tanh") for n in units)
    priors = default_priors(hidden, n_inputs=1, bias=1.0, is_real=True)
    inputs = np.array([[0.0], [0.1], [1.0]])
    target = SampledPosterior.from_spec(
        NetworkSpec(1, 1, hidden, parse(priors)),
        MODELS["gaussian"],
        inputs,
        np.zeros((3, 1)),
        dtype="float64",
    )
    state = target.initial_state(streams(f"prior of {units}", 4000), sigmas=None)
    outputs = target.outputs(state.position, inputs)[..., 0]
    changes = np.diff(outputs, axis=1)
    return np.median(np.abs(np.column_stack([outputs[:, 0], changes])), axis=0).tolist()


def pictures(
    path: Path, *, n_pixels: int = 20, n_rows: int = 30, highest: float = 16, network: Any = None
) -> RunSpec:
    """A configuration of classes with the pixels in a file, which are whole numbers from 0 to `highest`."""
    random = np.random.default_rng(1)
    pixels = random.integers(0, highest, (n_rows, n_pixels), endpoint=True)
    pixels[0], pixels[1], pixels[2:, 0] = 0, highest, 0  # of the first pixel most are 0
    table = pd.DataFrame(pixels, columns=[f"p{number}" for number in range(n_pixels)])
    table.assign(label=random.integers(0, 3, n_rows)).to_csv(path / "train.csv", index=False)
    raw = {"data": {"train": "train.csv", "targets": ["label"]}, "model": {"kind": "class", "classes": 3}}
    raw |= {} if network is None else {"network": network}
    return read_training(RunSpec.from_dict(raw, base_dir=path))[0]


def test_readings_in_one_unit_are_scaled_together_and_have_a_network_of_their_own(tmp_path: Path) -> None:
    spec = pictures(tmp_path)
    assert spec.encoding is not None and spec.encoding.have_one_unit
    assert spec.data.standardize == ("inputs together",)
    assert [(layer.units, layer.activation) for layer in spec.network.hidden] == [(40, "sin")]
    assert spec.network_keys.priors == {"ih0": "0.22:4", "bh0": "2:4", "ho0": "x8:4", "bo": "4"}
    data = read_training(spec)[1]
    assert len(set(data.input_scale)) == 1
    variances = data.standardized_inputs.var(axis=0)
    assert math.isclose(variances.mean(), 1, rel_tol=1e-9) and variances[0] < 0.5
    written = RunSpec.from_json(spec.to_json()).resolved(spec.encoding)
    assert written.network == spec.network and written.data.standardize == spec.data.standardize


def test_readings_feed_the_outputs_where_there_are_no_units(tmp_path: Path) -> None:
    spec = pictures(tmp_path, network={"hidden": []})
    assert spec.network_keys.priors == {"io": "0.22:2", "bo": "4"}


@pytest.mark.parametrize("changes", [{"n_pixels": 10}, {"highest": 1}], ids=["few columns", "two values"])
def test_other_columns_are_scaled_one_by_one(tmp_path: Path, changes: dict[str, Any]) -> None:
    spec = pictures(tmp_path, **changes)
    assert spec.data.standardize == ("inputs",)
    assert [layer.units for layer in spec.network.hidden] == [8]


def test_what_is_known_of_the_columns_is_read_back_from_a_store(tmp_path: Path) -> None:
    pictures(tmp_path)
    raw = {"data": {"train": "train.csv", "targets": ["label"]}, "model": {"kind": "class", "classes": 3}}
    spec = RunSpec.from_dict({**raw, "iterations": 2, "chains": 1}, base_dir=tmp_path)
    store = Store.open(api.sample(spec, tmp_path / "run.zarr", workers=0, progress=False).path)
    assert store.spec.encoding is not None and store.spec.encoding.have_one_unit
    assert len(set(store.data.input_scale)) == 1


def test_a_default_is_not_mistaken_for_what_another_configuration_wrote() -> None:
    first, second = RunSpec.from_dict(keys(inputs=4)), RunSpec.from_dict(keys(inputs=16))
    assert first.network_keys.priors["io"] == "0.5:2:4"
    assert second.network_keys.priors["io"] == "0.25:2:4"


@pytest.mark.parametrize("hidden", [[], [(3,)], [(3,), (4,), (5,)]])
def test_layers_may_be_written_without_priors(hidden: list[tuple[int]]) -> None:
    layers = [{"units": units, "activation": "tanh"} for (units,) in hidden]
    spec = RunSpec.from_dict(keys(network={"hidden": layers}))
    assert [layer.units for layer in spec.network.hidden] == [units for (units,) in hidden]
    expected = {0: {"io", "bo"}, 1: {"ih0", "bh0", "ho0", "io", "bo"}}
    more = {"ih0", "bh0", "h0h1", "bh1", "h1h2", "bh2", "ho2", "io", "bo"}
    assert set(spec.network.priors) == expected.get(len(hidden), more)


def test_priors_that_are_written_are_the_only_ones() -> None:
    network = {"priors": {"ih0": "1:0.5", "bh0": "1:0.5", "ho0": "x1:0.5"}}
    spec = RunSpec.from_dict(keys(network=network, model={"noise": "0.1:1"}))
    assert spec.network_keys.priors == network["priors"]
    assert spec.data.standardize == () and len(spec.network.hidden) == 1
    with pytest.raises(ConfigError, match=r"model\.noise: missing"):
        RunSpec.from_dict(keys(network=network))


def test_what_is_written_stays_beside_default_priors() -> None:
    spec = RunSpec.from_dict(keys(data={"standardize": []}, model={"noise": "2:1"}))
    assert spec.data.standardize == () and spec.model_keys.noise == "2:1"
    hazard = {"hazard": "piecewise", "time_points": [1.0, 2.0]}
    spec = RunSpec.from_dict(keys("survival", inputs=3, model=hazard))
    assert spec.model_keys.hazard == "piecewise"
    assert spec.network_keys.priors["io"] == "0.5:2"  # the time is the fourth input
    with pytest.raises(ConfigError, match=r"network\.omit\.ih9"):
        RunSpec.from_dict(keys(network={"omit": {"ih9": ["x0"]}}))


def test_a_hazard_with_time_points_is_piecewise() -> None:
    spec = RunSpec.from_dict(keys("survival", model={"time_points": [1.0, 2.0]}))
    assert spec.model_keys.hazard == "piecewise"
    assert RunSpec.from_dict(keys("survival")).model_keys.hazard == "constant"


def test_priors_wait_for_the_inputs(tmp_path: Path) -> None:
    """Two numbers and a text of two levels are four inputs."""
    rows = ["a,b,c,y", "1,2,u,3", "4,6,v,1", "2,2,v,5"]
    (tmp_path / "train.csv").write_text("\n".join(rows))
    raw = {"data": {"train": "train.csv", "targets": ["y"]}, "model": {"kind": "real"}}
    unresolved = RunSpec.from_dict(raw, base_dir=tmp_path)
    assert unresolved.network_keys.priors == {} and unresolved.data.standardize == ("inputs", "targets")
    again = RunSpec.from_dict(unresolved.to_dict(), base_dir=tmp_path)
    for spec in (unresolved, again):
        resolved, dataset = read_training(spec)
        assert dataset.n_inputs == 4 and resolved.network_keys.priors["ih0"] == "0.25:4:4"
        assert resolved.with_iterations(7).network_keys.priors == resolved.network_keys.priors


def test_sums_over_inputs_have_the_same_scale_however_many_they_are() -> None:
    hidden = RunSpec.from_dict(keys()).network.hidden
    for n_inputs, is_real in itertools.product((1, 4, 25, 400), (False, True)):
        for group, scale in (("ih0", 0.5 if is_real else 2.0), ("io", 1.0)):
            text = default_priors(hidden, n_inputs=n_inputs, bias=1.0, is_real=is_real)[group]
            width = PriorSpec.parse(text, key=group).width
            assert width * n_inputs**0.5 == pytest.approx(scale, rel=0.05)


def test_each_of_several_inputs_has_a_sigma() -> None:
    for kind, n_inputs, is_own in (("real", 1, False), ("real", 2, True), ("binary", 2, False)):
        network = RunSpec.from_dict(keys(kind, inputs=n_inputs)).network
        assert all(math.isfinite(network.priors[group].alphas[1]) == is_own for group in ("ih0", "io"))


def test_each_of_several_targets_has_the_noise_of_a_single_one() -> None:
    """The marginal prior of each target's sigma is the same; no common sigma ties them together."""
    single = RunSpec.from_dict(keys()).model_keys.noise
    several = RunSpec.from_dict(keys(data={"targets": ["y", "z"]})).model_keys.noise
    assert single is not None and several is not None
    one, each = (PriorSpec.parse(text, key="model.noise") for text in (single, several))
    assert one.width == each.width and one.alphas[0] == each.alphas[1]
    assert each.alphas[0] == math.inf


@pytest.mark.parametrize(("kind", "width"), [("real", 1), ("count", 10), ("survival", 10), ("binary", 1)])
def test_biases_of_outputs_reach_as_far_as_targets_in_any_unit(kind: str, width: float) -> None:
    assert RunSpec.from_dict(keys(kind)).network.priors["bo"].width == width


def test_show_writes_the_defaults_out_and_says_them_in_words() -> None:
    text = api.show(keys())
    assert 'ih0   "0.25:4:4": width 0.25' in text
    assert "Each input also has its own sigma around the shared one" in text
    assert "The biases of the outputs have a known sigma." in text
    assert "The noise has an unknown sigma." in text
    own = keys(network={"priors": {"ih0": "1:4", "ho0": "x1:4"}}, model={"noise": "1:1"})
    assert "Each input has a sigma" not in api.show(own)
    assert "The weights from the inputs to hidden layer 0 share an unknown sigma." in api.show(own)
    used = text.split("Defaults used: ")[1]
    for default in (
        'model.noise = "0.2:0.5"',
        "network.hidden",
        "network.priors",
        "standardize = [inputs, targets]",
    ):
        assert default in used
