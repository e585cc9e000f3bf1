"""The demo: the project's own commands in a row, on real data, the device's ones without torch."""
