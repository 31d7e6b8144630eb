"""The version of this package; a run is gone on with by the version that began it, to the same bits."""

__version__ = "0.1.0"
