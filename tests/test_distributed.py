"""Two processes against one: rows, losses and gradients."""

import pytest
import torch
from drawn import views
from processes import two_processes
from torch import nn

from hnlib import methods
from hnlib.distributed import gather

PROCESS = r"""
x1, x2, y = (x.chunk(2)[rank] for x in torch.load(f"{folder}/batch.pt"))
torch.manual_seed(0)
net = nn.Linear(5, 3, dtype=torch.float64)
model = nn.parallel.DistributedDataParallel(net)
z1, z2, labels = gather(model(x1)), gather(model(x2)), gather(y)
loss = methods.build("h-scl", positives="view")(z1, z2, labels)
loss.backward()
run = [z1.detach(), labels, loss.detach(), net.weight.grad]
try:
    gather(x1[rank:])
except ValueError as error:
    uneven = str(error)
x = x1.clone().requires_grad_()
first = torch.autograd.grad(gather(x).pow(3).sum(), x, create_graph=True)[0]
try:
    first.pow(2).sum().backward()
except RuntimeError as error:
    second = str(error)
torch.save({"run": run, "uneven": uneven, "second": second}, f"{folder}/{rank}.pt")
"""
BATCH = *views(size=8, dimension=5), torch.tensor([0, 1, 2, 3] * 2)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What two processes come to on half of the batch each."""
    folder = tmp_path_factory.mktemp("ranks")
    torch.save(BATCH, folder / "batch.pt")
    assert two_processes(PROCESS, folder) == [0, 0]
    return [torch.load(folder / f"{rank}.pt") for rank in (0, 1)]


@pytest.mark.slow
def test_two_processes_are_one(ranks):
    x1, x2, y = BATCH
    torch.manual_seed(0)
    net = nn.Linear(5, 3, dtype=torch.float64)
    z1, z2 = net(x1), net(x2)
    loss = methods.build("h-scl", positives="view")(z1, z2, y)
    loss.backward()
    for rank in ranks:
        expected = [z1.detach(), y, loss.detach(), net.weight.grad]
        torch.testing.assert_close(rank["run"], expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_uneven_batches_are_refused_by_both_processes(ranks):
    for k, rank in enumerate(ranks):
        assert f"process {1 - k} holds {3 + k} rows and process {k}" in rank["uneven"]


@pytest.mark.slow
def test_second_derivatives_across_processes_are_refused(ranks):
    assert all("once_differentiable" in rank["second"] for rank in ranks)


def test_without_a_process_group_it_is_the_batch_itself():
    z = torch.ones(2, 3, requires_grad=True)
    assert gather(z) is z
