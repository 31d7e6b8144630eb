"""Replica exchange over levels of noise, or over powers of the likelihood."""
