"""Two processes against one: rows and gradients; `test_faults` trains in two."""

import pytest
import torch
from drawn import seeded
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
try:
    gather(own[0][rank:])
except ValueError as error:
    refused = str(error)
torch.save([z1.detach(), [x.grad for x in own], refused], f"{folder}/{rank}.pt")
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_are_one_and_refuse_uneven_batches(tmp_path):
    views = torch.randn(2, 8, 5, dtype=torch.float64, generator=seeded())
    torch.save(list(views), tmp_path / "views.pt")
    assert run_twice(PROCESS, tmp_path) == 0
    z = views.requires_grad_()
    (gradient,) = torch.autograd.grad(methods.build("simclr").pairs(*z, both=True), z)
    for rank in (0, 1):
        rows, found, refused = torch.load(tmp_path / f"{rank}.pt")
        assert torch.equal(rows, views[0])
        # the sum over processes, of which DistributedDataParallel takes the mean
        expected = 2 * gradient[:, 4 * rank : 4 * rank + 4]
        torch.testing.assert_close(torch.stack(found), expected, rtol=0, atol=1e-12)
        assert f"process {1 - rank} holds {4 - (1 - rank)} rows and process {rank}" in refused
