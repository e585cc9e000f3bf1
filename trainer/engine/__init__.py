"""Engines: how local steps are run. One interface, several speeds."""
