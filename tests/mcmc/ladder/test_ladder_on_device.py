"""Ladders do the same on a device as on the host."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from rayfbnn.arrays import to_host
from rayfbnn.mcmc import leapfrog
from rayfbnn.mcmc.ladder.iteration import build
from rayfbnn.mcmc.ladder.measured import Measured
from rayfbnn.mcmc.ladder.records import LadderInfo, LadderSettings, rows_of, started
from rayfbnn.mcmc.operations import Heatbath, Hybrid, HybridMarginal, Rescale, SampleSigmas
from rayfbnn.model.ladder.choosing import path_of
from rayfbnn.streams import Streams
from tests.support.ladder.posteriors import posterior_of

_NAMES = ("measure", "forward", "reverse", "rejection", "top")


def _run(kind: Literal["real", "binary"], xp: Any) -> list[LadderInfo]:
    """Run three ladders of four levels with two lengths of trajectories."""
    path = path_of(posterior_of("tiny7.csv", kind, xp=xp))
    trajectories = (
        HybridMarginal(over=("outputs", "precisions"), steps="auto", stepsize="auto", stepsize_jitter=-0.2)
        if kind == "real"
        else Hybrid(steps=4, stepsize="auto", stepsize_jitter=-0.2)
    )
    operations = (SampleSigmas(), Rescale(along="incoming", stepsize=0.5), Heatbath(), trajectories)
    settings = LadderSettings((-2.0, -1.0, -0.5), (0.5, 0.4, 0.3, 0.3), (2, 4, 4, 4))
    streams = Streams(3, xp.asarray(rows_of(range(3), 4)))
    iteration = build(path, operations, settings, n_ladders=3, advance=leapfrog.advance)
    state, infos = started(path.prior_draw(streams.at(iteration=0)), 4), []
    for number in range(1, 5):
        state, info = iteration(state, streams.at(iteration=number))
        infos.append(info)
    return infos


@pytest.mark.usefixtures("cupy")
@pytest.mark.parametrize("kind", ["real", "binary"])
def test_ladders_of_device_and_host_agree(kind: Literal["real", "binary"]) -> None:
    import cupy

    for host, device in zip(_run(kind, np), _run(kind, cupy), strict=True):
        assert (to_host(device.exchanged) == host.exchanged).all()
        for name in _NAMES:
            got = to_host(getattr(device, name))
            assert np.allclose(got, getattr(host, name), rtol=1e-6, atol=1e-6), name
        assert Measured.of(device).accepted == Measured.of(host).accepted
