"""Approximations of a posterior density."""
