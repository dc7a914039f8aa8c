"""Put public losses on the dial.

`python book/recorders/loss_profiles.py` writes `loss_profiles.json`.

`loss_profiles.toml` lists the losses. Each is called as its library ships it, never copied, with the
library's defaults (or the options of its row), on batches of `stages.npz` from early and late in two trainings. The
first four libraries and torch are
in requirements.txt. The others need packages that the book does not use; install them apart,

    pip install --no-deps --target EXTRA colpali-engine==0.3.18 info-nce-pytorch==0.1.4 \
        PyGCL==0.1.2 solo-learn==1.0.2

and run with `PYTHONPATH=EXTRA`; without them their rows stay as recorded. One thread, eight minutes.
"""

import hashlib
import importlib
import importlib.metadata
import json
import sys
import tomllib
import types
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch

from hnlib import methods
from hnlib._files import write_atomically
from hnlib.images import _torchvision  # noqa: F401, which other libraries import: see there
from hnlib.profile import profile_loss

FILE = Path(__file__).parents[1] / "results/loss_profiles.json"
LOSSES = Path(__file__).with_suffix(".toml")
ORDER = tuple(f"{data} {stage}" for data in ("cifar10", "scifact") for stage in ("early", "late"))
PACKAGES = {
    "pytorch-metric-learning": "pytorch_metric_learning.losses",
    "lightly": "lightly.loss",
    "sentence-transformers": "sentence_transformers.sentence_transformer.losses",
    "open_clip_torch": "open_clip.loss",
    "torch": "torch.nn",
    "colpali-engine": "colpali_engine.loss.bi_encoder_losses",
    "info-nce-pytorch": "info_nce",
    "PyGCL": "GCL.losses",
    "solo-learn": "solo.losses",
}
# Losses that no call with a batch of embeddings can reach, by what else they are of:
# - prototypes or logits: lightly CAPILoss, DINOLoss, IBOTPatchLoss, IBOTPlusPlusPatchLoss, MSNLoss,
#   PMSNLoss, SwaVLoss; solo-learn dino, swav, deepclusterv2;
# - several views, patches or masks: lightly DetConBLoss, DetConSLoss, MMCRLoss,
#   PatchKernelAlignmentLoss, VICRegLLoss;
# - a second model, a teacher's scores or tokens: sentence-transformers GISTEmbedLoss,
#   MarginMSELoss, DistillKLDivLoss, EmbedDistillLoss, MSELoss, SoftmaxLoss, ContrastiveTensionLoss,
#   AdaptiveLayerLoss; open_clip DistillClipLoss, CoCaLoss; solo-learn moco, ressl, nnclr (a queue);
# - random projections: lightly LeJEPALoss, LeWMLoss, SIGReg, VISRegLoss.


def available(library: str) -> bool:
    """Return whether a library is installed."""
    try:
        return library == "hnlib" or bool(module(library))
    except ImportError:
        return False


def module(package: str):
    """Return the module of a package that has its losses.

    PyGCL and solo-learn also import what their losses do not use and what no longer installs, so
    only the folder of their losses is imported.
    """
    name = PACKAGES[package]
    top = name.partition(".")[0]
    if top in ("GCL", "solo") and top not in sys.modules:
        folders = [str(Path(path) / top) for path in sys.path if (Path(path) / top).is_dir()]
        if not folders:
            raise ImportError(top)
        sys.modules[top] = types.ModuleType(top)
        sys.modules[top].__path__ = folders
    return importlib.import_module(name)


# --- how losses are called


def views(loss):
    """Of two views, or of queries and their answers."""
    return loss, False


def labelled(loss):
    """Of embeddings and labels; the two embeddings of a pair stand together and are a class."""
    return loss, True


def stacked(loss):
    """Of a list of views."""
    return (lambda a, b: loss([a, b])), False


def embedded(loss):
    """Of sentence-transformers, of queries and answers."""
    return (lambda a, b: loss.compute_loss_from_embeddings([a, b], torch.empty(0))), False


def classed(loss):
    """Of sentence-transformers, of embeddings and labels."""
    return (lambda z, labels: loss.compute_loss_from_embeddings([z], labels)), True


def referred(loss):
    """Of pytorch-metric-learning without labels: embeddings and others to which they refer."""
    return (lambda a, b: loss(a, ref_emb=b)), False


def every_pair(loss):
    """Of every query with every key, and whether it is the answer (1 or 0; in torch.nn 1 or −1)."""

    def of_pairs(a, b):
        n, m = len(a), len(b)
        same = torch.eye(n, m).flatten()
        pairs = [a.repeat_interleave(m, 0), b.repeat(n, 1)]
        of_sentences = getattr(loss, "compute_loss_from_embeddings", None)
        return of_sentences(pairs, same) if of_sentences else loss(*pairs, 2 * same - 1)

    return of_pairs, False


