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


CACHED = r"""
import sys, torch
from torch import distributed
from hnlib.integrations.sentence_transformers import HardNegatives

folder = sys.argv[1]
distributed.init_process_group("gloo")
rank = distributed.get_rank()
columns = [{"x": x.chunk(2)[rank]} for x in torch.load(f"{folder}/texts.pt")]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layers = torch.nn.Linear(5, 6), torch.nn.Tanh(), torch.nn.Linear(6, 4)
        self.layers = torch.nn.Sequential(*layers).double()

    def forward(self, features):
        return {"sentence_embedding": self.layers(features["x"])}


found = []
for size in (None, 2):
    model = torch.nn.parallel.DistributedDataParallel(Model())
    loss = HardNegatives(model, "hcl", gather_across_devices=True, mini_batch_size=size)
    for step in range(2):  # the second with the state that the first has left
        model.zero_grad()
        loss(columns).backward()
    found.append([p.grad for p in model.parameters()])
whole = Model()
texts = [{"x": x} for x in torch.load(f"{folder}/texts.pt")]
HardNegatives(whole, "hcl")(texts).backward()
found.append([p.grad for p in whole.parameters()])
torch.save(found, f"{folder}/{rank}.pt")
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_texts_embedded_some_at_a_time_on_two_processes_are_the_whole_batch(tmp_path):
    """As `DistributedDataParallel` averages gradients, which it must do once, after all parts."""
    texts = torch.randn(2, 10, 5, dtype=torch.float64, generator=seeded())
    torch.save(list(texts), tmp_path / "texts.pt")
    assert run_twice(CACHED, tmp_path) == 0
    for rank in (0, 1):
        plain, cached, whole = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(cached, whole, rtol=0, atol=1e-12)
        torch.testing.assert_close(plain, whole, rtol=0, atol=1e-12)
