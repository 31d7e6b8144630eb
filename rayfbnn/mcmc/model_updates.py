"""Records of the operations that belong to the model. Their updates are in model/updates/."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from rayfbnn.mcmc.operation import BuildContext, Operation
from rayfbnn.mcmc.stepsizes import check_stepsize
from rayfbnn.state import Update


@dataclass(frozen=True)
class SampleSigmas(Operation):
    """Gibbs updates of the noise precisions and then of the other precisions, all or only some of them.

    level   "lower": only the precisions of Gaussian parameters and of noise, and adjustments;
            "upper": only the precisions that govern other precisions (of units or of single t values);
            absent: both
    groups  only the groups and adjustments with these names, such as ih0, ao and noise; absent: all
    """

    level: Literal["lower", "upper"] | None = None
    groups: tuple[str, ...] | None = None
    op: ClassVar[str] = "sample-sigmas"
    is_reversible: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_groups(self.groups)

    def build(self, context: BuildContext) -> Update:
        update = context.updates[self.op]
        if self.level is None and self.groups is None:
            return update
        return partial(update, level=self.level, groups=self.groups)

    def description(self) -> str:
        level = f"{self.level}-level " if self.level else ""
        which = f"the {level}sigmas" if level or self.groups else "all sigmas"
        return f"sample-sigmas: Gibbs updates of {which}{_of_groups(self.groups)}"


@dataclass(frozen=True)
class SampleNoise(Operation):
    """Updates of the precisions that govern targets alone: of the noise, or the dispersion of counts."""

    op: ClassVar[str] = "sample-noise"
    is_reversible: ClassVar[bool] = True

    def build(self, context: BuildContext) -> Update:
        return context.updates[self.op]

    def description(self) -> str:
        return "sample-noise: updates of the sigmas of the noise, or of the dispersion of counts"


@dataclass(frozen=True)
class RandomGrid(Operation):
    """Random-grid Metropolis updates of the precisions that govern other precisions.

    stepsize  half-width of the proposals, which are uniform in the logarithm of a precision
    groups    only the groups with these names, such as ih0 and noise; absent: all
    """

    stepsize: float = 0.1
    groups: tuple[str, ...] | None = None
    op: ClassVar[str] = "random-grid"

    def __post_init__(self) -> None:
        check_stepsize(self.stepsize)
        _check_groups(self.groups)

    def build(self, context: BuildContext) -> Update:
        update = partial(context.updates[self.op], stepsize=self.stepsize)
        return update if self.groups is None else partial(update, groups=self.groups)

    def description(self) -> str:
        return (
            f"random-grid: Metropolis updates of the upper-level sigmas{_of_groups(self.groups)},"
            f" stepsize {self.stepsize:g}"
        )


@dataclass(frozen=True)
class Rescale(Operation):
    """Metropolis updates that multiply sigmas and the parameters they govern by a common factor.

    along     "sigmas": each sigma in turn; "incoming": for each hidden or output layer, all sigmas of the
              connections into it
    stepsize  standard deviation of the proposals, which are normal in the logarithm of the factor
    """

    along: Literal["sigmas", "incoming"]
    stepsize: float = 0.3
    op: ClassVar[str] = "rescale"

    def __post_init__(self) -> None:
        check_stepsize(self.stepsize)

    def build(self, context: BuildContext) -> Update:
        return partial(
            context.updates[self.op], along=self.along, stepsize=self.stepsize, advance=context.advance
        )

    def description(self) -> str:
        scaled = {
            "sigmas": "each sigma and its parameters",
            "incoming": "everything that leads into a layer",
        }
        return f"rescale: scale {scaled[self.along]} by one factor, stepsize {self.stepsize:g}"


def _check_groups(groups: tuple[str, ...] | None) -> None:
    if groups is not None and (not groups or len(set(groups)) < len(groups)):
        raise ValueError(f"groups: must name at least one group, and each only once, got {list(groups)}")


def _of_groups(groups: tuple[str, ...] | None) -> str:
    return f" of {', '.join(groups)}" if groups else ""
