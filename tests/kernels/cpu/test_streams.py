"""The random numbers of compiled code are those of streams.py: uniform ones and permutations to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from rayfbnn.kernels.choose import streams_class
from rayfbnn.kernels.cpu import compiled_module
from rayfbnn.kernels.cpu.compiled_module import CompiledStreams
from rayfbnn.streams import MAX_SEED, Purpose, Streams

pytestmark = pytest.mark.skipif(not compiled_module.has_uniforms(), reason="the extension is not installed")
CHAINS = np.array([0, 3, 2**32 - 1], dtype=np.uint64)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (7,), (5, 0)])
@pytest.mark.parametrize("seed", [0, MAX_SEED])
def test_uniforms_are_those_of_array_code(shape: tuple[int, ...], seed: int) -> None:
    ours, theirs = (kind(seed, CHAINS, 2**32 - 1, 12) for kind in (CompiledStreams, Streams))
    for purpose, index, attempt in ((Purpose.MOMENTUM, 0, 0), (Purpose.ACCEPT, 2**18 - 1, 63)):
        values = ours.uniform(purpose, shape, index=index, attempt=attempt)
        expected = theirs.uniform(purpose, shape, index=index, attempt=attempt)
        assert values.shape == expected.shape == (3, *shape)
        np.testing.assert_array_equal(values, expected)


def test_runs_draw_by_compiled_code_unless_array_code_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYFBNN_KERNELS", raising=False)
    assert streams_class("cpu") is CompiledStreams
    monkeypatch.setenv("RAYFBNN_KERNELS", "plain")
    assert streams_class("cpu") is Streams


def test_other_numbers_are_those_of_array_code() -> None:
    """The rejection loop of `log_gamma` draws for some of the chains alone."""
    ours, theirs = (kind(7, np.arange(50, dtype=np.uint64), 3) for kind in (CompiledStreams, Streams))
    moved = ours.at(iteration=4, operation=2)
    assert isinstance(moved, CompiledStreams)
    np.testing.assert_array_equal(
        moved.log_gamma(0.7, Purpose.NOISE_COMMON, (9,)),
        theirs.at(iteration=4, operation=2).log_gamma(0.7, Purpose.NOISE_COMMON, (9,)),
    )


def test_misread_chains_are_refused() -> None:
    streams = CompiledStreams(1, CHAINS.astype(np.int64))
    with pytest.raises(TypeError):
        streams.uniform(Purpose.ACCEPT)


@pytest.mark.parametrize("n", [1, 2, 5, 33, 1001])
def test_normals_of_single_precision_are_those_of_array_code(n: int) -> None:
    ours, theirs = (kind(7, CHAINS, 9, 2) for kind in (CompiledStreams, Streams))
    found, expected = (each.single_normal(Purpose.FRICTION, (n,), index=11) for each in (ours, theirs))
    assert found.dtype == expected.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 7, 63, 64, 65, 1024, 1025, 5001])
def test_shuffles_are_those_of_array_code(n: int) -> None:
    ours, theirs = (
        kind(7, CHAINS, 9, 2).shuffle(n, Purpose.MINIBATCH) for kind in (CompiledStreams, Streams)
    )
    assert ours.dtype == theirs.dtype == np.int32
    np.testing.assert_array_equal(ours, theirs)
