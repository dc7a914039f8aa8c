"""Search how many documents d dimensions serve: `python book/recorders/limit.py`.

Free unit vectors, a query for every pair of documents, trained by Adam with every vector set to
unit length after each step, as in LIMIT (arXiv 2508.21038). `limit.toml` says what is run and when
a run has solved its queries. Runs of one shape are trained as one tensor. Writes `limit.csv` after
each search step and goes on from what is there. One thread, about three hours.
"""

from __future__ import annotations

import io
import math
from dataclasses import asdict, dataclass
from types import SimpleNamespace

import ledgers
import numpy as np
import pandas as pd
import torch
from torch import Tensor

from hnbook import limit

EVERY = 50  # steps between two evaluations
PATIENCE, IMPROVEMENT = 1000, 1e-5  # with which LIMIT's code ends a training, by its loss
WARM = 0.5  # temperature from which an annealed run starts


@dataclass(frozen=True)
class Run:
    """One training: a loss, a start and a seed."""

    part: str
    t: float
    seed: int
    beta: float = 0.0

    @property
    def kept(self) -> bool:
        """Whether it starts from a solution, which it has to keep."""
        return self.part == "curve"


def start(run: Run, n: int, d: int) -> Tensor:
    """Return unit queries and documents [C(n, 2) + n, d]: random, or a randomly turned curve."""
    generator = torch.Generator().manual_seed(run.seed)
    if run.kept:
        turn = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.double))[0]
        return (torch.from_numpy(np.concatenate(limit.curve(n))) @ turn).float()
    return torch.nn.functional.normalize(torch.randn(math.comb(n, 2) + n, d, generator=generator))


def residuals(s: Tensor, t: Tensor, beta: Tensor, dcl: Tensor, relevant: Tensor) -> tuple:
    """Return the loss [runs] and t times its gradient in the scores s [runs, queries, n].

    With relevant documents S of a query, the loss is log Σ_j e^{s_j/t} − mean_{i ∈ S} s_i/t, here
    its mean over queries; the gradient is that of the sum. A tilt β multiplies an irrelevant
    document's term by (n − k) w_j, w ∝ e^{β s/t}, held fixed; DCL leaves the relevant documents out
    of the sum. t, beta and dcl are [runs, 1, 1]; relevant is [queries, k].
    """
    relevant = relevant.expand(len(s), -1, -1)
    z = s / t
    logits = z
    if beta.any() or dcl.any():
        others = z.scatter(2, relevant, -math.inf)
        weights = math.log(s.shape[2] - limit.K) + torch.log_softmax(beta * others, 2)
        tilted = z + weights.scatter(2, relevant, 0.0)
        logits = torch.where(dcl, others, torch.where(beta > 0, tilted, z))
    shares = torch.log_softmax(logits, 2)
    top = logits.argmax(2, keepdim=True) if dcl.any() else relevant[..., :1]
    total = logits.gather(2, top) - shares.gather(2, top)  # logarithm of the sum
    loss = (total[..., 0] - z.gather(2, relevant).mean(2)).mean(1)
    wanted = shares.new_full(relevant.shape, -1 / limit.K)
    return loss, shares.exp_().scatter_add_(2, relevant, wanted)


