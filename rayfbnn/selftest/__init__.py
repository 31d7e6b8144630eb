"""Tests of the machine and the kernels that the package runs on."""
