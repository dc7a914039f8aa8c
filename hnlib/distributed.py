"""Gather the rows of all processes into one batch, for training under torch.distributed."""

from __future__ import annotations

import torch
from torch import Tensor, distributed
from torch.autograd.function import once_differentiable

from hnlib import _checks

__all__ = ["gather"]


def gather(z: Tensor) -> Tensor:
    r"""Gather the rows of all processes, in the order of their ranks, with gradients.

    Every process then computes the loss of the whole batch::

        z1, z2 = gather(model(view1)), gather(model(view2))
        methods.build("hcl")(z1, z2).backward()

    Parameters
    ----------
    z : Tensor of shape [B, ...]
        The rows of this process; every process has equally many.

    Returns
    -------
    Tensor of shape [WB, ...]
        The rows of all $W$ processes; without a process group `z` itself.

    Raises
    ------
    ValueError
        If the processes hold batches of different sizes.

    Notes
    -----
    The gradient that a process passes back to its rows is the *sum* of their gradients in all
    processes, $W\,\partial L/\partial z$; `DistributedDataParallel` averages the gradients of the
    parameters over processes, and the mean is that of one process with the whole batch. Lightning's
    `all_gather(sync_grads=True)` does the same.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return z
    sizes = torch.cat(_parts(torch.full((1,), len(z), device=z.device)))
    message = (
        f"process {{row}} holds {{value}} rows and process {distributed.get_rank()} {len(z)}; "
        "use batches of one size (drop_last=True of the sampler or loader)"
    )
    _checks.raise_if(sizes != len(z), message, sizes)
    return _Gather.apply(z)


def _parts(z: Tensor) -> list[Tensor]:
    parts = [torch.empty_like(z) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, z)
    return parts


class _Gather(torch.autograd.Function):
    """The rows of all processes; the gradient of a process's rows is the sum over processes."""

    @staticmethod
    def forward(ctx, z):
        ctx.rows = len(z)
        return torch.cat(_parts(z.contiguous()))

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        # gloo sends memory as it lies, and keys' gradient is transposed
        total = gradient.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total)
        return total.split(ctx.rows)[distributed.get_rank()]
