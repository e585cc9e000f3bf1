"""Leading singular triplets of B A from a randomised block Krylov space, for stacks too wide for QR to pay.

Musco and Musco (arXiv 1504.05477), algorithm 2: all blocks of the power iteration are kept, which a flat spectrum needs; start and
error estimate after Halko, Martinsson and Tropp (arXiv 0909.4061). It ends by itself: when another block adds little
to the captured energy, measured against the energy that is left, so that flat and steep spectra each get their due.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.factors.pair import Factors

MAXIMUM_BLOCKS = 12
GAIN = 2e-3  # of the energy left over, by one more block; the error against the optimum then stays below a thousandth
_SEED = 0  # of the first sketch: the same factors give the same result


def krylov_pair(factors: Factors, rank: int) -> Factors | None:
    """Return Q (Q^T B A) as a thin pair, Q an orthonormal basis: its best pair of ``rank`` is within about 0.1 % of the best of B A.

    Args:
        factors: The pair, of rank m; each block costs about 4 (O + I) m rank operations a layer.
        rank: How many triplets are wanted.

    Returns:
        The pair, B orthonormal; None where that takes more blocks than pay.
    """
    block = rank  # more columns a block cost more than the blocks that they save
    generator = torch.Generator().manual_seed(_SEED)
    sketch = torch.randn(factors.inputs, block, generator=generator, dtype=torch.float64).to(factors.a)  # (I, K)
    image = factors.b @ (factors.a @ sketch)  # (*, O, K)
    energy = image.square().sum((-2, -1)) / block  # (*); Hutchinson's estimate of |B A|^2
    basis, rows = image[..., :0], factors.a.mT[..., :0]  # (*, O, 0), (*, I, 0)
    captured = torch.zeros_like(energy)
    for _ in range(min(MAXIMUM_BLOCKS, min(factors.rank, factors.outputs, factors.inputs) // block)):
        fresh = _orthonormal_beside(basis, image)  # (*, O, K)
        coefficients = factors.a.mT @ (factors.b.mT @ fresh)  # (*, I, K), of B A in the fresh directions
        basis, rows = torch.cat([basis, fresh], -1), torch.cat([rows, coefficients], -1)
        before, captured = captured, _energy_of_best(rows, rank)
        if _settled(before, captured, energy):
            return Factors(rows.mT, basis)
        image = factors.b @ (factors.a @ coefficients)
    return None


def _orthonormal_beside(basis: Tensor, columns: Tensor) -> Tensor:
    """Return an orthonormal basis of columns (*, O, K) without their part in an orthonormal basis (*, O, L).

    Twice, as columns that lie almost in the basis leave mostly rounding the first time.
    """
    for _ in range(2):
        columns = torch.linalg.qr(columns - basis @ (basis.mT @ columns)).Q
    return columns


def _energy_of_best(rows: Tensor, rank: int) -> Tensor:
    """Return the sum of the ``rank`` largest squared singular values of (*, I, L), (*)."""
    energy: Tensor = torch.linalg.eigvalsh(rows.mT @ rows)[..., -rank:].sum(-1)  # (*)
    return energy


def _settled(before: Tensor, captured: Tensor, energy: Tensor) -> bool:
    """Return whether the last block gained next to nothing in any layer."""
    rounding = 64 * torch.finfo(captured.dtype).eps * captured
    left_over = (energy - captured).clamp(min=0.0)
    return bool((captured - before <= GAIN * left_over + rounding).all())
