"""Tests of the machine that the package runs on."""
