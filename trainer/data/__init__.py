"""Data sets, and how they become devices."""
