"""Quantities of the posterior that approximations need in addition to its density and gradient."""
