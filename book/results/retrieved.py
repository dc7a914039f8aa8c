"""The negatives that four methods pull at, as pictures: `python book/results/retrieved.py`.

Trains what `retrieved.json` lacks a model of (kept in `_build/retrieved`; a stop loses nothing),
then looks at the test images of CIFAR-10, plain and in eval mode, and writes `retrieved.json` anew.
Anchors: of each of the first `CLASSES` classes its first test image. Batches: consecutive test
images in their order. `own_by_pull_of`: the pull on the own class, were the encoder pulled at by
each of the methods in turn. `controls`: encoders of one sharpness, pulled at by the methods and by
the controls; `--only-controls` trains these alone and keeps what the file has of the methods.
"""

import argparse
import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import torch
from torch.nn import functional

from hnlib import methods, objectives
from hnlib._files import project_root, write_atomically
from hnlib.contrast import Contrast
from hnlib.images import data
from hnlib.images import evaluation as readouts
from hnlib.training import checkpoint, records
from hnlib.training import run as training

SHOWN = (
    dict(method="simclr", temperature=0.5),
    dict(method="simclr", temperature=0.1),
    dict(method="hcl", temperature=0.5),
    dict(method="ot", temperature=0.5),
)
CONTROLS = (  # γ = (1 + β)/t = 4, as HCL's and transport's above
    dict(method="simclr", temperature=0.25),
    dict(method="hcl", temperature=0.5, tau_plus=0.0, weights_gradient=False),
)
CONTROL_SEEDS = 2
COMMON = dict(dataset="cifar10", train_size=10_000, epochs=10, validation=5000, evaluate_every=0)
COMMON |= dict(precision="bf16-mixed", experiment="retrieved")
BATCH, BATCHES, CLASSES, PICTURES, HEAVIEST = 512, 19, 6, 4, 10
DIGITS = 4  # of what is written


def trained(options: dict, seed: int, train: bool) -> checkpoint.Run | None:
    """The saved run; it is trained first, or None where that is not wanted."""
    folder = project_root() / "_build" / "retrieved"
    stem = "-".join(str(part) for part in [*options.values(), seed])
    saved = folder / f"{stem}.safetensors"
    if not saved.exists():
        if not train:
            return None
        where = dict(checkpoint=folder / f"{stem}.pt", save=saved, record_to=folder / "records")
        done = training.train(**options, **COMMON, seed=seed, progress=False, **where)
        print(stem, done.metrics["linear"], done.record["seconds"], flush=True)
    return checkpoint.load(saved)


@torch.no_grad()
def embedded(run: checkpoint.Run, x):
    """Unit embeddings [N, d] of plain images, in eval mode, float64."""
    return functional.normalize(run.projector(readouts.embed(run.encoder, x)).double())


def pull(chosen: dict, z):
    """Similarities and pull [n, n]: of each anchor the derivative of its loss in each s_ij, as
    shares that sum to one. It has no class prior, which sets one factor for each anchor (D1)."""
    method = methods.build(chosen["method"], **chosen["options"])
    own = torch.eye(len(z), dtype=torch.bool)
    contrast = Contrast.from_similarity((z @ z.T).clamp(-1, 1), own, ~own)
    live = replace(contrast, similarity=contrast.similarity.clone().requires_grad_())
    objectives.info_nce(live, method.log_weights(live), method.options["temperature"]).backward()
    shares = live.similarity.grad.masked_fill(own, 0)
    return contrast.similarity, shares / shares.sum(1, keepdim=True)


def rounded(values) -> list[float]:
    return [round(float(x), DIGITS) for x in values]


def heaviest(s, p, y, anchor: int) -> list[dict]:
    """Of one anchor the negatives with the most pull; `weight` is in units of an equal share."""
    weight, j = (p[anchor] * (len(p) - 1)).topk(PICTURES)
    shown = zip(j.tolist(), y[j].tolist(), rounded(s[anchor, j]), rounded(weight))
    return [dict(zip(("image", "class", "similarity", "weight"), one)) for one in shown]


def measured(chosen: dict, z, y) -> dict:
    """For each batch, means over its anchors: the pull on the anchor's own class (`own`); the same
    within the ten heaviest (`own_heaviest`); the pull that these ten have (`heaviest`)."""
    found = {"own": [], "own_heaviest": [], "heaviest": []}
    for part, labels in zip(z.split(BATCH)[:BATCHES], y.split(BATCH)):
        _, p = pull(chosen, part)
        same = labels[:, None] == labels
        top, j = p.topk(HEAVIEST, 1)
        found["own"].append((p * same).sum(1).mean())
        found["own_heaviest"].append(((top * same.gather(1, j)).sum(1) / top.sum(1)).mean())
        found["heaviest"].append(top.sum(1).mean())
    return {name: rounded(values) for name, values in found.items()}


