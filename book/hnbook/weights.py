"""Where the push of a loss goes: one batch as a loss sees it, and a model's heaviest negatives."""

from __future__ import annotations

import base64
import copy
import html
import io
from dataclasses import replace

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional

from hnbook import figures
from hnlib import methods, objectives
from hnlib.contrast import Contrast
from hnlib.experiments import compared, comparisons, evidence, model
from hnlib.experiments.comparisons import Effect
from hnlib.images import data, evaluation, task

BATCH, BATCHES = 512, 19  # consecutive test images
HEAVIEST = 10
CLASSES, PICTURES = 6, 4  # anchors that are shown, and negatives of each
DIGITS = 4  # of a share


@torch.no_grad()
def batch(run, model=None) -> tuple[Contrast, Tensor]:
    """Return two views of training images as the loss sees them, and their labels [B].

    The embeddings are in float64; batch-norm uses the batch. Without a model its weights are
    random.
    """
    trained = task.Task(run)
    *views, labels = trained.fixed
    if model is None:
        torch.manual_seed(run.seed)
        model = trained.model()
    model = copy.deepcopy(model).train()
    z, h = model(torch.cat(views).to(next(model.parameters()).device), hidden=True)
    z, h = (x.double().cpu().chunk(2) for x in (z, h))
    return Contrast.from_views(*z, features=h), labels


def pull(method, z: Tensor) -> Tensor:
    """Return the shares [n, n] of each anchor's push on its negatives, of unit embeddings [n, d].

    A share is the derivative of the anchor's loss in a similarity, over their sum. A class prior
    would be one factor for each anchor, so none is used. Raises ValueError for a loss that needs
    labels, or embeddings.
    """
    own = torch.eye(len(z), dtype=torch.bool)
    contrast = Contrast.from_similarity((z @ z.T).clamp(-1, 1), own, ~own)
    live = replace(contrast, similarity=contrast.similarity.clone().requires_grad_())
    if "tau_plus" in method.options:
        temperature = method.options["temperature"]
        objectives.info_nce(live, method.log_weights(live), temperature).backward()
    else:
        method.loss(live).backward()
    assert live.similarity.grad is not None
    shares = live.similarity.grad.masked_fill(own, 0)
    return shares / shares.sum(1, keepdim=True)


def check(design) -> None:
    """Raise ValueError before anything trains if the page could not measure it.

    That is an arm whose pull is not known from similarities, or a folder of too few test images.
    """
    z = functional.normalize(torch.eye(6, dtype=torch.float64) + 0.1)
    for _, arm, run in design.runs():
        run = run.resolved()
        try:
            pull(methods.build(run.method, **run.options), z)
        except ValueError as error:
            why = str(error).partition(";")[0]
            words = f"add: the pull of {arm!r} cannot be measured here: {why}; leave it out"
            raise ValueError(words) from None
    if run.dataset not in run.datasets and (n := len(data.load(run.dataset).y_test)) <= HEAVIEST:
        raise ValueError(f"dataset must have more than {HEAVIEST} test images, got {n}")


def heaviest(found) -> dict:
    """Return what the models of an experiment say of the pull of its arms, on test images.

    Of published models, which were not kept, it is the recorded measurement; of others it is
    measured here. For each arm and seed: the share of all pull on the anchor's class (`own`) and
    on the ten heaviest negatives (`heaviest`), the share of theirs on the anchor's class
    (`own_heaviest`), and `own` of each arm's pull on this arm's model (`own_by_pull_of`). The
    first model of each arm also gives the heaviest negatives of the first image of some classes.
    """
    if not found.design.changed:
        return evidence.measurement("heaviest_negatives")
    return measured(found)


def measured(found) -> dict:
    """Measure what `heaviest` returns."""
    arms, every = found.design.names(), found.design.seeds
    runs = [found.run(arm, every[0]).resolved() for arm in arms]
    losses = [methods.build(run.method, **run.options) for run in runs]
    images = data.load(runs[0].dataset)
    order = spread(images.y_test)
    x, y = images.x_test[order], images.y_test[order]
    of_class = [(y[:BATCH] == k).nonzero() for k in range(images.num_classes)]
    first = [int(at[0]) for at in of_class if len(at)][:CLASSES]
    rows, shown = [], set(first)
    for arm, loss in zip(arms, losses):
        embedded = [_embedded(model(found, arm, s), x) for s in every]
        share = pull(loss, embedded[0][:BATCH])
        top = [_top(share[i], y) for i in first]
        shown |= {negative["image"] for row in top for negative in row}
        seeds = []
        for seed, z in zip(every, embedded):
            by_loss = [_shares(one, z, y) for one in losses]
            own = [round(one["own"], DIGITS) for one in by_loss]
            seeds.append(by_loss[losses.index(loss)] | {"seed": seed, "own_by_pull_of": own})
        rows.append({"arm": arm, "seeds": seeds, "shown": top})
    chances = [
        ((part[:, None] == part).sum(1) - 1).double() / (len(part) - 1) for part in _batches(y)
    ]
    return {
        "class_names": list(images.class_names),
        "base": float(torch.cat(chances).mean()),
        "negatives": min(BATCH, len(y)) - 1,
        "anchors": [{"image": i, "class": int(y[i])} for i in first],
        "methods": rows,
        "pictures": {str(i): _png(x[i]) for i in sorted(shown)},
    }


