"""The rows of all processes as one batch, for training loops under torch.distributed."""

from __future__ import annotations

import torch
from torch import Tensor, distributed

from hnlib import _checks


def gather(z: Tensor) -> Tensor:
    r"""The rows of `z` $[B,\dots]$ of all $W$ processes, $[WB,\dots]$, in the order of their ranks.

    Every process then computes the loss of the whole batch, $L$, the same in each:

        z1, z2 = gather(model(view1)), gather(model(view2))
        methods.build("hcl")(z1, z2).backward()

    The gradient that a process hands back to its own rows is the *sum* of what arrives for them in
    all processes, $W\,\partial L/\partial z$; `DistributedDataParallel` averages the gradients of
    the parameters over processes, and the mean is that of one process with the whole batch.
    Lightning's `all_gather(sync_grads=True)` does the same. Labels, or whatever needs no gradient,
    are gathered without. Without a process group, or in a group of one, `z` itself.

    ValueError: processes that hold batches of different size (on an accelerator when
    `_checks.deferred` is asked).
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return z
    if distributed.get_world_size() == 1:
        return z
    from torch.distributed.nn.functional import all_gather  # not in every build of torch

    sizes = torch.cat(all_gather(torch.full((1,), len(z), device=z.device)))
    uneven = (
        f"process {{row}} holds {{value}} rows and process {distributed.get_rank()} {len(z)}; "
        "give all processes batches of one size (drop_last=True of the sampler or loader)"
    )
    _checks.refuse(sizes != len(z), uneven, sizes)
    return torch.cat(all_gather(z.contiguous()))
