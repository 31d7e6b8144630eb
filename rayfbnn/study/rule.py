"""The rule by which a study stops: a function of draws alone, to their last bit."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rayfbnn.arrays import Array
from rayfbnn.errors import ConfigError
from rayfbnn.study.nested import nested_rhat

MOST_LOOKS = 1000
_MOST_NAMED = 3  # members that are named for a quantity that falls short
_DIGITS = 6  # of a number on record: machines may round the last bits of a function differently


@dataclass(frozen=True)
class Rule:
    """The limits that every quantity must keep for a study to stop.

    Attributes
    ----------
    max_rhat
        Largest nested R-hat, above 1.
    max_mcse
        Largest Monte Carlo standard error of a quantity's mean over all members, in units of its standard
        deviation. It is taken from how the members differ.
    least_draws
        Smallest number of draws of each chain.
    looks
        Number of looks, evenly spaced over the iterations of the last phase that the configuration has.
    cases
        Number of training cases, evenly spaced, at which outputs are looked at.
    """

    max_rhat: float = 1.01
    max_mcse: float = 0.05
    least_draws: int = 100
    looks: int = 4
    cases: int = 10

    def __post_init__(self) -> None:
        if not 1 < self.max_rhat < math.inf:
            raise ConfigError(f"max_rhat: must be a number above 1, such as 1.01, got {self.max_rhat}")
        if not 0 < self.max_mcse < math.inf:
            raise ConfigError(f"max_mcse: must be a number above 0, such as 0.05, got {self.max_mcse}")
        for name in ("least_draws", "looks", "cases"):
            value = getattr(self, name)
            if value % 1 != 0 or value < 1:
                raise ConfigError(f"{name}: must be a whole number of at least 1, got {value}")
        if self.looks > MOST_LOOKS:
            raise ConfigError(f"looks: must be at most {MOST_LOOKS}, got {self.looks}")

    def to_dict(self) -> dict[str, Any]:
        """Return the limits by their names."""
        return asdict(self)


@dataclass(frozen=True)
class Judged:
    """A quantity as the rule sees it.

    Attributes
    ----------
    mean, sd
        Over all draws of all members.
    rhat
        Nested R-hat; None where it is not known, for a quantity that never changes.
    mcse
        Monte Carlo standard error of the mean, in units of the standard deviation; None as for `rhat`.
    ok
        Whether both keep the limits.
    apart
        Seeds of the members whose means are farthest from the mean of all, where `ok` is False.
    """

    mean: float | None
    sd: float | None
    rhat: float | None
    mcse: float | None
    ok: bool
    apart: tuple[int, ...] = ()


def judge(values: Array, seeds: tuple[int, ...], rule: Rule) -> Judged:
    """Judge one quantity.

    values  (n_members, n_chains, n_draws); members in the order of `seeds`
    """
    means = values.mean(axis=(1, 2))
    sd = float(values.std())
    rhat = nested_rhat(values)
    error = float(means.std(ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else math.nan
    mcse = error / sd if sd > 0 else math.nan
    ok = rhat <= rule.max_rhat and mcse <= rule.max_mcse  # False where one is NaN
    apart: tuple[int, ...] = ()
    if not ok:
        order = np.argsort(-np.abs(means - np.median(means)), kind="stable")
        apart = tuple(sorted(seeds[member] for member in order[:_MOST_NAMED]))
    return Judged(_known(values.mean()), _known(sd), _known(rhat), _known(mcse), ok, apart)


def _known(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def reasons(judged: dict[str, Judged], n_draws: int, failed: dict[int, str], rule: Rule) -> tuple[str, ...]:
    """Return a sentence for each way in which a study falls short; none if it may stop."""
    sentences = [f"seed {seed} failed: {reason}" for seed, reason in failed.items()]
    if n_draws < rule.least_draws:
        sentences.append(f"{n_draws} draws of each chain are fewer than {rule.least_draws}")
    for name, one in judged.items():
        if one.ok:
            continue
        seeds = ", ".join(map(str, one.apart))
        if one.rhat is None and one.sd == 0:
            sentences.append(f"{name} never changes")
        elif one.rhat is None or one.rhat > rule.max_rhat:
            rhat = "is not finite" if one.rhat is None else f"{one.rhat:g} is above {rule.max_rhat:g}"
            sentences.append(f"{name}: nested R-hat {rhat}; seeds farthest from the middle: {seeds}")
        else:
            error = "is not known" if one.mcse is None else f"{one.mcse:g} sd is above {rule.max_mcse:g}"
            sentences.append(
                f"{name}: the error of its mean {error}; seeds farthest from the middle: {seeds}"
            )
    return tuple(sentences)
