"""Record the negatives on which four methods put their weight.

`python book/recorders/heaviest_negatives.py` trains the models that `_build/heaviest_negatives`
lacks, evaluates them on the test images of CIFAR-10, plain and in eval mode, and writes
`heaviest_negatives.json`. Anchors: the first test image of each of the first `CLASSES` classes.
Batches: consecutive test images. `own_by_pull_of`: the share of pull on the anchor's class by each
method's gradient in turn, on one encoder. `controls`: encoders of one sharpness, under the methods
and the controls.
"""

import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from hnlib import methods, objectives
from hnlib._files import project_root, write_atomically
from hnlib.contrast import Contrast
from hnlib.images import data
from hnlib.images import evaluation as readouts
from hnlib.images.config import ImageRun
from hnlib.training import checkpoint
from hnlib.training.train import train

SHOWN = (
    ("simclr", dict(temperature=0.5)),
    ("simclr", dict(temperature=0.1)),
    ("hcl", dict(temperature=0.5)),
    ("ot", dict(temperature=0.5)),
)
CONTROLS = (  # γ = (1 + β)/t = 4, as HCL's and transport's above
    ("simclr", dict(temperature=0.25)),
    ("hcl", dict(temperature=0.5, tau_plus=0.0, weights_gradient=False)),
)
SEEDS, CONTROL_SEEDS = 3, 2
COMMON = dict(dataset="cifar10", train_size=10_000, epochs=10, validation=5000)
COMMON |= dict(precision="bf16-mixed", experiment="retrieved")
BATCH, BATCHES, CLASSES, PICTURES, HEAVIEST = 512, 19, 6, 4, 10
DIGITS = 4  # of what is written


def trained(method: str, options: dict, seed: int) -> checkpoint.TrainedRun:
    """Return the saved run, trained first if there is none."""
    run = ImageRun(method=method, options=options, seed=seed, **COMMON)
    saved = project_root() / "_build/heaviest_negatives" / f"{run.name}.safetensors"
    if not saved.exists():
        train(run, save=saved, evaluate_every=0, progress=False)
    return checkpoint.load(saved)


@torch.no_grad()
def embedded(run: checkpoint.TrainedRun, x):
    """Return unit embeddings [N, d] of plain images, in eval mode, float64."""
    return functional.normalize(run.projector(readouts.embed(run.encoder, x)).double())


def pull(chosen: dict, z):
    """Return similarities and pull [n, n] of a method on embeddings.

    The pull is the derivative of an anchor's loss in each similarity, scaled to sum to one. No
    class prior enters: it is one factor for each anchor (D1).
    """
    method = methods.build(chosen["method"], **chosen["options"])
    diagonal = torch.eye(len(z), dtype=torch.bool)
    contrast = Contrast.from_similarity((z @ z.T).clamp(-1, 1), diagonal, ~diagonal)
    live = replace(contrast, similarity=contrast.similarity.clone().requires_grad_())
    objectives.info_nce(live, method.log_weights(live), method.options["temperature"]).backward()
    shares = live.similarity.grad.masked_fill(diagonal, 0)
    return contrast.similarity, shares / shares.sum(1, keepdim=True)


def rounded(values) -> list[float]:
    """Round to the digits that are written."""
    return [round(float(x), DIGITS) for x in values]


def heaviest(p, y, anchor: int) -> list[dict]:
    """Return an anchor's negatives with the most pull; `weight` is in units of an equal share."""
    weight, j = (p[anchor] * (len(p) - 1)).topk(PICTURES)
    columns = zip(j.tolist(), y[j].tolist(), rounded(weight))
    return [dict(zip(("image", "class", "weight"), row)) for row in columns]


def measured(chosen: dict, z, y) -> dict:
    """Return shares of pull, means over all anchors.

    `own`: on the anchor's class; `own_heaviest`: the same within the ten heaviest; `heaviest`: on
    these ten.
    """
    shares = []
    for part, labels in zip(z.split(BATCH)[:BATCHES], y.split(BATCH)):
        _, p = pull(chosen, part)
        same = labels[:, None] == labels
        top, j = p.topk(HEAVIEST, 1)
        false = (top * same.gather(1, j)).sum(1) / top.sum(1)
        shares.append(torch.stack([(p * same).sum(1), false, top.sum(1)]))
    means = torch.cat(shares, 1).mean(1).tolist()
    return dict(zip(("own", "own_heaviest", "heaviest"), means))


def readouts_of(group: list[checkpoint.TrainedRun], chosen: list[dict], images) -> dict:
    """Return what a method's encoders, one a seed, say of its pull and of each method's."""
    configuration, seeds = group[0].record["configuration"], []
    for seed, run in enumerate(group):
        z = embedded(run, images.x_test)
        by_method = [measured(one, z, images.y_test) for one in chosen]
        own = rounded(means["own"] for means in by_method)
        one = by_method[chosen.index(configuration)]
        seeds.append(one | {"seed": seed, "own_by_pull_of": own})
    return {"configuration": configuration, "seeds": seeds}


def png(image) -> str:
    """Encode an image uint8 [H, W, 3] as text."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image.numpy()).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def main() -> None:
    """Train what is missing and write heaviest_negatives.json."""
    torch.set_num_threads(1)
    images = data.load("cifar10")
    x, y = images.x_test, images.y_test
    groups = [[trained(*one, seed) for seed in range(SEEDS)] for one in SHOWN]
    controls = [[trained(*one, seed) for seed in range(CONTROL_SEEDS)] for one in CONTROLS]
    chosen = [group[0].record["configuration"] for group in (*groups, *controls)]
    anchors = [int((y == k).nonzero()[0]) for k in range(CLASSES)]
    rows, pictures = [], set(anchors)
    for one, group in zip(chosen, groups):
        _, p = pull(one, embedded(group[0], x[:BATCH]))
        shown = [heaviest(p, y, anchor) for anchor in anchors]  # of the first seed
        pictures |= {negative["image"] for row in shown for negative in row}
        rows.append(readouts_of(group, chosen[: len(SHOWN)], images) | {"shown": shown})
    same = [(part[:, None] == part).double() for part in y.split(BATCH)[:BATCHES]]
    content = {
        "class_names": list(images.class_names),
        "base": float(np.mean([(m.sum() - len(m)) / (len(m) * (len(m) - 1)) for m in same])),
        "anchors": [{"image": i, "class": int(y[i])} for i in anchors],
        "methods": rows,
        "pictures": {str(i): png(x[i]) for i in sorted(pictures)},
        "environment": groups[0][0].record["environment"],
        "controls": [readouts_of(group, chosen, images) for group in controls],
    }
    path = Path(__file__).parents[1] / "results/heaviest_negatives.json"
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
