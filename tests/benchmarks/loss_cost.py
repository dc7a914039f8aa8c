"""Cost of every loss, forward and backward, as a ratio to the floor `S = z zᵀ/t; logsumexp; mean;
backward`; and, if asked, as a ratio to the same loss of another version of the library.

    python tests/benchmarks/loss_cost.py [hcl ot …] [--against CHECKOUT] [--batch 512]
    [--dimension 128] [--threads 2] [--repeats 60]

One process, losses interleaved round by round so that a drift of the machine hits all alike;
medians of the ratios within a round. CHECKOUT is a folder that holds another `hnlib`, as in `git
worktree add ../before v0.1.0`: both versions are imported here, and take turns in going first. The
exit status is 1 if a loss costs more than its target, or over 5 % more than there, in the median of
the rounds and in the fastest round, which a busy machine disturbs least.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median

import torch

ROOT = Path(__file__).resolve().parents[2]
SLOWER = 1.05
TARGETS = {  # times the floor, with two threads, 512 pairs and 128 dimensions (DESIGN, section 8)
    "simclr": 1.1,
    "debiased": 1.1,
    "ot": 1.8,
    "unremix": 3.3,
    "chi2-dro": 5.0,
}
VARIANTS = {  # beside the catalogue
    "hcl, detached": ("hcl", {"weights_gradient": False}),
    "h-scl, detached": ("h-scl", {"weights_gradient": False}),
}


def version(root: Path):
    """`hnlib.methods` of the checkout at `root`, beside those that are imported already."""
    ours = lambda: [name for name in sys.modules if name.partition(".")[0] == "hnlib"]  # noqa: E731
    others = {name: sys.modules.pop(name) for name in ours()}
    sys.path.insert(0, str(root))
    try:
        return import_module("hnlib.methods")
    finally:
        sys.path.remove(str(root))
        for name in ours():
            del sys.modules[name]
        sys.modules.update(others)


def floor(z: torch.Tensor, temperature: float = 0.5) -> torch.Tensor:
    return torch.logsumexp(z @ z.T / temperature, 1).mean()


def spread_embeddings(batch: int, dimension: int):
    """Two noisy views of clustered unit vectors, and which cluster: similarities spread as in
    training, not all near zero. What the last layer of the usual projector is given, too."""
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (batch,), generator=g)
    x = torch.randn(10, dimension, generator=g)[labels]
    x = x + torch.randn(batch, dimension, generator=g)
    views = x + 0.5 * torch.randn(2, batch, dimension, generator=g)
    views = torch.nn.functional.normalize(views, dim=2)
    hidden = torch.relu(views @ torch.randn(dimension, 512, generator=g))
    return views, labels, hidden


def cases(methods, views, labels, hidden) -> dict:
    """name → a function of no arguments that makes the loss, for all of the catalogue and more;
    "NAME, pairs" is that of as many pairs as there are embeddings, a matrix of the same size."""
    built = {name: methods.build(name) for name in methods.CATALOGUE}
    built |= {name: methods.build(row, **more) for name, (row, more) in VARIANTS.items()}
    z1, z2 = (v.clone().requires_grad_() for v in views)
    of_views = {
        name: partial(method, z1, z2, labels, tuple(hidden) if method.entry.features else None)
        for name, method in built.items()
    }
    queries, keys = (v.requires_grad_() for v in spread_embeddings(2 * len(z1), z1.shape[1])[0])
    of_pairs = {
        f"{name}, pairs": partial(method.pairs, queries, keys)
        for name, method in built.items()
        if hasattr(method, "pairs") and not method.entry.supervised and "unremix" not in name
    }
    return of_views | of_pairs


def timed(loss) -> float:
    start = time.perf_counter()
    loss().backward()
    return time.perf_counter() - start


def measured(losses: dict, repeats: int, turns: list[list[str]]) -> dict[str, list[float]]:
    """Seconds of each loss in each round; losses of one turn go forwards and backwards by turns."""
    times = {name: [] for name in losses}
    for repeat in range(repeats + 5):
        for turn in turns:
            for name in turn[:: 1 if repeat % 2 else -1]:
                times[name].append(timed(losses[name]))
    return {name: spent[5:] for name, spent in times.items()}  # without allocations


def target(name: str, loss: partial) -> float | None:
    """How often the floor a loss may cost; None where nobody has said."""
    name, method = name.removesuffix(", pairs"), getattr(loss.func, "__self__", loss.func)
    if name in TARGETS or not ("weights_gradient" in method.options or method.entry.supervised):
        return TARGETS.get(name)
    return 2.0 if method.options.get("weights_gradient") else 1.4


def main(argv: list[str] | None = None) -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("losses", nargs="*", help="default: all")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    for name, default in {"batch": 512, "dimension": 128, "threads": 2, "repeats": 60}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    examples = spread_embeddings(args.batch, args.dimension)
    z = examples[0].flatten(0, 1).requires_grad_()
    if args.against and not (args.against / "hnlib/methods.py").is_file():
        parser.error(f"{args.against} holds no hnlib; name a checkout of another version")
    new = cases(version(ROOT), *examples)
    if unknown := [name for name in args.losses if name not in new]:
        parser.error(f"{unknown[0]!r} is unknown; known: {'; '.join(new)}")
    old = cases(version(args.against.resolve()), *examples) if args.against else {}
    names = args.losses or list(new)
    losses = {"floor": partial(floor, z)} | {name: new[name] for name in names}
    losses |= {f"{name} before": old[name] for name in names if name in old}
    turns = [["floor"], *([n for n in (name, f"{name} before") if n in losses] for name in names)]
    times = measured(losses, args.repeats, turns)
    print(
        f"B={args.batch} pairs, d={args.dimension}, float32, {args.threads} threads, torch "
        f"{torch.__version__}, {platform.processor() or platform.machine()}"
    )
    base, failed = times["floor"], []
    print(f"{'floor':26s} {1e3 * median(base):7.2f} ms")
    for name in names:
        ratio, most = median(a / b for a, b in zip(times[name], base)), target(name, new[name])
        text = f"{name:26s} {1e3 * median(times[name]):7.2f} ms  {ratio:5.2f} × floor"
        text += "" if most is None else f" (at most {most:g})"
        if most is not None and ratio > most:
            failed.append(f"{name}: {ratio:.2f} × floor, at most {most:g}")
        if before := times.get(f"{name} before"):
            change = median(a / b for a, b in zip(times[name], before))
            text += f"  {change:5.2f} × before"
            if min(change, min(times[name]) / min(before)) > SLOWER:
                failed.append(f"{name}: {change:.2f} × before")
        print(text)
    print("\n".join(["", "too slow:", *failed]) if failed else "\nnothing is too slow")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
