"""All operations. An operation listed here can be configured, run, described, counted and tested."""

from __future__ import annotations

from rayfbnn.mcmc.dynamic import Dynamic
from rayfbnn.mcmc.heatbath import Heatbath, Negate, RadialHeatbath
from rayfbnn.mcmc.hybrid import Hybrid
from rayfbnn.mcmc.hybrid_marginal import HybridMarginal
from rayfbnn.mcmc.hybrid_max import HybridMax
from rayfbnn.mcmc.metropolis import Metropolis
from rayfbnn.mcmc.model_updates import RandomGrid, Rescale, SampleNoise, SampleSigmas
from rayfbnn.mcmc.one_at_a_time.metropolis_1 import Metropolis1
from rayfbnn.mcmc.one_at_a_time.slice_1 import Slice1
from rayfbnn.mcmc.operation import Operation
from rayfbnn.mcmc.repeat import Repeat
from rayfbnn.mcmc.sghmc import Sghmc
from rayfbnn.mcmc.tempering.simulated_tempering import SimulatedTempering
from rayfbnn.mcmc.tempering.tempered_transition import TemperedTransition

OPERATIONS: tuple[type[Operation], ...] = (
    SampleSigmas,
    SampleNoise,
    RandomGrid,
    Rescale,
    Heatbath,
    RadialHeatbath,
    Negate,
    Hybrid,
    HybridMarginal,
    HybridMax,
    Dynamic,
    Sghmc,
    Metropolis,
    Metropolis1,
    Slice1,
    SimulatedTempering,
    TemperedTransition,
    Repeat,
)
