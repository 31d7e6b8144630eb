"""The section [ladder] of a configuration: replica exchange through noise levels, and its phases."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Annotated, Literal

from pydantic import Field

from rayfbnn.errors import ConfigError
from rayfbnn.model.architecture import NetworkSpec, PriorSpec
from rayfbnn.spec.messages import MAX_WORD, short
from rayfbnn.spec.operations import StrictModel
from rayfbnn.spec.sections import Count, PhaseSpec, Positive

MOST_LEVELS = 500
_MOST_AUTOMATIC = 64
_FIRST_ROUND, _GROWTH = 16, 1.5  # iterations, and a factor
USUAL_ITERATIONS = 2000
_LEAST_LADDERS = 4
_MOST_IN_ALL = 1_000_000  # levels of all ladders: the record of a round has two numbers for each
LADDERS_PER_BATCH = 2
_BYTES_ON_DEVICE = 8 * 2**30  # a card has 16 GiB and more


class LadderSpec(StrictModel):
    """A ladder of levels for each chain of the run, between which states are exchanged.

    levels      number of levels of a ladder, from the hottest to the posterior; "auto" lets the adaptation
                choose as many as it needs, at most 64
    hot         noise of the hottest level in standard deviations of the targets, or the power of the
                likelihood there if the targets have no noise; "auto" lets the adaptation find it
    warmup      iterations of the phase that tunes the default schedule, which half of the ladders start with;
                by default as many as in a run without ladder
    annealing   iterations that bring the levels of the other half from the prior to their noise, while the
                chains of the first half continue
    adaptation  iterations that find the levels and the stepsizes; they are not kept
    """

    levels: Annotated[int, Field(ge=3, le=MOST_LEVELS)] | Literal["auto"] = "auto"
    hot: Positive | Literal["auto"] = "auto"
    warmup: Count | None = None
    annealing: Annotated[int, Field(ge=4, le=MAX_WORD)] = 200
    adaptation: Annotated[int, Field(ge=8, le=MAX_WORD)] = 800

    @property
    def most_levels(self) -> int:
        """The most levels that a ladder may get; the store has room for so many."""
        return _MOST_AUTOMATIC if self.levels == "auto" else self.levels

    @property
    def n_measuring(self) -> int:
        """Iterations of annealing's phase that measure the noise of the chains before annealing begins."""
        return max(1, self.annealing // 10)

    @property
    def rounds(self) -> tuple[int, ...]:
        """The iterations of each round of the adaptation, each round about half as long again as the last."""
        lengths: list[int] = []
        left = self.adaptation
        while left >= 2.5 * (length := int(_FIRST_ROUND * _GROWTH ** len(lengths))):
            lengths.append(length)
            left -= length
        return (*lengths, left)


def ladder_phases(
    ladder: LadderSpec, default: Sequence[PhaseSpec], iterations: int | None
) -> tuple[PhaseSpec, ...]:
    """Return the phases of ladders: the default schedule's warm-up, annealing, adaptation, and kept draws.

    The operations are those of the default schedule, at every level. Exchanges follow them in the last two.

    default     the phases of a run without ladder; the last one is kept
    iterations  of the kept phase; None for the usual number
    """
    *held, tuned = default[:-1]
    if ladder.warmup is not None:
        tuned = PhaseSpec(iterations=ladder.warmup, keep=False, operations=tuned.operations)
    annealed, adapted = (
        PhaseSpec(iterations=n, keep=False, operations=default[-1].operations)
        for n in (ladder.annealing, ladder.adaptation)
    )
    kept = PhaseSpec(iterations=iterations or USUAL_ITERATIONS, operations=default[-1].operations)
    return (*held, tuned, annealed, adapted, kept)


def ladders_on_device(
    ladders: int, network: NetworkSpec, *, most_levels: int, n_cases: int, bytes_of_number: int
) -> int:
    """Return the default size of a batch on a device: all ladders, or as many as take 8 GiB at all levels.

    The memory of a level is an estimate: an update has about 16 vectors as long as the parameters, and a pass
    through the network two arrays of the units at all cases and three of the residuals in float64.
    """
    units = sum(layer.units for layer in network.hidden)
    of_cases = n_cases * (2 * bytes_of_number * units + 3 * 8 * network.outputs)
    bytes_of_level = 16 * bytes_of_number * sum(group.size for group in network.groups()) + of_cases
    most = _BYTES_ON_DEVICE // (most_levels * bytes_of_level) // 2 * 2
    return min(ladders, max(LADDERS_PER_BATCH, most))


def even_batch(ladders: int) -> int:
    """Return the smallest size of a batch for at least this many ladders: half are from either side."""
    return ladders + ladders % 2


def check_ladder(
    written: Collection[str],
    *,
    phases: int,
    method: str | None,
    temperature: float,
    parts: int | str | None,
    chains: int,
    chains_per_batch: int,
    most_levels: int,
) -> None:
    """Raise ConfigError, naming the key, for settings that [ladder] excludes.

    written  the keys that were given
    """
    if "phase" in written:
        raise ConfigError(
            f"phase: a ladder has its own schedule, got {phases} with [ladder]; leave [[phase]] out, and give"
            " iterations, ladder.warmup and ladder.adaptation"
        )
    if method is not None:
        raise ConfigError(
            f'method: a ladder is a method of its own, got "{method}" with [ladder]; leave out one'
        )
    if temperature != 1:
        raise ConfigError(
            f"temperature: must be 1 with [ladder], whose levels change it, got {temperature:g}"
        )
    if parts not in (None, 1):
        raise ConfigError(
            f"data.parts: a ladder needs all cases in one place, got {short(parts)}; leave it out"
        )
    if chains < _LEAST_LADDERS or chains % 2:
        raise ConfigError(
            f"chains: must be an even number of at least {_LEAST_LADDERS} with [ladder], got {chains};"
            " half of the ladders start from chains and half from the prior, and only two or more from each"
            " side show whether the sides and their ladders agree"
        )
    if chains * most_levels > _MOST_IN_ALL:
        raise ConfigError(
            f"chains: all ladders together may have {_MOST_IN_ALL} levels, and {chains} ladders of up to"
            f" {most_levels} have {chains * most_levels}; it must be at most"
            f" {_MOST_IN_ALL // most_levels // 2 * 2}"
        )
    if "chains_per_batch" in written and chains_per_batch % 2:
        raise ConfigError(
            f"chains_per_batch: must be even with [ladder], got {chains_per_batch}; a batch has as many"
            " ladders from one side as from the other"
        )


def check_free_noise(noise: PriorSpec | None, written: str | None) -> None:
    """Raise ConfigError for noise that is fixed, because levels hold it; None for targets without noise.

    written  the prior as written
    """
    if noise is not None and all(math.isinf(alpha) for alpha in noise.alphas[:2]):
        raise ConfigError(
            f'model.noise: a ladder holds the noise at its levels, so it must be free, got "{written}", which'
            ' is fixed; give it an alpha, such as "0.2:0.5"'
        )


def check_power(hot: float | str, kind: str) -> None:
    """Raise ConfigError for a hottest level that is no hotter than the posterior, whose power is 1.

    kind  of the levels: "noise" or "powers"
    """
    if kind == "powers" and isinstance(hot, float) and hot >= 1:
        raise ConfigError(
            f"ladder.hot: levels of this model are powers of the likelihood, below 1, got {hot:g}; give a"
            ' small one, such as 0.01, or "auto"'
        )
