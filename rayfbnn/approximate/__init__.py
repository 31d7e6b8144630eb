"""Approximations of a posterior density, each as a fit whose steps are those of a run."""
