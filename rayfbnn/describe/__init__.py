"""Configurations, schedules, kernels and results in words."""
