"""Which code runs the leapfrog steps of a posterior: the one place that chooses a kernel or array code."""

from __future__ import annotations

import os
from dataclasses import dataclass
from socket import gethostname
from typing import Protocol

import numpy as np

from rayfbnn.arrays import Array, array_namespace
from rayfbnn.errors import ConfigError
from rayfbnn.kernels.cpu import advance as cpu
from rayfbnn.kernels.cuda import choose as device
from rayfbnn.kernels.cuda.graphs import Recordings
from rayfbnn.kernels.plan import Program
from rayfbnn.mcmc import leapfrog
from rayfbnn.model.architecture import ModelSpec, NetworkSpec
from rayfbnn.model.likelihood.registry import data_model_from_spec
from rayfbnn.model.marginal.targets import WithoutOutputs, WithoutPrecisions
from rayfbnn.model.posterior import Posterior
from rayfbnn.state import Advance, Target, Trajectory

VARIABLE = "RAYFBNN_KERNELS"
"""Of the environment: "plain" forces array code, the name of an instruction set (such as AVX2) that one.

On a device "launches" does without CUDA graphs. Any other name is refused.
"""
_PLAIN_ONLY, _WITHOUT_GRAPHS = "plain", "launches"
PLAIN = "plain NumPy"
PLAIN_ON_DEVICE = "plain CuPy"
DEVICE = "CUDA"
GRAPHS = "CUDA, gradients of large networks as CUDA graphs"
_COMPILED = "compiled, "
_FORCED = "array code is forced"


def advance_for(target: Posterior, *, recorded: str | None = None) -> tuple[Advance, str]:
    """What runs a posterior's trajectories, and its name for people and stores.

    On a CPU a compiled kernel wherever there is one: on every shape that was measured it took at most the
    time of the array code (docs/benchmarks.md). The Advance takes any target: it runs kernels for a
    Posterior and for what is left of one by hybrid-marginal, and array code for the others.

    recorded  the name that a run began with, which is kept to where this machine can
    """
    if array_namespace(target.inputs) is not np:
        return on_device(target, recorded=recorded)
    name = recorded if recorded is not None and is_available(recorded) else _name(Program.of(target))
    if not name.startswith(_COMPILED):
        return leapfrog.advance, name
    instruction_set = name.removeprefix(_COMPILED)
    kernel = cpu.advance_for(target, instruction_set=instruction_set)
    return ForPosteriors(kernel, cpu.CompiledMarginalAdvance(instruction_set)), name


def on_device(
    target: Posterior, *, recorded: str | None = None, max_shared_bytes: int | None = None
) -> tuple[Advance, str]:
    """The same for arrays on a device, whose shared memory has max_shared_bytes: the current one's if absent.

    Neither the choice nor its name looks at the arrays, so that it can be asked for with arrays on the host.
    """
    begun = recorded if recorded is not None and is_available(recorded) else _device_name(Program.of(target))
    if not begun.startswith(DEVICE):
        return leapfrog.advance, begun
    recordings = Recordings() if begun == GRAPHS else None
    chosen = device.advance_for(target, max_shared_bytes=max_shared_bytes, recordings=recordings)
    if isinstance(chosen, str):
        return leapfrog.advance, f"{PLAIN_ON_DEVICE} ({chosen})"
    kernel, name = chosen
    marginal = device.MarginalAdvance.of(max_shared_bytes=max_shared_bytes, recordings=recordings)
    return ForPosteriors(kernel, marginal), name


def marginal_name(target: Target, advance: Advance, name: str) -> str:
    """What `advance`, called `name`, runs what is left of its posterior by hybrid-marginal with."""
    assert isinstance(target, WithoutOutputs | WithoutPrecisions)
    if not isinstance(advance, ForPosteriors):
        return name
    if not isinstance(advance.marginal, device.MarginalAdvance):
        return name if advance.marginal.covers(target) else PLAIN
    chosen = advance.marginal.chosen(target)
    return f"{PLAIN_ON_DEVICE} ({chosen})" if isinstance(chosen, str) else chosen[1]


def name_for(network: NetworkSpec, model: ModelSpec, *, n_targets: int, device: str) -> str:
    """The name of what `advance_for` will choose on this machine, before there are data."""
    if data_model_from_spec(model).compiled_name is None:
        program: Program | str = f"{model.kind} targets"
    else:
        nothing = np.zeros((1, network.inputs)), np.zeros((1, n_targets))
        program = Program.of(Posterior.of(network, model, *nothing))
    return _name(program) if device == "cpu" else _device_name(program)


def is_available(name: str) -> bool:
    """Whether this machine, as its environment says, can go on with the kernel of this name."""
    if name.startswith(_COMPILED):
        return not _is_forced_plain() and name.removeprefix(_COMPILED) in cpu.instruction_sets()
    return name.startswith((PLAIN, PLAIN_ON_DEVICE)) or not _is_forced_plain()


def _name(program: Program | str) -> str:
    """Of what runs a program on this machine's CPU."""
    sets, wanted = cpu.instruction_sets(), _wanted()
    if wanted == _PLAIN_ONLY:
        return f"{PLAIN} ({VARIABLE} is plain)"
    if isinstance(program, str):
        return f"{PLAIN} ({program})"
    if not sets:
        return f"{PLAIN} (no compiled kernels: {cpu.why_none})"
    return _COMPILED + (wanted if wanted in sets else sets[0])


def _device_name(program: Program | str) -> str:
    """Of what runs a program on a device, as far as the device's memory does not decide."""
    wanted = _wanted()
    reason = _FORCED if wanted == _PLAIN_ONLY else program
    if isinstance(reason, str):
        return f"{PLAIN_ON_DEVICE} ({reason})"
    return DEVICE if wanted == _WITHOUT_GRAPHS else GRAPHS


def _is_forced_plain() -> bool:
    return _wanted() == _PLAIN_ONLY


def _wanted() -> str:
    """What the environment asks for, "" if nothing; ConfigError if it is not to be had here."""
    wanted, choices = os.environ.get(VARIABLE, ""), (_PLAIN_ONLY, _WITHOUT_GRAPHS, *cpu.instruction_sets())
    if wanted and wanted not in choices:  # on a worker it may be that machine's own environment
        raise ConfigError(f"{VARIABLE}: must be {' or '.join(choices)} on {gethostname()}, got {wanted}")
    return wanted


class MarginalAdvance(Advance, Protocol):
    """An Advance for what hybrid-marginal leaves of posteriors, some of them."""

    def covers(self, target: Target) -> bool: ...


@dataclass(frozen=True)
class ForPosteriors:
    """A kernel for posteriors, one for what is left of them, and array code for targets of other kinds."""

    kernel: Advance
    marginal: MarginalAdvance

    def __call__(
        self,
        target: Target,
        trajectory: Trajectory,
        *,
        n_steps: int,
        order: Array | None = None,
    ) -> tuple[Trajectory, Array]:
        advance: Advance = leapfrog.advance
        if isinstance(target, Posterior):
            advance = self.kernel
        elif self.marginal.covers(target):
            advance = self.marginal
        return advance(target, trajectory, n_steps=n_steps, order=order)
