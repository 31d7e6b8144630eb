"""Configured connections: tables of sparse and shared weights, convolutions, pooling, biases by channel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rayfbnn.model import connections
from rayfbnn.model.architecture import LayerSpec, NetworkSpec
from rayfbnn.model.connections import Connections, ConnectionTable, Generated
from rayfbnn.selftest.pivots import is_exact, ks_p_value
from tests.support import problems
from tests.support.model.architectures import assert_batch_independent, assert_right, mutated, worst_error
from tests.support.model.hierarchy import HIERARCHIES, uniforms_of
from tests.support.model.reference import outputs_by_loops, triples
from tests.support.problems import chain_streams, problem, streams

# Sharing, two weights on one pair, units without a connection, a weight without a use.
TABLE = ConnectionTable(
    sources=(0, 0, 1, 1, 2, 0), destinations=(0, 1, 0, 3, 1, 0), weights=(0, 1, 1, 0, 3, 3)
)
HIDDEN_TABLE = ConnectionTable(sources=(0, 3, 3, 1), destinations=(2, 2, 0, 2), weights=(0, 0, 1, 1))
OUTPUT_TABLE = ConnectionTable(sources=(0, 1, 2, 2), destinations=(0, 1, 0, 1), weights=(0, 1, 1, 0))
BIASES = ConnectionTable(destinations=(0, 1, 1, 3), weights=(0, 0, 1, 1))
TABLES: dict[str, dict[str, Connections]] = {
    "inputs": {"ih0": TABLE},
    "inputs and biases": {"ih0": TABLE, "bh0": BIASES},
    "biases alone": {"bh0": BIASES, "bo": ConnectionTable(destinations=(1,), weights=(0,))},
    "between hidden layers": {"h0h1": HIDDEN_TABLE},
    "outputs": {"ho1": OUTPUT_TABLE, "io": ConnectionTable(sources=(2,), destinations=(0,), weights=(0,))},
    "everywhere": {"ih0": TABLE, "bh0": BIASES, "h0h1": HIDDEN_TABLE, "ho1": OUTPUT_TABLE},
}
PRIORS = problems.PRIORS | {"ih0": "0.7:3::4", "h0h1": "0.8:4", "ho1": "1.2:4", "io": "0.5:::4"}


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_right(name: str) -> None:
    spec = replace(problems.network(PRIORS), connections=TABLES[name])
    assert_right(spec, name=name, models=("gaussian", "t by target"))


def test_tables_do_not_depend_on_the_batch() -> None:
    assert_batch_independent(replace(problems.network(PRIORS), connections=TABLES["everywhere"]))


LINE = Generated("convolution", grid=(1, 7), channels=2, filters=3, window=(1, 3))
GENERATED = {
    "dense": Generated("dense", grid=(1, 14), filters=5),
    "convolution": LINE,
    "convolution with stride": replace(LINE, stride=(1, 2)),
    "convolution with padding": replace(LINE, padding=(1, 0), grid=(1, 7)),
    "convolution with both": replace(LINE, stride=(1, 2), padding=(0, 2)),
    "convolution in two dimensions": Generated(
        "convolution", grid=(3, 4), channels=2, filters=2, window=(2, 3), stride=(1, 2), padding=(1, 1)
    ),
    "pooling": Generated("pooling", grid=(1, 7), channels=2, window=(1, 2), stride=(1, 2)),
    "pooling in two dimensions": Generated(
        "pooling", grid=(4, 4), channels=2, window=(2, 3), stride=(2, 1), padding=(1, 1)
    ),
}


def convolutional(first: Generated, *, hidden: bool = False) -> NetworkSpec:
    """Generated connections from the inputs, or from a hidden layer, with biases by channel."""
    n_channels = first.channels if first.kind == "pooling" else first.filters
    biases = Generated("channels", grid=first.places, channels=n_channels)
    if hidden:
        layers = (LayerSpec(first.n_sources, "sin"), LayerSpec(first.n_destinations, "tanh"))
        priors = {
            "ih0": "0.5:4",
            "th0": "0.3",
            "h0h1": "0.4:3::4",
            "bh1": "0.5:4",
            "ho1": "x1:3",
            "ho0": "0.5",
        }
        connections: dict[str, Connections] = {"h0h1": first, "bh1": biases}
        return NetworkSpec(2, 2, layers, problems.parse(priors), connections=connections)
    priors = {"ti": "0.3", "ih0": "0.5:4", "bh0": "0.5:4", "ho0": "x1:3", "bo": "1"}
    return NetworkSpec(
        first.n_sources,
        2,
        (LayerSpec(first.n_destinations, "tanh"),),
        problems.parse(priors),
        connections={"ih0": first, "bh0": biases},
    )


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("name", GENERATED)
def test_generated_connections_are_right(name: str, hidden: bool) -> None:
    assert_right(convolutional(GENERATED[name], hidden=hidden), name=name, models=("gaussian",))


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("name", ["convolution with both", "pooling in two dimensions"])
def test_generated_connections_do_not_depend_on_the_batch(name: str, hidden: bool) -> None:
    spec = replace(convolutional(GENERATED[name], hidden=hidden), inputs=3) if hidden else None
    if spec is None:
        wide = replace(GENERATED[name], grid=(1, 3), channels=1, window=(1, 2), padding=(0, 1), stride=(1, 1))
        spec = convolutional(wide)
    assert_batch_independent(spec)


@pytest.mark.parametrize("name", GENERATED)
def test_a_table_of_the_same_connections_gives_the_same_network(name: str) -> None:
    """Two implementations: products of gathered patches, and a sparse matrix."""
    spec = convolutional(GENERATED[name], hidden=True)
    sources, destinations, weights = zip(*triples(GENERATED[name]), strict=True)
    table = ConnectionTable(tuple(destinations), tuple(weights), tuple(sources))
    assert table.n_weights == GENERATED[name].n_weights
    as_table = replace(spec, connections=spec.connections | {"h0h1": table})
    one, other = problem(spec=spec), problem(spec=as_table)
    state = one.initial_state(streams("same", 3), sigmas=None)
    energy, gradient = one.potential_and_gradient(state.position, state.precisions)
    again, gradient_again = other.potential_and_gradient(state.position, state.precisions)
    assert np.allclose(energy, again, rtol=1e-12)
    assert np.allclose(gradient, gradient_again, rtol=1e-10, atol=1e-10)
    assert np.allclose(one.stepsizes(state.precisions), other.stepsizes(state.precisions), rtol=1e-12)


def test_adjustments_leave_configured_weights_alone() -> None:
    spec = replace(problems.network(PRIORS), connections={"ih0": TABLE}, adjustments={"ah0": 3.0})
    adjusted = {group.name: group.adjustments for group in spec.groups()}
    assert adjusted["ih0"] is None and adjusted["bh0"] == "ah0"


def test_exact_draws_of_shared_weights_stay_exact_under_gibbs_updates() -> None:
    """Weights from some of the inputs give the same result."""
    spec = replace(
        problems.network(HIERARCHIES | {"ih0": "0.7:3::4", "ih1": "0.5:3:4"}, units=(4, 3)),
        connections={"ih0": TABLE, "bh0": BIASES},
        omitted={"ih1": (0,), "io": (2,)},
    )
    target = problem("t by target", spec=spec)

    def p_values(seed: int, n_chains: int) -> list[float]:
        random = chain_streams(seed, n_chains)
        state = target.initial_state(random, sigmas=None)
        targets = target.sample_targets(state.position, state.precisions, random)
        informed = target.with_targets(targets)
        after, _ = informed.sample_sigmas(state, random.at(iteration=1))
        return [ks_p_value(values) for values in uniforms_of(informed, after, targets)]

    assert is_exact(p_values, name="configured", n_chains=4_000)


MUTANTS = {
    "padding counted": ("gathered *= self.inside", "pass"),
    "filling counted": ("chosen *= self.is_item[:, :, None]", "pass"),
    "one of several sources": ("return chosen.sum(axis=2)", "return chosen[:, :, 0]"),
    "biases from the first unit": ("slice(n_units, n_units + 1) if is_bias", "slice(0, 1) if is_bias"),
    "places of a pool mixed up": (
        "* n_places + np.arange(n_places), units.shape",
        "+ np.arange(n_places), units.shape",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_connection_is_seen(name: str) -> None:
    wrong = mutated(connections, MUTANTS[name])

    def is_wrong(spec: NetworkSpec) -> bool:
        target = problem(spec=spec, posterior=wrong)
        position = target.initial_state(streams("mutant", 2), sigmas=None).position
        inputs = target.inputs[:-1].T
        expected = [[outputs_by_loops(target, chain, case) for case in inputs] for chain in position]
        if not np.allclose(target.outputs(position, inputs), expected, rtol=1e-6):
            return True
        return worst_error(target, n_draws=3, name="mutant") > 1e-3

    pool = convolutional(GENERATED["pooling in two dimensions"], hidden=True)
    assert is_wrong(pool) or is_wrong(replace(problems.network(PRIORS), connections=TABLES["everywhere"]))
