"""The setting `temperature`: its valid values, and that a run, its exact draws and `show` follow it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rayfbnn.data import read_dataset
from rayfbnn.describe.configuration import describe
from rayfbnn.errors import ConfigError
from rayfbnn.run.sampler import Sampler, build_posterior
from rayfbnn.spec import RunSpec
from tests.support.small import make_store, small, small_spec


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e7", "true", '"warm"', "[1]"])
def test_a_temperature_that_makes_no_sense_is_named(value: str) -> None:
    with pytest.raises(ConfigError, match=r"^temperature: must be a number from 1e-6 to 1e6"):
        RunSpec.from_dict(small(), (f"temperature={value}",))


def test_a_run_is_at_the_temperature_of_its_configuration(tmp_path: Path) -> None:
    spec = small_spec(tmp_path, temperature=4, chains=1)
    sampler = Sampler(make_store(tmp_path / "run.zarr", spec))
    assert sampler.posterior.inverse_temperature == 0.25


def test_the_temperature_changes_what_is_sampled_and_not_what_is_reported(tmp_path: Path) -> None:
    spec = small_spec(tmp_path)
    one, four = (
        build_posterior(small_spec(tmp_path, temperature=t), read_dataset(spec), device="cpu") for t in (1, 4)
    )
    state = one.initial_state(Sampler(make_store(tmp_path / "a", spec))._streams(0), sigmas=None)
    at = (state.position, state.precisions)
    assert np.allclose(four.data_energy(*at), one.data_energy(*at) / 4)
    assert np.array_equal(four.log_likelihood(*at), one.log_likelihood(*at))


def test_show_says_what_the_temperature_does() -> None:
    assert "temperature 0.5: the likelihood to the power 2" in describe(
        RunSpec.from_dict(small(temperature=0.5))
    )
    assert "temperature" not in describe(RunSpec.from_dict(small()))