def every_triplet(loss):
    """Of every query, its answer and every other key."""

    def of_triplets(a, b):
        i, j = (~torch.eye(len(a), len(b), dtype=torch.bool)).nonzero().T
        triplets = [a[i], b[i], b[j]]
        of_sentences = getattr(loss, "compute_loss_from_embeddings", None)
        return of_sentences(triplets, torch.empty(0)) if of_sentences else loss(*triplets)

    return of_triplets, False


def masked(loss):
    """Of PyGCL: anchors, samples, and masks of positives and negatives."""

    def of_masks(a, b):
        own = torch.eye(len(a), len(b), dtype=a.dtype)
        return loss.compute(a, b, own, 1 - own)

    return of_masks, False


def halves(method):
    """Of this library; the two views of a pair are a class where there are labels."""

    def of_halves(a, b):
        more = {"labels": torch.arange(len(a))} if method.entry.supervised else {}
        more |= {"features": (a, b)} if method.entry.features else {}
        return method(a, b, **more)

    return of_halves, False


# --- which losses


def rows() -> list[tuple]:
    """Return the rows: library, loss, and a function that returns (callable, whether of labels)."""
    ours = [*methods.CATALOGUE, *methods.EXAMPLES]
    every = [("hnlib", name, partial(build, "hnlib", "halves", name)) for name in ours]
    for group in tomllib.loads(LOSSES.read_text(encoding="utf-8"))["groups"]:
        library, call = group["library"], group["call"]
        for loss in group["losses"]:
            options = dict(loss) if isinstance(loss, dict) else {"name": loss}
            name = options.pop("name")
            given = [f"{key}={value}" for key, value in options.items()]
            shown = options.pop("shown", f"{name} {', '.join(given)}".strip())
            every.append((library, shown, partial(build, library, call, name, **options)))
    return every


def build(library: str, call: str, name: str, **options):
    """Build a loss as its library ships it, and return how it is called, and whether of labels."""
    if library == "hnlib":
        example = name in methods.EXAMPLES
        return halves(methods.example(name).build() if example else methods.build(name, **options))
    losses = module(library)
    if call == "scaled":  # scale and bias are arguments of the call
        scaled = getattr(losses, name)()
        return (lambda a, b: scaled(a, b, *options.values())), False
    if name == "CrossBatchMemory":  # of another loss
        options["loss"] = getattr(losses, options["loss"])()
    loss = getattr(losses, name)
    if library == "sentence-transformers":
        options["model"] = None
    return globals()[call](partial(loss, **options) if name.islower() else loss(**options))


# --- what is recorded


def measured(build, a: torch.Tensor, b: torch.Tensor) -> dict:
    """Return a row's numbers on one batch, or why there are none."""
    torch.manual_seed(0)  # class weights
    try:
        loss, labels = build()
        if labels:
            a, b = torch.stack([a, b], 1).flatten(0, 1), torch.arange(len(a)).repeat_interleave(2)
        found = profile_loss(loss, a, b)
    except (ValueError, TypeError) as error:  # the latter of how it is built
        return {"error": str(error)}
    if not (found.foreign or found.nearest):
        return {"error": found.verdict}
    numbers = {"residual": found.residual}
    if found.nearest:
        loud = found.loudness
        one, two, three = found.nearest
        slopes = [slope for _, slope in found.local]
        numbers |= dict(
            asymmetry=found.asymmetry,
            sharpness=found.sharpness,
            misfit=found.misfit,
            r2=found.r2,
            low=min(slopes, default=None),
            high=max(slopes, default=None),
            quiet=float(loud.quantile(0.1) / loud.mean()),
            balance=found.balance,
            silent=found.silent,
            attracted=found.attracted,
            angle=one.angle,
            temperature=one.temperature,
            loudness=two.loudness,
            angle_loudness=two.angle,
            angle_balance=three.angle,
        )
    return {name: x if x is None else float(f"{x:.5g}") for name, x in numbers.items()}


def main() -> None:
    """Measure the rows whose packages are there, keep the others, and write, one row a line."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    stages = FILE.with_name("stages.npz")
    ledger = json.loads(FILE.read_text(encoding="utf-8"))
    known = {(row["library"], row["loss"]): row for row in ledger["rows"]}
    with np.load(stages) as file:
        batches = {name: [*map(torch.from_numpy, file[name])] for name in ORDER}
    lines = []
    for library, name, build in rows():
        row = known.get((library, name))
        if available(library):
            found = {batch: measured(build, *z) for batch, z in batches.items()}
            row = dict(library=library, loss=name, batches=found)
            if library != "hnlib":
                ledger["versions"][library] = importlib.metadata.version(library)
        if row:
            lines.append(json.dumps(row))
            print(f"{library:24}{name:48}{row['batches'][ORDER[0]].get('sharpness')}", flush=True)
    ledger["versions"]["torch"] = torch.__version__.partition("+")[0]
    digest = hashlib.sha256(stages.read_bytes()).hexdigest()
    head, body = json.dumps(dict(versions=ledger["versions"], batches=digest)), ",\n".join(lines)
    write_atomically(FILE, f'{head[:-1]}, "rows": [\n{body}\n]}}\n'.encode())


if __name__ == "__main__":
    main()
