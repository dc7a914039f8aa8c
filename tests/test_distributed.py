"""Two processes against one: rows, losses and gradients."""

import pytest
import torch
from processes import run_twice
from torch import nn

from hnlib import methods

PROCESS = r"""
import sys, torch
from torch import distributed, nn
from hnlib import methods
from hnlib.distributed import gather

folder = sys.argv[1]
distributed.init_process_group("gloo")
rank = distributed.get_rank()
x1, x2, y = (x.chunk(2)[rank] for x in torch.load(f"{folder}/batch.pt"))
torch.manual_seed(0)
net = nn.Linear(5, 3, dtype=torch.float64)
model = nn.parallel.DistributedDataParallel(net)
z1, z2, labels = gather(model(x1)), gather(model(x2)), gather(y)
loss = methods.build("h-scl", positives="view")(z1, z2, labels)
loss = loss + methods.build("simclr").pairs(z1, z2, both=True)  # whose gradient is transposed
loss.backward()
try:
    gather(x1[rank:])
except ValueError as error:
    refused = [str(error)]
x = x1.clone().requires_grad_()
first = torch.autograd.grad(gather(x).pow(3).sum(), x, create_graph=True)[0]
try:
    first.pow(2).sum().backward()
except RuntimeError as error:
    refused.append(str(error))
torch.save([z1.detach(), labels, loss.detach(), net.weight.grad, refused], f"{folder}/{rank}.pt")
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_are_one_and_refuse_uneven_batches_and_second_derivatives(tmp_path):
    g = torch.Generator().manual_seed(0)
    x1, x2 = torch.randn(2, 8, 5, dtype=torch.float64, generator=g)
    y = torch.tensor([0, 1, 2, 3] * 2)
    torch.save((x1, x2, y), tmp_path / "batch.pt")
    assert run_twice(PROCESS, tmp_path) == 0

    torch.manual_seed(0)
    net = nn.Linear(5, 3, dtype=torch.float64)
    z1, z2 = net(x1), net(x2)
    loss = methods.build("h-scl", positives="view")(z1, z2, y)
    loss = loss + methods.build("simclr").pairs(z1, z2, both=True)
    loss.backward()
    for rank in (0, 1):
        rows, labels, value, gradient, refused = torch.load(tmp_path / f"{rank}.pt")
        assert torch.equal(labels, y)
        torch.testing.assert_close(rows, z1.detach(), rtol=0, atol=1e-12)
        torch.testing.assert_close(value, loss.detach(), rtol=0, atol=1e-12)
        torch.testing.assert_close(gradient, net.weight.grad, rtol=0, atol=1e-12)
        uneven, second = refused
        assert f"process {1 - rank} holds {4 - (1 - rank)} rows and process {rank}" in uneven
        assert "once_differentiable" in second
