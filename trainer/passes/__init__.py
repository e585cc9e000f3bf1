"""Passes over the traced graph of a local step: one idea a file, each keeping the values and the order of outputs."""

from __future__ import annotations

from trainer.passes.drop_empty_operations import drop_empty_operations
from trainer.passes.fuse_bias import fuse_bias
from trainer.passes.fuse_descent import fuse_descent
from trainer.passes.separate_outputs import separate_outputs

__all__ = ["drop_empty_operations", "fuse_bias", "fuse_descent", "separate_outputs"]
