"""Quantiles of predictive distributions, which are equally weighted mixtures over draws."""
