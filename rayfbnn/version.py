"""The version of this package; runs resume only with the version that created them."""

__version__ = "0.1.0"
