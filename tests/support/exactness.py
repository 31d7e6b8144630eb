"""Statistical tests of a sampler that is started at exact draws, taken from the package's `selftest`."""

from rayfbnn.selftest.pivots import (
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
