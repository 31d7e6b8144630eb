"""What is sampled: networks, priors and data models, and the posterior they make."""
