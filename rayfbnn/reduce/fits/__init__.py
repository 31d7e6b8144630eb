"""Stores of approximations: which draws count, linear predictions about modes, and diagnostics."""
