"""Put public losses on the dial.

`python book/recorders/loss_profiles.py` writes `loss_profiles.json`.

`loss_profiles.toml` lists the losses. Each is called as its library ships it, never copied, with the
library's defaults (or the options of its row), on batches of `stages.npz` from early and late in two
trainings. The first four libraries and torch are in requirements.txt. Rows of the others, which the
book does not use, stay as recorded, unless `PYTHONPATH` has them:

    pip install --no-deps --target EXTRA colpali-engine==0.3.18 info-nce-pytorch==0.1.4

The losses of PyGCL 0.1.2 and solo-learn 1.0.2 were imported from their files alone, for the packages
no longer install. One thread, eight minutes.
"""

import hashlib
import importlib
import importlib.metadata
import tomllib
from functools import partial
from pathlib import Path

import ledgers
import numpy as np
import torch

from hnbook import chapters
from hnlib import methods
from hnlib.experiments import evidence
from hnlib.images import _torchvision  # noqa: F401, which other libraries import: see there
from hnlib.profile import profile_loss

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
        return library == "hnlib" or bool(importlib.import_module(PACKAGES[library]))
    except ImportError:
        return False


# --- how losses are called: of two views, or of queries and their answers, [n, d]


def of_sentences(loss, parts, labels=None):
    """Return a loss of sentence-transformers, or of torch, whose labels are 1 and −1."""
    if hasattr(loss, "compute_loss_from_embeddings"):
        return loss.compute_loss_from_embeddings(parts, labels)
    return loss(*parts) if labels is None else loss(*parts, 2 * labels - 1)


def every_pair(loss, a, b):
    """Return the loss of every query with every key, and whether it is the answer."""
    n, m = len(a), len(b)
    pairs = [a.repeat_interleave(m, 0), b.repeat(n, 1)]
    return of_sentences(loss, pairs, torch.eye(n, m).flatten())


def every_triplet(loss, a, b):
    """Return the loss of every query, its answer and every other key."""
    i, j = (~torch.eye(len(a), len(b), dtype=torch.bool)).nonzero().T
    return of_sentences(loss, [a[i], b[i], b[j]])


def masked(loss, a, b):
    """Return a loss of PyGCL, of masks of positives and negatives."""
    own = torch.eye(len(a), len(b), dtype=a.dtype)
    return loss.compute(a, b, own, 1 - own)


def halves(method, a, b):
    """Return a loss of this library; the views of a pair are a class where there are labels."""
    more = {"labels": torch.arange(len(a))} if method.entry.supervised else {}
    more |= {"features": (a, b)} if method.entry.features else {}
    return method(a, b, **more)


LABELLED = ("labelled", "classed")  # of embeddings and labels: a pair is a class
CALLS = {
    "views": lambda loss, a, b: loss(a, b),
    "labelled": lambda loss, z, labels: loss(z, labels),
    "stacked": lambda loss, a, b: loss([a, b]),
    "embedded": lambda loss, a, b: of_sentences(loss, [a, b]),
    "classed": lambda loss, z, labels: of_sentences(loss, [z], labels),
    "referred": lambda loss, a, b: loss(a, ref_emb=b),
    "every_pair": every_pair,
    "every_triplet": every_triplet,
    "masked": masked,
    "halves": halves,
}


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
        return partial(halves, chapters.build(name, **options)), False
    losses = importlib.import_module(PACKAGES[library])
    loss = getattr(losses, name)
    if call == "scaled":  # scale and bias are arguments of the call
        scaled = loss()
        return (lambda a, b: scaled(a, b, *options.values())), False
    if name == "CrossBatchMemory":  # of another loss
        options["loss"] = getattr(losses, options["loss"])()
    if library == "sentence-transformers":
        options["model"] = None
    built = partial(loss, **options) if name.islower() else loss(**options)
    return partial(CALLS[call], built), call in LABELLED


# --- what is recorded

FITTED = ("sharpness", "misfit", "r2", "balance", "attracted")
FAMILIES = ("", "_loudness", "_balance")


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
        slopes = [slope for _, slope in found.local]
        numbers |= {name: getattr(found, name) for name in FITTED}
        for family, near in zip(FAMILIES, found.nearest, strict=True):
            numbers |= {f"angle{family}": near.angle, f"temperature{family}": near.temperature}
        numbers |= dict(low=min(slopes, default=None), high=max(slopes, default=None))
        numbers["quiet"] = float(found.loudness.quantile(0.1) / found.loudness.mean())
    return {name: x if x is None else float(f"{x:.5g}") for name, x in numbers.items()}


def ledger() -> dict:
    """Measure the rows whose packages are there, and keep the others."""
    stages, kept = evidence.path("stages.npz"), evidence.measurement("loss_profiles")
    known = {(row["library"], row["loss"]): row for row in kept["rows"]}
    with np.load(stages) as file:
        batches = {name: [*map(torch.from_numpy, file[name])] for name in ORDER}
    for library, name, build in rows():
        if available(library):
            found = {batch: measured(build, *z) for batch, z in batches.items()}
            known[library, name] = dict(library=library, loss=name, batches=found)
            if library != "hnlib":
                kept["versions"][library] = importlib.metadata.version(library).partition("+")[0]
    kept["batches"] = hashlib.sha256(stages.read_bytes()).hexdigest()
    kept["rows"] = [known[library, name] for library, name, _ in rows()]
    return kept


if __name__ == "__main__":
    ledgers.record("loss_profiles.json", ledger)
