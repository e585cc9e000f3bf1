"""Federated methods, one a file; the registry knows them by name."""
