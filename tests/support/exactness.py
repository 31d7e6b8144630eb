"""Statistical tests of a sampler started at exact draws: those of the package's `selftest`."""

from rayfbnn.selftest.exactness import (
    LEVEL,
    LOOKS,
    Values,
    chi2_p_value,
    is_exact,
    ks_p_value,
    ks_two_sample_p_value,
    seed_of,
    square_p_value,
)

__all__ = [
    "LEVEL",
    "LOOKS",
    "Values",
    "chi2_p_value",
    "is_exact",
    "ks_p_value",
    "ks_two_sample_p_value",
    "seed_of",
    "square_p_value",
]
