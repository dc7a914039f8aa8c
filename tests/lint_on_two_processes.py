"""Losses of two processes, right and wrong; run under torchrun, it writes what the linter finds.

torchrun --nproc-per-node 2 tests/lint_on_two_processes.py FOLDER
"""

import json
import sys
from pathlib import Path

import torch
from lint_programs import batch, ranking
from torch import distributed
from torch.distributed.nn import functional as with_gradients
from torch.nn.functional import cross_entropy, normalize, relu

from hnlib import methods
from hnlib.distributed import gather
from hnlib.lint import lint


def of_all(z):
    """The rows of all processes without a gradient."""
    parts = [torch.empty_like(z) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, z.detach())
    return parts


def own_put_back(z):
    """The rows of all processes, of which this process's have a gradient."""
    parts = of_all(z)
    parts[distributed.get_rank()] = z
    return torch.cat(parts)


def whole(q, k, gathered, factor=1):
    return factor * ranking(gathered(q), gathered(k))


def local(q, k, gathered):
    """Own queries against the keys of all."""
    places = torch.arange(len(q)) + distributed.get_rank() * len(q)
    return cross_entropy(normalize(q) @ normalize(gathered(k)).T / 0.07, places)


def both(q, k, gathered):
    """Own rows against those of all, both ways."""
    return (local(q, k, gathered) + local(k, q, gathered)) / 2


def unshifted(q, k):
    """Own queries against the keys of all, as if the first were this process's."""
    return cross_entropy(normalize(q) @ normalize(gather(k)).T / 0.07, torch.arange(len(q)))


def triplet(q, k, factor):
    q, k = (normalize(own_put_back(z)) for z in (q, k))
    s = q @ k.T
    return factor * relu(0.5 + s - s.diagonal()[:, None]).mean()


def barlow(z1, z2, summed):
    """Barlow Twins of columns that were standardised by each process."""
    z1, z2 = ((z - z.mean(0)) / z.std(0) for z in (z1, z2))
    c = summed(z1.T @ z2 / len(z1)) / distributed.get_world_size()
    off = c - torch.diag(c.diagonal())
    return (c.diagonal() - 1).square().sum() + 0.01 * off.square().sum()


def sum_without_gradient(c):
    total = c.detach().clone()
    distributed.all_reduce(total)
    return total + c - c.detach()


def compensated(q, k):
    """The gradient twice, the value once, as ms-swift #10081 repairs it."""
    loss = whole(q, k, own_put_back)
    return 2 * loss - loss.detach()


def supcon(z1, z2, labels, gathered):
    """SupCon of the views and labels of all processes."""
    return methods.build("supcon")(gathered(z1), gathered(z2), torch.cat(of_all(labels)))


def mined_put_back(q, k):
    """Two towers with mined negatives, own rows alone with gradient."""
    keys = torch.cat([own_put_back(k), own_put_back(k.flip(1))])
    return ranking(own_put_back(q), keys)


CASES = {
    "modelscope/ms-swift#10081": lambda q, k: whole(q, k, own_put_back),
    "lightly-ai/lightly#1977": lambda q, k: barlow(q, k, sum_without_gradient),
    "ShiqiYu/OpenGait#36": lambda q, k: triplet(q, k, 1),
    "princeton-nlp/SimCSE#212": lambda q, k: whole(q, k, own_put_back),
    "modelscope/ms-swift#10150": mined_put_back,
    "modelscope/ms-swift#5477": lambda q, k: local(q, k, own_put_back),
    "KevinMusgrave/pytorch-metric-learning#562": lambda q, k: whole(q, k, gather, 2),
    "modelscope/ms-swift#5477, doubled": lambda q, k: 2 * local(q, k, own_put_back),
    "unshifted": unshifted,
    "alike, own rows": lambda q, k: both(q, k, lambda z: torch.cat(of_all(z))),
    "right: alike, own rows": lambda q, k: both(q, k, gather),
    "right: gathered with gradients": lambda q, k: whole(q, k, gather),
    "right: own queries": lambda q, k: local(q, k, gather),
    # Lightning's all_gather(z, sync_grads=True) calls it, too
    "right: torch's gather": lambda q, k: local(
        q, k, lambda z: torch.cat(with_gradients.all_gather(z))
    ),
    "right: no gather": ranking,
    "right: all is won at a low temperature": lambda q, k: cross_entropy(
        gather(q) @ gather(k).T / 0.02, torch.arange(2 * len(q))
    ),
    "right: multiplied": lambda q, k: whole(q, k, own_put_back, 2),
    "right: compensated": compensated,
    "right: summed with gradient": lambda q, k: barlow(q, k, with_gradients.all_reduce),
    "SupContrast, rows put back": lambda q, k, y: supcon(q, k, y, own_put_back),
    "right: supcon": lambda q, k, y: supcon(q, k, y, gather),
    "right: hcl": lambda q, k: methods.build("hcl")(gather(q), gather(k)),
}


def main(folder):
    distributed.init_process_group("gloo")
    torch.set_num_threads(1)
    given = [normalize(z) for z in batch(10 * distributed.get_rank(), 16)]
    labels = torch.arange(len(given[0])) % 4
    alike = [normalize(z + 3 * torch.eye(z.shape[1])[0]) for z in given]  # as before a training
    labelled = {name: given + [labels] * ("upcon" in name.lower()) for name in CASES}
    labelled |= {name: alike for name in CASES if "alike" in name}
    found = {name: lint(loss, *labelled[name]).sentences for name, loss in CASES.items()}
    name = f"found{distributed.get_rank()}.json"
    Path(folder, name).write_text(json.dumps(found), encoding="utf-8")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
