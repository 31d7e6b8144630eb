"""The section [ladder]: what it fills in, what it writes back, and what it refuses by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayfbnn import api
from rayfbnn.data import read_training
from rayfbnn.errors import ConfigError
from rayfbnn.spec import RunSpec
from rayfbnn.spec.written import LadderSpec
from tests.support.small import SMALL, small, write_train
from tests.support.store.ladder_runs import ladder_keys, ladder_spec


def test_without_the_section_nothing_is_written() -> None:
    spec = RunSpec.from_dict(small())
    assert spec.ladder is None and "ladder" not in spec.to_dict()


def test_a_ladder_is_written_back_with_what_was_filled_in(tmp_path: Path) -> None:
    spec = ladder_spec(tmp_path)
    again = RunSpec.from_json(spec.to_json())
    assert again == spec and again.phase == spec.phase
    assert [phase.iterations for phase in spec.phase] == [40, 3, 5, 12, 9]
    assert [phase.keep for phase in spec.phase] == [False] * 4 + [True]
    assert "phase" not in spec.to_dict() and spec.to_dict()["iterations"] == 9
    assert spec.with_iterations(20).phase[-1].iterations == 20


def test_the_rounds_of_the_adaptation_fill_its_iterations() -> None:
    for adaptation in (8, 20, 39, 40, 41, 100, 800, 12_345):
        rounds = LadderSpec(adaptation=adaptation).rounds
        assert sum(rounds) == adaptation and list(rounds) == sorted(rounds)


def test_a_device_runs_all_ladders_in_one_batch_and_several_devices_even_ones(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"chains": 64, "chains_per_batch": None}
    assert ladder_spec(tmp_path, **keys).chains_per_batch == 2
    spec = ladder_spec(tmp_path, device="gpu", **keys)
    assert spec.chains_per_batch == 64
    sizes = {n: spec.with_batches_for(n).chains_per_batch for n in (1, 2, 3, 5, 64)}
    assert sizes == {1: 64, 2: 32, 3: 22, 5: 14, 64: 2}
    assert ladder_spec(tmp_path, device="gpu", chains=64, chains_per_batch=16).chains_per_batch == 16


def test_a_batch_of_a_device_takes_as_many_levels_as_fit(tmp_path: Path) -> None:
    """Networks of 2-3-1 with 12 cases fit by the thousand, wide ones by two."""
    keys: dict[str, Any] = {"device": "gpu", "chains": 4096, "chains_per_batch": None}
    assert read_training(ladder_spec(tmp_path, **keys))[0].chains_per_batch == 4096
    wide = {"network__hidden": [{"units": 4000, "activation": "tanh"}], "settings": {"levels": 64}}
    few, data = read_training(ladder_spec(tmp_path, **keys, **wide))
    # 16 vectors of 16,001 parameters in float32, two arrays of 4,000 units at 12 cases, and the residuals
    assert few.chains_per_batch == 2**33 // (64 * (64 * 16_001 + 12 * (8 * 4000 + 24))) // 2 * 2 == 94
    assert few.with_batches_for(2).chains_per_batch == 94 and data.n_cases == 12
    assert few.with_batches_for(64).chains_per_batch == 64


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"chains": 2}, "chains: must be an even number of at least 4 with [ladder], got 2; half of the ladders"),
    ({"chains": 5}, "chains: must be an even number of at least 4 with [ladder], got 5"),
    ({"chains_per_batch": 3}, "chains_per_batch: must be even with [ladder], got 3"),
    ({"device": "tpu"}, 'device: must be "cpu" or "gpu", got "tpu"'),
    (
        {"chains": 20_000, "ladder__levels": "auto"},
        "chains: all ladders together may have 1000000 levels, and 20000 ladders of up to 64 have 1280000;"
        " it must be at most 15624",
    ),
    ({"temperature": 2.0}, "temperature: must be 1 with [ladder], whose levels change it, got 2"),
    ({"data__parts": 2}, "data.parts: a ladder needs all cases in one place, got 2; leave it out"),
    ({"data__parts": "auto"}, 'data.parts: a ladder needs all cases in one place, got "auto"'),
    ({"method": "sghmc"}, 'method: a ladder is a method of its own, got "sghmc" with [ladder]'),
    ({"method": "bbb"}, 'method: a ladder is a method of its own, got "bbb" with [ladder]'),
    (
        {"phase": SMALL["phase"], "iterations": None},
        "phase: a ladder has its own schedule, got 3 with [ladder]; leave [[phase]] out",
    ),
    (
        {"model__noise": "0.3"},
        'model.noise: a ladder holds the noise at its levels, so it must be free, got "0.3", which is fixed',
    ),
    ({"dtype": "float16"}, 'dtype: must be "float32" or "float64", got "float16"'),
    ({"ladder__levels": 2}, 'ladder.levels: must be a whole number from 3 to 500, or "auto", got 2'),
    ({"ladder__hot": 0}, 'ladder.hot: must be a positive number, such as 0.5, or "auto", got 0'),
    (
        {"model": {"kind": "binary"}, "ladder__hot": 1.0},
        "ladder.hot: levels of this model are powers of the likelihood, below 1, got 1; give a small one",
    ),
    ({"ladder__adaptation": 7}, "ladder.adaptation: must be a whole number from 8 to"),
    (
        {"ladder__level": 9},
        "ladder.level: unknown key (did you mean levels?); the keys here are levels,",
    ),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[next(iter(wrong)) for wrong, _ in WRONG])
def test_what_does_not_go_with_a_ladder_is_refused_by_name(
    tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    write_train(tmp_path)
    keys = ladder_keys()
    for key, value in wrong.items():
        *tables, last = key.split("__")
        table = keys
        for name in tables:
            table = table[name]
        table[last] = value
    keys = {key: value for key, value in keys.items() if value is not None}
    with pytest.raises(ConfigError) as caught:
        api.sample(RunSpec.from_dict(keys, base_dir=tmp_path), tmp_path / "run.zarr", progress=False)
    assert message in str(caught.value)
    assert not list(tmp_path.glob("*.zarr")) and not list(tmp_path.glob(".*"))
