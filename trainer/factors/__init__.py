"""The algebra of federated low-rank adaptation: products of thin factors, their sums, norms, corrections and files."""