def train(runs: list[Run], n: int, d: int, steps: int, rate: float) -> list[dict]:
    """Train runs of one shape together and return a row for each.

    A run that starts at random ends with its first evaluation at which every query is right. But
    for rounding, no run depends on those beside it.
    """
    relevant = torch.from_numpy(limit.subsets(n))
    queries = len(relevant)
    x = torch.stack([start(run, n, d) for run in runs])
    columns = {
        "beta": [run.beta for run in runs],
        "dcl": [run.part == "dcl" for run in runs],
        "goal": [run.t for run in runs],
        "cooled": [run.part == "annealed" for run in runs],
    }
    columns = {name: torch.tensor(values)[:, None, None] for name, values in columns.items()}
    stack = SimpleNamespace(x=x, mean=torch.zeros_like(x), square=torch.zeros_like(x), **columns)
    stack.row = torch.arange(len(runs))
    stack.low, stack.since = torch.full((len(runs),), math.inf), torch.zeros(len(runs))
    rows = [dict(d=d, n=n, **asdict(run), best=-1.0, step=0, stopped=None) for run in runs]
    for step in range(steps + 1):
        s = stack.x[:, :queries] @ stack.x[:, queries:].transpose(1, 2)  # [runs, queries, n]
        if step % EVERY == 0:
            t = temperature(stack, step / steps)
            loss, _ = residuals(s, t, stack.beta, stack.dcl, relevant)
            there = [rows[i] for i in stack.row.tolist()]
            evaluate(there, s, loss, relevant, step)
            stay = torch.tensor([runs[i].kept or not rows[i]["solved"] for i in stack.row])
            if not stay.any():
                break
            vars(stack).update({name: value[stay] for name, value in vars(stack).items()})
            s = s[stay]
        t = temperature(stack, step / steps)
        loss, pull = residuals(s, t, stack.beta, stack.dcl, relevant)
        better = loss < stack.low - IMPROVEMENT
        stack.low = torch.where(better, loss, stack.low)
        stack.since = torch.where(better, 0, stack.since + 1)
        for i in stack.row[stack.since == PATIENCE].tolist():
            rows[i]["stopped"] = rows[i]["stopped"] or step
        of_queries = pull @ stack.x[:, queries:]
        of_documents = pull.transpose(1, 2) @ stack.x[:, :queries]
        gradient = torch.cat([of_queries, of_documents], 1) / (t * queries)
        stack.mean.lerp_(gradient, 0.1)
        stack.square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        size = (stack.square / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8
        moved = stack.x - rate / (1 - 0.9 ** (step + 1)) * stack.mean / size
        stack.x = torch.nn.functional.normalize(moved, dim=2)
    return rows


def temperature(stack: SimpleNamespace, share: float) -> Tensor:
    """Return the temperatures [runs, 1, 1] after a share of the steps."""
    cooling = WARM * (stack.goal / WARM) ** min(1, 2 * share)
    return torch.where(stack.cooled, cooling, stack.goal)


def evaluate(there: list[dict], s: Tensor, loss: Tensor, relevant: Tensor, step: int) -> None:
    """Note in the rows of the runs how many relevant documents are ranked on top, and by how much."""
    relevant = relevant.expand(len(s), -1, -1)
    hit = torch.zeros_like(s, dtype=torch.bool).scatter_(2, relevant, True)
    on_top = hit.gather(2, s.topk(limit.K, 2).indices).sum((1, 2)).tolist()
    ahead = s.gather(2, relevant).amin(2) - s.masked_fill(hit, -math.inf).amax(2)
    whole = relevant[0].numel()
    for row, right, value, margin in zip(there, on_top, loss.tolist(), ahead.amin(1).tolist()):
        row |= dict(last=round(right / whole, 6), loss=round(value, 6), margin=round(margin, 7))
        row["solved"] = right == whole
        if row["last"] > row["best"]:
            row |= dict(best=row["last"], step=step)


def proposal(low: int, high: int | None, first: int, most: int) -> int | None:
    """Return the next n to try: `first`, then four more at a time, then halfway; None at the end.

    All n up to `low` count as solved; `high` is the smallest that was not, if any was tried.
    """
    if high is None:
        return None if low >= most else first if low <= limit.K + 1 else min(low + 4, most)
    return None if high - low == 1 else (low + high) // 2


def search(part: dict, d: int, plan: dict, ledger: list[dict]) -> None:
    """Find the critical n of each setting of a part in d dimensions; add its rows to the ledger."""
    settings = [(t, beta) for t in part["temperatures"] for beta in part.get("betas", [0.0])]
    brackets = dict.fromkeys(settings, (limit.K + 1, None))
    first = plan["first"][str(d)]
    while True:
        ask = {key: proposal(*ends, first, plan["most"]) for key, ends in brackets.items()}
        if not (left := [n for n in ask.values() if n]):
            return
        n = min(left)
        of = [key for key, (low, high) in brackets.items() if low < n and (not high or n < high)]
        runs = [Run(part["name"], *key[:1], seed, key[1]) for key in of for seed in plan["seeds"]]
        have = {(r["part"], r["d"], r["n"], r["t"], r["beta"], r["seed"]): r for r in ledger}
        names = [(r.part, d, n, r.t, r.beta, r.seed) for r in runs]
        if missing := [run for run, name in zip(runs, names) if name not in have]:
            rows = train(missing, n, d, part["steps"], part["rate"])
            ledger += rows
            have |= {(r["part"], r["d"], r["n"], r["t"], r["beta"], r["seed"]): r for r in rows}
            ledgers.write("limit.csv", as_csv(ledger))
        for key in of:
            all_solved = all(have[part["name"], d, n, *key, s]["solved"] for s in plan["seeds"])
            low, high = brackets[key]
            brackets[key] = (n, high) if all_solved else (low, n)
            print(part["name"], d, n, *key, "solved" if all_solved else "not solved", flush=True)


def as_csv(ledger: list[dict]) -> bytes:
    """Return the rows as a file; steps are whole numbers, and empty where nothing happened."""
    frame = pd.DataFrame(ledger)
    frame["stopped"] = frame["stopped"].astype("Int64")
    file = io.StringIO()
    frame.to_csv(file, index=False, lineterminator="\n")
    return file.getvalue().encode()


def main() -> None:
    """Run every part of the plan, in its order."""
    torch.set_num_threads(1)
    plan, ledger = limit.plan(), []
    if (ledgers.FOLDER / "limit.csv").exists():
        ledger = pd.read_csv(ledgers.FOLDER / "limit.csv").to_dict("records")
    parts = {part["name"]: part for part in plan["parts"]}
    for name, d in plan["order"]:
        search(parts[name], d, plan, ledger)


if __name__ == "__main__":
    main()
