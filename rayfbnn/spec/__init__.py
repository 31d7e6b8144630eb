"""Configurations: from the text of a TOML file to the records that are sampled, and back."""

from rayfbnn.spec.differences import differences
from rayfbnn.spec.run_spec import RunSpec
from rayfbnn.spec.sections import DataSpec, InitialSpec, PhaseSpec

__all__ = ["DataSpec", "InitialSpec", "PhaseSpec", "RunSpec", "differences"]
