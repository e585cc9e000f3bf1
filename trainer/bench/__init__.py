"""How fast a simulation runs, as ratios to a plain PyTorch loop on the same work."""
