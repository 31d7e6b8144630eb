"""Quantiles of predictive distributions: equally weighted mixtures over draws."""
