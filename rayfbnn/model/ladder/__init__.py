"""The paths of densities that lead from a hot level to the posterior."""
