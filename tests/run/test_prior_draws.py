"""`prior`: independent draws of networks, functions and data sets, in a store that all other verbs read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.special

import rayfbnn
from rayfbnn import api
from rayfbnn.draws.outputs import network_values
from rayfbnn.draws.view import committed
from rayfbnn.errors import ConfigError, StoreExistsError, StoreMismatchError
from rayfbnn.run.sampler import build_posterior
from rayfbnn.selftest.pivots import is_exact, ks_p_value
from rayfbnn.store.store import Store
from rayfbnn.streams import Streams
from tests.support.small import small_spec


@pytest.fixture(scope="module")
def prior_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("prior")
    spec = small_spec(folder, data__standardize=["inputs", "targets"])
    api.prior(spec, folder / "prior.zarr", draws=50)
    return Store.open(folder / "prior.zarr")


def test_a_draw_is_where_the_chain_of_its_number_starts(prior_store: Store) -> None:
    posterior = build_posterior(prior_store.spec, prior_store.data, device="cpu")
    streams = Streams(prior_store.spec.seed, np.array([0, 7, 49], dtype=np.uint64))
    start = posterior.initial_state(streams, sigmas=None)
    np.testing.assert_array_equal(prior_store.read_positions()[0, [0, 7, 49]], start.position)
    np.testing.assert_allclose(prior_store.read_precisions()[0, [0, 7, 49]], start.precisions, rtol=1e-14)


def test_functions_and_densities_are_those_of_the_networks(prior_store: Store) -> None:
    posterior = build_posterior(prior_store.spec, prior_store.data, device="cpu")
    position, precisions = prior_store.read_positions()[0], prior_store.read_precisions()[0]
    outputs = posterior.outputs(position, prior_store.data.standardized_inputs)
    np.testing.assert_array_equal(prior_store.hierarchy.read("prior_predictive/outputs")[0], outputs)
    for name in ("log_likelihood", "log_prior"):
        expected = getattr(posterior, name)(position, precisions)
        np.testing.assert_allclose(prior_store.read_stat(name)[0], expected, rtol=1e-10)


def drawn_pivots(folder: Path, model: dict[str, Any], seed: int, draws: int) -> dict[str, Any]:
    """Draw functions, noise precisions and data sets."""
    spec = small_spec(folder, model=model, seed=seed, dtype="float64", draws_per_block=draws)
    path = folder / f"{seed}.zarr"
    api.prior(spec, path, draws=draws)
    store = Store.open(path)
    return {
        "outputs": store.hierarchy.read("prior_predictive/outputs")[0],
        "targets": store.hierarchy.read("prior_predictive/targets")[0],
        "precisions": store.read_precisions()[0],
        "noise": store.read_precisions()[0][:, store.precision_layout.noise_columns],
        "positions": store.parameter_layout.views(store.read_positions()[0]),
        "layout": store.precision_layout,
    }


def test_draws_have_the_law_of_the_prior(tmp_path: Path) -> None:
    """Each level is tested by a pivot: precisions are Gamma.

    Weights and noise over their sigmas are normal.
    """

    def p_values(seed: int, draws: int) -> list[float]:
        drawn = drawn_pivots(tmp_path, {"kind": "real", "noise": "0.3:3"}, seed, draws)
        layout = drawn["layout"]
        values = []
        for group in layout.groups:
            alpha, tau = group.prior.alphas[0], drawn["precisions"][:, group.common]
            if np.isfinite(alpha):
                values.append(ks_p_value(scipy.special.gammainc(alpha / 2, alpha / 2 * tau / group.mean)))
        ih0 = drawn["positions"]["ih0"] * np.sqrt(drawn["precisions"][:, layout.common["ih0"], None, None])
        values.append(ks_p_value(scipy.special.ndtr(ih0)))
        scaled = (drawn["targets"] - drawn["outputs"]) * np.sqrt(drawn["noise"])[:, None, :]
        values.append(ks_p_value(scipy.special.ndtr(scaled)))
        return values

    assert is_exact(p_values, name="draws from the prior", n_chains=200)  # 1 false alarm in 100,000


def test_targets_are_on_the_scale_of_the_data_file(prior_store: Store) -> None:
    posterior = build_posterior(prior_store.spec, prior_store.data, device="cpu")
    streams = Streams(prior_store.spec.seed, np.arange(50, dtype=np.uint64))
    state = posterior.initial_state(streams, sigmas=None)
    drawn = posterior.sample_targets(state.position, state.precisions, streams)
    expected = drawn * prior_store.data.target_scale + prior_store.data.target_center
    np.testing.assert_allclose(
        prior_store.hierarchy.read("prior_predictive/targets")[0], expected, rtol=1e-12
    )


def test_class_data_sets_are_labels(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, model={"kind": "class", "classes": 3}, data__targets=["label"])
    rows = (tmp_path / "train.csv").read_text().splitlines()
    labelled = ["x1,x2,label", *(f"{row.rpartition(',')[0]},{n % 3}" for n, row in enumerate(rows[1:]))]
    (tmp_path / "train.csv").write_text("\n".join(labelled) + "\n")
    api.prior(spec, tmp_path / "prior.zarr", draws=20)
    store = Store.open(tmp_path / "prior.zarr")
    assert store.hierarchy.read("prior_predictive/outputs").shape == (1, 20, 12, 3)
    assert set(np.unique(store.hierarchy.read("prior_predictive/targets"))) == {0, 1, 2}


MODELS: dict[str, tuple[dict[str, Any], int]] = {  # with the number of stored outputs
    "binary": ({"kind": "binary"}, 1),
    "count": ({"kind": "count"}, 1),
    "count, dispersion": ({"kind": "count", "dispersion": "0.5:4"}, 1),
    "heteroscedastic": ({"kind": "heteroscedastic"}, 2),
    "survival": ({"kind": "survival", "hazard": "constant"}, 1),
    "hazard of pieces": ({"kind": "survival", "hazard": "piecewise", "time_points": [0.5, 2.0]}, 3),
}


@pytest.mark.parametrize("name", MODELS)
def test_every_data_model_has_functions_and_data_sets(tmp_path: Path, name: str) -> None:
    model, n_outputs = MODELS[name]
    spec = small_spec(tmp_path, model=model)
    rows = (tmp_path / "train.csv").read_text().splitlines()
    right = [
        rows[0],
        *(
            f"{row.rpartition(',')[0]},{1 - n % 2 if name == 'binary' else 1}"
            for n, row in enumerate(rows[1:])
        ),
    ]
    (tmp_path / "train.csv").write_text("\n".join(right) + "\n")
    api.prior(spec, tmp_path / "prior.zarr", draws=9)
    store = Store.open(tmp_path / "prior.zarr")
    outputs, targets = (
        store.hierarchy.read("prior_predictive/outputs"),
        store.hierarchy.read("prior_predictive/targets"),
    )
    assert outputs.shape == (1, 9, 12, n_outputs) and targets.shape == (1, 9, 12, 1)
    np.testing.assert_allclose(
        network_values(committed(store), store.data.inputs), outputs[0], rtol=1e-5, atol=1e-6
    )
    if name in ("survival", "hazard of pieces"):
        assert (targets > 0).all()
    elif name != "heteroscedastic":
        assert (targets == np.floor(targets)).all() and (targets >= 0).all()
    assert rayfbnn.verify(store.path).ok
    assert rayfbnn.open(store.path)["prior_predictive"]["outputs"].shape == outputs.shape


def test_the_number_of_draws_and_of_those_in_a_block_change_no_draw(
    tmp_path: Path, prior_store: Store
) -> None:
    spec = small_spec(tmp_path, data__standardize=["inputs", "targets"], draws_per_block=7)
    api.prior(spec, tmp_path / "prior.zarr", draws=11)
    fewer = Store.open(tmp_path / "prior.zarr")
    np.testing.assert_array_equal(fewer.read_positions()[0], prior_store.read_positions()[0, :11])
    np.testing.assert_array_equal(
        fewer.hierarchy.read("prior_predictive/targets")[0],
        prior_store.hierarchy.read("prior_predictive/targets")[0, :11],
    )


def test_the_store_is_whole_and_readable(prior_store: Store) -> None:
    assert prior_store.kind == "prior" and prior_store.committed_draws == 50
    assert rayfbnn.verify(prior_store.path).ok
    tree = rayfbnn.open(prior_store.path)
    targets = tree["prior_predictive"]["targets"]
    assert targets.dims == ("chain", "draw", "case", "target")
    assert targets.sizes["draw"] == 50
    np.testing.assert_array_equal(targets.values, prior_store.hierarchy.read("prior_predictive/targets"))
    assert "(prior), 1 chains, 50 draws" in rayfbnn.show(prior_store.path)


def test_a_flipped_bit_in_a_data_set_is_found(tmp_path: Path) -> None:
    api.prior(small_spec(tmp_path), tmp_path / "prior.zarr", draws=3)
    file = tmp_path / "prior.zarr" / "prior_predictive" / "targets" / "c.0.0.0.0"
    content = bytearray(file.read_bytes())
    content[17] ^= 4
    file.write_bytes(content)
    problems = rayfbnn.verify(tmp_path / "prior.zarr").problems
    assert [problem.file for problem in problems] == ["prior_predictive/targets/c.0.0.0.0"]


def test_prior_predictions_come_from_the_same_verb(prior_store: Store) -> None:
    prediction = rayfbnn.predict(prior_store.path, data=prior_store.path.parent / "train.csv")
    assert prediction.summary["draws"] == 50
    outputs = prior_store.hierarchy.read("prior_predictive/outputs")[0, :, :, 0]
    mean = outputs.mean(axis=0) * prior_store.data.target_scale + prior_store.data.target_center
    np.testing.assert_allclose(prediction.table["y_mean"], mean, rtol=1e-5)


@pytest.mark.parametrize("activation", ["step", "erf"])
def test_units_without_gradient_are_for_the_prior_alone(tmp_path: Path, activation: str) -> None:
    spec = small_spec(tmp_path, network__hidden=[{"units": 3, "activation": activation}])
    assert api.prior(spec, tmp_path / "prior.zarr", draws=5).draws == 5
    with pytest.raises(
        ConfigError, match=rf"network.hidden\[0\].activation: {activation} units are for draws"
    ):
        api.sample(spec, tmp_path / "run.zarr", workers=0, progress=False)
    assert not (tmp_path / "run.zarr").exists()
    with pytest.raises(ConfigError, match=f"{activation} units are for draws from the prior"):
        api.evidence(spec, progress=False)


def test_step_units_can_be_drawn_by_rejection(tmp_path: Path) -> None:
    """Rejection needs no gradient. Four cases and wide noise let proposals be accepted."""
    spec = small_spec(tmp_path, network__hidden=[{"units": 3, "activation": "step"}], model__noise="3")
    rows = (tmp_path / "train.csv").read_text().splitlines()
    (tmp_path / "train.csv").write_text("\n".join(rows[:5]) + "\n")
    assert api.reject(spec, tmp_path / "exact.zarr", draws=20, progress=False).draws == 20


def test_what_makes_no_sense_is_refused(tmp_path: Path, prior_store: Store) -> None:
    spec = small_spec(tmp_path)
    with pytest.raises(ConfigError, match="draws: must be at least 1, got 0"):
        api.prior(spec, tmp_path / "prior.zarr", draws=0)
    assert not (tmp_path / "prior.zarr").exists()
    with pytest.raises(StoreExistsError):
        api.prior(spec, prior_store.path, draws=3)
    with pytest.raises(ConfigError, match="draws of `prior`, which are complete"):
        api.resume(prior_store.path)


def test_draws_from_prior_and_posterior_are_not_mixed(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    api.sample(spec, tmp_path / "run.zarr", workers=0, progress=False)
    api.prior(spec, tmp_path / "prior.zarr", draws=5)
    both = [tmp_path / "run.zarr", tmp_path / "prior.zarr"]
    with pytest.raises(StoreMismatchError, match="of the prior and of the posterior"):
        rayfbnn.predict(both, data=tmp_path / "train.csv")
    with pytest.raises(StoreMismatchError, match="prior draws"):
        rayfbnn.check(*both)


def test_plot_draws_functions_and_bands(prior_store: Store, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the plots extra is not installed")
    pictures = rayfbnn.plot(prior_store.path, out=tmp_path / "plots", input_name="x2")
    assert [picture.name for picture in pictures] == ["functions.png", "bands.png"]
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    with pytest.raises(ConfigError, match="input_name: the store has no input x3"):
        rayfbnn.plot(prior_store.path, out=tmp_path / "plots", input_name="x3")
