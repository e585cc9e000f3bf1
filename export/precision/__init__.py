"""Smaller numbers: variants of a graph in half precision and in eight bits, each measured before it may travel."""
