"""The engine of reductions: sums over draws, computed by tasks that run in parallel."""
