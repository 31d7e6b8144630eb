"""Dynamics with friction in compiled code: the protocols, and the functions that call it."""
