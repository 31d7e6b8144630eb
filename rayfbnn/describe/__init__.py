"""Descriptions of configurations, schedules, kernels and results in words."""
