"""What a configuration can say: frozen, validated records that round-trip through TOML and JSON."""

from rayfbnn.spec.records import (
    DataSpec,
    InitialSpec,
    LayerConfig,
    ModelConfig,
    NetworkConfig,
    PhaseSpec,
    RunSpec,
    differences,
)

__all__ = [
    "DataSpec",
    "InitialSpec",
    "LayerConfig",
    "ModelConfig",
    "NetworkConfig",
    "PhaseSpec",
    "RunSpec",
    "differences",
]
