"""Quantities of the posterior that approximations need besides its density and its gradient."""
