"""Describes priors in sentences, for readers who do not know FBM's notation."""

from __future__ import annotations

import math
import re

from rayfbnn.model.architecture import GroupSpec, PriorSpec


def prior_in_words(group: GroupSpec) -> str:
    """Return a sentence such as "The weights from the inputs to hidden layer 0 share an unknown sigma."."""
    name = parameters_in_words(group.name)
    by_unit = ""
    if group.is_weights and math.isfinite(group.prior.alphas[1]):
        source = "input" if group.name[0] == "i" else "unit"
        by_unit = (
            f" Each {source} also has its own sigma around the shared one, so {source}s that carry no"
            " information can be turned off."
        )
    return f"The {name} {_sigma(group.prior)}.{by_unit}{_tails(group.prior)}"


def noise_in_words(prior: PriorSpec) -> str:
    """Return a sentence about the noise, such as "The noise has an unknown sigma."."""
    known = "a known sigma" if math.isinf(prior.alphas[0]) else "an unknown sigma"
    each = " Each target also has its own sigma around it." if math.isfinite(prior.alphas[1]) else ""
    tails = " Its tails are heavier than Gaussian ones." if math.isfinite(prior.alphas[2]) else ""
    return f"The noise has {known}.{each}{tails}"


def parameters_in_words(group: str) -> str:
    """Return a group's name in words, such as "weights from the inputs to hidden layer 0" for ih0."""
    layers = {"i": "the inputs", "o": "the outputs"}
    ends = [layers.get(end, f"hidden layer {end[1:]}") for end in re.findall(r"h\d+|[io]", group)]
    if group[0] in "bt":
        return f"{'biases' if group[0] == 'b' else 'offsets'} of {ends[0]}"
    # FBM writes ho2 for hidden layer 2 to the outputs: the number belongs to the h.
    source, destination = ends if len(ends) == 2 else (f"hidden layer {group[2:]}", "the outputs")
    return f"weights from {source} to {destination}"


def _sigma(prior: PriorSpec) -> str:
    if prior.mixture is not None:
        return "come from a mixture of two Gaussians"
    if math.isinf(prior.alphas[0]) and prior.rectified is None:
        return "have a known sigma"
    return "share an unknown sigma"


def _tails(prior: PriorSpec) -> str:
    return " Some may be much larger than the others." if math.isfinite(prior.alphas[2]) else ""
