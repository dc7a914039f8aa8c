"""Frames of embeddings that move while they are trained: `python book/results/motion.py`.

Handwritten digits 0 to 4, a small network into the circle and into the sphere, three sharpnesses γ
of one loss. Writes `motion.json` beside this file: the first seed's frames, and what all seeds end
with. One thread, two minutes; the same numbers each time on one machine.
"""

import json
from pathlib import Path

import torch
from torch.nn import functional

from hnlib import methods
from hnlib._files import write_atomically
from hnlib.images import augment, data, encoders
from hnlib.results import diagnostics

CLASSES, SHOWN, NEIGHBOURS = 5, 20, 10
STEPS, BATCH, SEEDS, FRAMES = 300, 128, 3, 33
SPACES = {"circle": 2, "sphere": 3}
RULES = (  # a sharpness γ is (1 + β) / t
    ("simclr", dict(temperature=1.0)),
    ("simclr", dict(temperature=0.1)),
    ("hcl", dict(temperature=0.5, beta=20.0, tau_plus=0.0, weights_gradient=False)),
)


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images to train on; test images to show, as many of each class, and their labels."""
    every = data.load("digits")
    chosen = [(every.y_test == c).nonzero()[:SHOWN, 0] for c in range(CLASSES)]
    chosen = torch.cat(chosen)
    return every.x_train[every.y_train < CLASSES], every.x_test[chosen], every.y_test[chosen]


def own_share(z: torch.Tensor, y: torch.Tensor) -> float:
    """The share of an image's class among its nearest neighbours, mean over the images."""
    nearest = (z @ z.T).fill_diagonal_(-torch.inf).topk(NEIGHBOURS).indices
    return float((y[nearest] == y[:, None]).double().mean())


def degrees(z: torch.Tensor) -> list[list[int]]:
    """Longitudes, and on the sphere latitudes, of unit vectors [n, 2 or 3]."""
    angles = [torch.atan2(z[:, 1], z[:, 0])]
    angles += [z[:, 2].clamp(-1, 1).asin()] if z.shape[1] == 3 else []
    return [a.rad2deg().round().int().tolist() for a in angles]


class Look:
    """What is seen of the test images at one step: where they are, and three measures."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor):
        views = augment.two_views(x, torch.Generator().manual_seed(0), "digits")
        self.images, self.y = (augment.plain(x), *views), y

    @torch.no_grad()
    def __call__(self, model: torch.nn.Module) -> dict:
        model.eval()
        z, first, second = (functional.normalize(model(x)) for x in self.images)
        model.train()
        return dict(
            at=degrees(z),
            alignment=round(diagnostics.alignment(first, second), 3),
            uniformity=round(diagnostics.uniformity(z), 3),
            own=round(own_share(z, self.y), 3),
        )


def train(x: torch.Tensor, look: Look, rule: tuple, dimension: int, seed: int) -> list[dict]:
    """One training, looked at more often while it is young."""
    torch.manual_seed(seed)
    encoder = encoders.build("small-cnn", in_channels=1, image_size=8)
    model = encoders.Model(encoder, encoders.Projector(encoder.feature_dim, 128, dimension))
    method = methods.build(rule[0], **rule[1])
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    slower = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    generator = torch.Generator().manual_seed(seed)
    moments, seen = frame_steps(), []
    for step in range(STEPS + 1):
        if step in moments:
            seen.append(look(model))
        batch = torch.randperm(len(x), generator=generator)[:BATCH]
        loss = method(*map(model, augment.two_views(x[batch], generator, "digits")))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        slower.step()
    return seen


def frame_steps() -> list[int]:
    """The steps of the frames, from 0 to the last, ever further apart."""
    return sorted({round(STEPS * (k / (FRAMES - 1)) ** 1.7) for k in range(FRAMES)})


def main() -> None:
    torch.set_num_threads(1)
    x, shown, y = digits()
    look, runs = Look(shown, y), []
    for name, options in RULES:
        gamma = (1 + options.get("beta", 0)) / options["temperature"]
        for space, dimension in SPACES.items():
            seeds = [train(x, look, (name, options), dimension, seed) for seed in range(SEEDS)]
            ends = [{k: v for k, v in seen[-1].items() if k != "at"} for seen in seeds]
            about = dict(method=name, options=options, gamma=gamma, space=space)
            runs.append(dict(about, frames=seeds[0], ends=ends))
            print(about, *ends, sep="\n  ", flush=True)
    told = dict(labels=y.tolist(), steps=frame_steps(), neighbours=NEIGHBOURS, runs=runs)
    text = json.dumps(told, separators=(",", ":"))
    write_atomically(Path(__file__).with_suffix(".json"), text.encode())


if __name__ == "__main__":
    main()
