"""The model: networks, priors and data models, and the posterior that they define."""
