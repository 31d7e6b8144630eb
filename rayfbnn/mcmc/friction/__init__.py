"""Dynamics with friction by compiled code: the contract, and the calls."""