def _about(run: checkpoint.Run, each: list[dict]) -> dict:
    """A seed's readouts, and the pull on the own class by `each` of some methods."""
    known = {metric: run.record["metrics"][metric] for metric in ("knn", "linear")}
    crossed = rounded(torch.tensor(seen["own"]).mean() for seen in each)
    seed = run.record["configuration"]["seed"]
    return {"seed": seed, "metrics": known, "own_by_pull_of": crossed}


def controls(groups: list[list[checkpoint.Run]], chosen: list[dict]) -> list[dict]:
    """The encoders of each control, pulled at by the methods `chosen` and by the controls."""
    images = data.load("cifar10")
    pulls = chosen + [group[0].record["configuration"] for group in groups]
    rows = []
    for k, group in enumerate(groups, len(chosen)):
        seeds = []
        for run in group:
            z = embedded(run, images.x_test)
            seeds.append(_about(run, [measured(one, z, images.y_test) for one in pulls]))
        environment = group[0].record["environment"]
        rows.append({"configuration": pulls[k], "seeds": seeds, "environment": environment})
    return rows


def png(image) -> str:
    """An image uint8 [H, W, 3] as text."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image.numpy()).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def artefact(runs: list[list[checkpoint.Run]]) -> dict:
    """All that the page shows, of the runs of each method; pictures are those of the first seed."""
    images = data.load("cifar10")
    x, y = images.x_test, images.y_test
    anchors = [int((y == k).nonzero()[0]) for k in range(CLASSES)]
    assert max(anchors) < BATCH, "an anchor is not in the first batch"
    same = [(part[:, None] == part).double() for part in y.split(BATCH)[:BATCHES]]
    rows, needed = [], set(anchors)
    chosen = [group[0].record["configuration"] for group in runs]
    for k, group in enumerate(runs):
        s, p = pull(chosen[k], embedded(group[0], x[:BATCH]))
        shown = [heaviest(s, p, y, anchor) for anchor in anchors]
        needed |= {negative["image"] for row in shown for negative in row}
        seeds = []
        for run in group:
            z = embedded(run, x)
            each = [measured(one, z, y) for one in chosen]
            seeds.append(_about(run, each) | each[k])
        rows.append({"configuration": chosen[k], "shown": shown, "seeds": seeds})
    return {
        "dataset": images.name,
        "digest": images.digest,
        "class_names": list(images.class_names),
        "rule": f"of each of the first {CLASSES} classes its first test image",
        "batch": BATCH,
        "heaviest": HEAVIEST,
        "base": rounded((m.sum() - len(m)) / (len(m) * (len(m) - 1)) for m in same),
        "anchors": [{"image": i, "class": int(y[i])} for i in anchors],
        "methods": rows,
        "pictures": {str(i): png(x[i]) for i in sorted(needed)},
        "environment": runs[0][0].record["environment"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="of each method")
    parser.add_argument("--no-training", action="store_true", help="look at what is there")
    parser.add_argument("--only-controls", action="store_true", help="keep the methods' numbers")
    parser.add_argument("--to", type=Path, default=records.ledger("book/results"), help="folder")
    args = parser.parse_args()
    torch.set_num_threads(1)
    path = args.to / "retrieved.json"

    def runs(wanted, seeds):
        """Of each method the saved runs, as many seeds as all of them have."""
        every = [[trained(one, s, not args.no_training) for one in wanted] for s in range(seeds)]
        if not (whole := [row for row in every if all(row)]):
            parser.error(
                "no seed has the models of all methods; give --seeds, without --no-training"
            )
        return list(zip(*whole))

    if args.only_controls:
        kept = json.loads(path.read_text("utf-8"))
    else:
        kept = artefact(runs(SHOWN, args.seeds))
    chosen = [row["configuration"] for row in kept["methods"]]
    kept["controls"] = controls(runs(CONTROLS, CONTROL_SEEDS), chosen)
    text = json.dumps(kept, indent=1)
    write_atomically(path, (text + "\n").encode())
    print(f"{path}: {len(kept['methods'][0]['seeds'])} seeds, {len(text):,} bytes")


if __name__ == "__main__":
    main()
