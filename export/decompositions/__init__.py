"""Gradients that the exporter cannot translate, or translates wrongly, written as operations that it can.

Each is a plain function of tensors with the signature of the ATen operation that it replaces, so it runs in eager mode
too and is tested there against torch.
"""

from export.decompositions.table import DECOMPOSITIONS

__all__ = ["DECOMPOSITIONS"]
