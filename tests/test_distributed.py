"""Two processes against one: rows, labels, gradients; `test_faults` trains in two."""

import pytest
import torch
from processes import run_twice

from hnlib import methods

PROCESS = r"""
import sys, torch
from torch import distributed
from hnlib import methods
from hnlib.distributed import gather

folder = sys.argv[1]
distributed.init_process_group("gloo")
rank = distributed.get_rank()
own = [x.chunk(2)[rank].requires_grad_() for x in torch.load(f"{folder}/views.pt")]
z1, z2 = map(gather, own)
methods.build("simclr").pairs(z1, z2, both=True).backward()  # whose gradient is transposed
refused = []
for wrong in (
    lambda: gather(own[0][rank:]),
    lambda: torch.autograd.grad(gather(own[0]).pow(3).sum(), own[0], create_graph=True)[0].sum(),
):
    try:
        wrong().backward()
    except (ValueError, RuntimeError) as error:
        refused.append(str(error))
labels = gather(torch.arange(4) + 4 * rank)
torch.save([z1.detach(), labels, [x.grad for x in own], refused], f"{folder}/{rank}.pt")
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_are_one_and_refuse_uneven_batches_and_second_derivatives(tmp_path):
    g = torch.Generator().manual_seed(0)
    views = torch.randn(2, 8, 5, dtype=torch.float64, generator=g)
    torch.save(list(views), tmp_path / "views.pt")
    assert run_twice(PROCESS, tmp_path) == 0

    z = views.requires_grad_()
    (gradient,) = torch.autograd.grad(methods.build("simclr").pairs(*z, both=True), z)
    for rank in (0, 1):
        rows, labels, found, refused = torch.load(tmp_path / f"{rank}.pt")
        assert torch.equal(rows, views[0]) and torch.equal(labels, torch.arange(8))
        # the sum over processes, of which DistributedDataParallel takes the mean
        expected = 2 * gradient[:, 4 * rank : 4 * rank + 4]
        torch.testing.assert_close(torch.stack(found), expected, rtol=0, atol=1e-12)
        uneven, second = refused
        assert f"process {1 - rank} holds {4 - (1 - rank)} rows and process {rank}" in uneven
        assert "once_differentiable" in second
