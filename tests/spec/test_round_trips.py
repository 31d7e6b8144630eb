"""A configuration that is written as TOML or JSON is read back as the same configuration."""

from __future__ import annotations

import copy
import json
import math
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayfbnn.errors import ConfigError
from rayfbnn.model.architecture import ACTIVATIONS
from rayfbnn.spec import RunSpec
from tests.support.small import BASE

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
files = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)
widths = st.floats(1e-3, 1e3).map(repr)
alphas = st.floats(1e-2, 1e2).map(repr)
weight_priors = st.tuples(st.sampled_from(["", "x"]), widths, st.lists(alphas, max_size=1)).map(
    lambda parts: parts[0] + ":".join([parts[1], *parts[2]])
)
bias_priors = st.lists(alphas, max_size=2).flatmap(
    lambda extra: widths.map(lambda width: ":".join([width, *extra]))
)
numbers = st.floats(1e-6, 10)
jitters = st.none() | st.floats(0.1, 10) | st.floats(-10, -0.1)
hybrids = st.builds(
    lambda steps, share, partitions, stepsize, jitter: {
        "op": "hybrid",
        "steps": steps,
        "window": 1 + int(share * steps),
        "partitions": partitions,
        "stepsize": stepsize,
        "stepsize_jitter": jitter,
    },
    st.integers(1, 5000),
    st.floats(0, 1),
    st.integers(1, 9),
    numbers,
    jitters,
)
leaves = st.one_of(
    st.sampled_from(
        [
            {"op": "sample-sigmas"},
            {"op": "sample-noise"},
            {"op": "random-grid"},
            {"op": "negate"},
            {"op": "radial-heatbath"},
            {"op": "hybrid-max", "max_steps": 12, "max_ok": 2, "stepsize": 0.3, "jump": 3},
            {"op": "dynamic", "steps": 7, "stepsize": 0.3, "integrator": "two-stage"},
            {"op": "hybrid", "steps": 12, "stepsize": 0.3, "jump": 3, "integrator": "fourth-order"},
            {"op": "metropolis", "stepsize": 0.3, "acceptance": "barker"},
            {"op": "hybrid", "steps": 5, "stepsize": 0.3, "partitions": 4, "order": "cyclic"},
        ]
    ),
    st.builds(lambda decay: {"op": "heatbath", "decay": decay}, st.floats(0, 1, exclude_max=True)),
    hybrids,
    st.builds(lambda stepsize: {"op": "metropolis", "stepsize": stepsize}, numbers),
    st.builds(
        lambda op, stepsize, random: {"op": op, "stepsize": stepsize, "random": random},
        st.sampled_from(["metropolis-1", "slice-1"]),
        numbers,
        st.booleans(),
    ),
    st.builds(
        lambda steps, partitions, stepsize: {
            "op": "dynamic",
            "steps": steps,
            "stepsize": stepsize,
            "partitions": partitions,
            "permuted": partitions > 1,
        },
        st.integers(1, 5000),
        st.integers(1, 9),
        numbers,
    ),
)
operations = st.recursive(
    leaves,
    lambda inner: st.builds(
        lambda times, many: {"op": "repeat", "times": times, "operations": many},
        st.integers(1, 5),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=5,
)
phases = st.fixed_dictionaries(
    {"iterations": st.integers(1, 10_000), "operations": st.lists(operations, min_size=1, max_size=4)},
    optional={"keep": st.sampled_from([True, False, "warmup"])},
)


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(texts, min_size=2, max_size=5, unique=True))
    n_inputs = draw(st.integers(1, len(names) - 1))
    layers = draw(
        st.lists(
            st.fixed_dictionaries({"units": st.integers(1, 99), "activation": st.sampled_from(ACTIVATIONS)}),
            max_size=3,
        )
    )
    priors = {"io": draw(weight_priors), "bo": draw(bias_priors)}
    for number in range(len(layers)):
        priors |= {f"ih{number}": draw(weight_priors), f"ho{number}": draw(weight_priors)}
    last = {"keep": True}
    return {
        "seed": draw(st.integers(0, 2**32 - 1)),
        "chains": draw(st.integers(1, 1000)),
        "dtype": draw(st.sampled_from(["float32", "float64"])),
        "data": {
            "train": draw(files),
            "inputs": names[:n_inputs],
            "targets": names[n_inputs:],
            "standardize": draw(st.lists(st.sampled_from(["inputs", "targets"]), unique=True)),
        },
        "model": {"kind": "real", "noise": draw(bias_priors)},
        "network": {"hidden": layers, "priors": priors},
        "initial": draw(st.builds(lambda x: {"sigmas": x}, numbers) | st.just({"from_prior": True})),
        "phase": [*draw(st.lists(phases, max_size=2)), draw(phases) | last],
    }


@settings(max_examples=60)
@given(configurations())
def test_toml_and_json_round_trip(raw: dict[str, Any]) -> None:
    spec = RunSpec.from_dict(raw)
    assert RunSpec.from_json(spec.to_json()) == spec
    assert RunSpec.from_dict(tomllib.loads(spec.to_toml())) == spec
    assert RunSpec.from_dict(json.loads(spec.to_json())).to_toml() == spec.to_toml()


JUNK = [None, True, -1, 0, 1, 2**70, math.nan, math.inf, -0.0, 1e308, 5e-324, "", "\x00", "x", [], {}, [[]]]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a nested configuration."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [(value, key) for key in keys] + [place for key in keys for place in places(value[key])]


@pytest.mark.parametrize("junk", JUNK, ids=repr)
def test_junk_anywhere_is_a_config_error_or_makes_sense(junk: Any) -> None:
    """Any value replaced by any other gives a ConfigError or a spec that survives writing and reading."""
    for number in range(len(places(BASE))):
        raw = copy.deepcopy(BASE)
        container, key = places(raw)[number]
        container[key] = junk
        try:
            spec = RunSpec.from_dict(raw)
        except ConfigError as error:
            assert ": " in str(error)
        else:
            assert RunSpec.from_json(spec.to_json()) == spec
            assert RunSpec.from_dict(tomllib.loads(spec.to_toml())) == spec
