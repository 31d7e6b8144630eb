"""Predictions from few draws: held in memory, or exported to a file that needs only NumPy."""
