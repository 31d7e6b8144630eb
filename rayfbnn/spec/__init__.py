"""Configurations: from the text of a TOML file to the records that are sampled, and back."""

from rayfbnn.spec.run_spec import RunSpec, differences
from rayfbnn.spec.written import PhaseSpec

__all__ = ["PhaseSpec", "RunSpec", "differences"]