def spread(y: Tensor) -> Tensor:
    """Return an order of labels [n]: as they are, but each class spread evenly if they are sorted.

    Those of a folder are, and a batch of one class would have false negatives alone.
    """
    if (y.diff() < 0).any():
        return torch.arange(len(y))
    rank = torch.arange(len(y)) - torch.searchsorted(y, y)
    return ((rank + 0.5) / y.bincount()[y]).argsort(stable=True)


def shares(seen: dict) -> dict[str, pd.DataFrame]:
    """Return a row for each seed by arm, to compare with `comparisons.between`."""
    return {row["arm"]: pd.DataFrame(row["seeds"]).assign(record="") for row in seen["methods"]}


def compare(found, seen: dict, ours: str, base: str, columns: dict[str, str]) -> dict[str, Effect]:
    """Return the differences of two arms by column of `shares`, as comparisons of the page.

    `columns` has the words of each; `seen` is of `found` (`heaviest`).
    """

    def between(seen: dict) -> compared.Made:
        rows = shares(seen)
        if not {ours, base} <= {*rows}:  # an arm of yours was not published
            return {}
        made = {x: comparisons.between(rows[ours], rows[base], x) for x in columns}
        return {(ours, base, columns[x], "", "these images"): one for x, one in made.items()}

    made = between(seen)
    for arguments, effect in made.items():  # each stands alone
        compared.note(found.design, {arguments: effect}, lambda other: between(heaviest(other)))
    return dict(zip(columns, made.values()))


@torch.no_grad()
def _embedded(trained, x: Tensor) -> Tensor:
    """Return unit embeddings [N, d] of plain images, in eval mode, float64, on the CPU."""
    features = evaluation.embed(trained.encoder, x)
    return functional.normalize(trained.projector.eval()(features).double()).cpu()


def _shares(loss, z: Tensor, y: Tensor) -> dict:
    """Return the three shares of pull, means over all anchors."""
    found = []
    for part, labels in zip(_batches(z), _batches(y)):
        p = pull(loss, part)
        same = labels[:, None] == labels
        top, j = p.topk(min(HEAVIEST, len(part) - 1), 1)
        false = (top * same.gather(1, j)).sum(1) / top.sum(1)
        found.append(torch.stack([(p * same).sum(1), false, top.sum(1)]))
    return dict(zip(("own", "own_heaviest", "heaviest"), torch.cat(found, 1).mean(1).tolist()))


def _batches(rows: Tensor) -> list[Tensor]:
    """Return consecutive batches of one size: a rest has fewer negatives, so larger shares."""
    size = min(BATCH, len(rows))
    return [part for part in rows.split(size)[:BATCHES] if len(part) == size]


def _top(share: Tensor, y: Tensor) -> list[dict]:
    """Return the negatives with the most pull; `weight` is in units of an equal share."""
    negatives = len(share) - 1
    weight, j = (share * negatives).topk(min(PICTURES, negatives))
    rounded = [round(x, DIGITS) for x in weight.tolist()]
    columns = zip(j.tolist(), y[j].tolist(), rounded)
    return [dict(zip(("image", "class", "weight"), row)) for row in columns]


def _png(image: Tensor) -> str:
    """Encode an image uint8 [H, W, 1 or 3] as text."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image.squeeze(2).numpy()).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def cards(seen: dict):
    """Show each anchor with its heaviest negatives by every arm; a false one has a dashed frame."""
    from IPython.display import HTML

    seen = seen | {"class_names": [html.escape(name) for name in seen["class_names"]]}
    cards = []
    for k, anchor in enumerate(seen["anchors"]):
        own = seen["class_names"][anchor["class"]]
        alt = f"anchor {k + 1}, the first {own} among the test images"
        parts = [_picture(seen, anchor["image"], alt, "hidden", own)]
        for row in seen["methods"]:
            images = "".join(_negative(seen, one, anchor["class"]) for one in row["shown"][k])
            line = "break-inside: avoid; font: 14px/2 sans-serif"
            parts.append(f'<div style="{line}">{html.escape(row["arm"])}<br>{images}</div>')
        cards.append(f"<div>{''.join(parts)}</div>")
    grid = "display: grid; grid-template-columns: repeat(auto-fill, 336px); gap: 1rem"
    return HTML(f'<div style="{grid}">{"".join(cards)}</div>')


def _negative(seen: dict, shown: dict, own: int) -> str:
    """Return a negative: whether it is true, its class, its pull in equal shares."""
    false, kind = shown["class"] == own, seen["class_names"][shown["class"]]
    alt = f"{kind}, a {'false' if false else 'true'} negative, "
    alt += f"{shown['weight']:.1f} equal shares of the pull"
    frame = f"dashed {figures.COLOURS['accent']}" if false else f"solid {figures.GREY}"
    under = f"{kind} <b>{'✗ ' * false}{shown['weight']:.1f}</b>"
    return _picture(seen, shown["image"], alt, frame, under)


def _picture(seen: dict, image: int, alt: str, frame: str, under: str) -> str:
    """Return one image in its frame and a line under it, as HTML."""
    source = f"data:image/png;base64,{seen['pictures'][str(image)]}"
    look = f"border: 4px {frame}; width: 82px; height: 82px; border-radius: 0"
    return (
        '<span style="display: inline-grid; justify-items: center; width: 84px">'
        f'<img src="{source}" alt="{alt}" style="{look}">'
        f'<span style="font:12px sans-serif;text-align:center">{under}</span></span>'
    )
