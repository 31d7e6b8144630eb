"""How a target is sampled; knows nothing of networks, files or workers."""
