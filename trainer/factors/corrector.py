"""What B can still put right once A is fixed: the residual of an aggregate, projected onto the rows of A.

The corrector of HyperLoRA (Gupta et al., arXiv 2606.06154) moves B alone; its least squares problem has a closed form. After an
exact truncation the residual is orthogonal to the rows of A, so the correction is zero. With a ridge it is the
Frobenius form of LoRA-FAIR (Bian et al., arXiv 2411.14961), which takes SGD on a cosine instead.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from protocol.errors import InputError
from trainer.factors.pair import Factors, difference


def correction(target: Factors, pair: Factors, ridge: float = 0.0) -> Tensor:
    """Return dB (*, O, R) that minimises |target - (B + dB) A|^2 + ridge |dB|^2, the smallest where there are several.

    dB = (target - B A) A^T (A A^T + ridge)^-1; the big matrix is not formed.

    Args:
        target: What should be computed, such as the stack of all clients.
        pair: What is; its A stays.
        ridge: At least 0; in units of A A^T.

    Raises:
        InputError: The layers differ, or the ridge is negative.
    """
    if target.layer_shape != pair.layer_shape:
        raise InputError("factors are of different layers", expected=pair.layer_shape, got=target.layer_shape)
    if not 0 <= ridge < math.inf:
        raise InputError("the ridge of a correction is wrong", expected="a finite number from 0", got=ridge)
    residual = difference(target, pair)
    if ridge == 0:
        closest: Tensor = residual.b @ (residual.a @ torch.linalg.pinv(pair.a))  # (*, O, R)
        return closest
    normal = pair.a @ pair.a.mT + ridge * torch.eye(pair.rank, dtype=pair.a.dtype, device=pair.a.device)  # (*, R, R)
    onto = residual.b @ (residual.a @ pair.a.mT)  # (*, O, R)
    solved: Tensor = torch.linalg.solve(normal, onto.mT).mT  # (*, O, R); the normal matrix is symmetric
    return solved


def corrected(target: Factors, pair: Factors, ridge: float = 0.0) -> Factors:
    """Return the pair with its B corrected; arguments and errors as ``correction``."""
    return Factors(pair.a, pair.b + correction(target, pair, ridge))
