"""What approximations need of the posterior besides its density and its gradient."""
