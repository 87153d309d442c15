"""Muon (Jordan et al. 2024): momentum whose steps are made orthogonal by Newton-Schulz.

Each step takes five iterations.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Muon:
    """An optimiser for parameters of shape (layer, out, in).

    Every layer holds `parts` matrices, one below the other. The products are in bf16 and cover all
    matrices of a parameter together.
    """

    def __init__(self, parameters: list[tuple[Tensor, int]], momentum: float = 0.95) -> None:
        self._momentum = momentum
        self._state = [(p, parts, torch.zeros_like(p)) for p, parts in parameters]

    def step(self, rate: float) -> None:
        """Take one step.

        An update has singular values near `rate`, times sqrt(out / in) for tall matrices.
        """
        with torch.no_grad():
            for p, parts, moment in self._state:
                moment.lerp_(p.grad, 1 - self._momentum)
                update = p.grad.lerp(moment, self._momentum)
                each = update.view(-1, p.shape[1] // parts, p.shape[2])
                tall = max(1.0, each.shape[1] / each.shape[2]) ** 0.5
                p.add_(orthogonal(each).view(p.shape), alpha=-rate * tall)


def orthogonal(matrices: Tensor) -> Tensor:
    """Return roughly the nearest orthogonal matrices: singular values end between 0.7 and 1.2."""
    turned = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if turned else matrices
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(5):
        square = torch.bmm(x, x.mT)
        x = torch.baddbmm(
            x, torch.baddbmm(square, square, square, beta=-4.7750, alpha=2.0315), x, beta=3.4445
        )
    return (x.mT if turned else x).float().contiguous()
