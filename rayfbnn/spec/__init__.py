"""Configurations: from the text of a TOML file to the records that are sampled, and back."""

from rayfbnn.spec.run_spec import RunSpec, differences
from rayfbnn.spec.sections import DataSpec, InitialSpec, PhaseSpec

__all__ = ["DataSpec", "InitialSpec", "PhaseSpec", "RunSpec", "differences"]
