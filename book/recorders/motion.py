"""Record embeddings that move while they are trained: `python book/recorders/motion.py`.

Handwritten digits 0 to 4, a small network into the circle and into the sphere, three sharpnesses γ
of one loss. Writes `motion.json`: the first seed's frames, and the measures with which all seeds
end. One thread, two minutes; the same numbers each time on one machine.
"""

import json

import ledgers
import torch
from torch.nn import functional

from hnlib import methods
from hnlib.images import augment, data, encoders
from hnlib.training import diagnostics

CLASSES, SHOWN, NEIGHBOURS = 5, 20, 10
STEPS, BATCH, SEEDS, FRAMES = 300, 128, 3, 33
SPACES = {"circle": 2, "sphere": 3}
RULES = (  # a sharpness γ is (1 + β) / t
    ("simclr", dict(temperature=1.0)),
    ("simclr", dict(temperature=0.1)),
    ("hcl", dict(temperature=0.5, beta=20.0, tau_plus=0.0, weights_gradient=False)),
)


def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return training images, and test images to show, equally many of each class, with labels."""
    every = data.load("digits")
    shown = [(every.y_test == label).nonzero()[:SHOWN, 0] for label in range(CLASSES)]
    shown = torch.cat(shown)
    return every.x_train[every.y_train < CLASSES], every.x_test[shown], every.y_test[shown]


def class_share(z: torch.Tensor, y: torch.Tensor) -> float:
    """Return the share of an image's class among its nearest neighbours, mean over the images."""
    nearest = (z @ z.T).fill_diagonal_(-torch.inf).topk(NEIGHBOURS).indices
    return float((y[nearest] == y[:, None]).double().mean())


def degrees(z: torch.Tensor) -> list[list[int]]:
    """Return longitudes, and on the sphere latitudes, of unit vectors [n, 2 or 3]."""
    angles = [torch.atan2(z[:, 1], z[:, 0])]
    if z.shape[1] == 3:
        angles.append(z[:, 2].clamp(-1, 1).asin())
    return [angle.rad2deg().round().int().tolist() for angle in angles]


@torch.no_grad()
def frame(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict:
    """Return where the images are, and three measures."""
    views = augment.two_views(x, torch.Generator().manual_seed(0), "digits")
    model.eval()
    z, first, second = (functional.normalize(model(v)) for v in (augment.plain(x), *views))
    model.train()
    return dict(
        at=degrees(z),
        alignment=round(diagnostics.alignment(first, second), 3),
        uniformity=round(diagnostics.uniformity(z), 3),
        own=round(class_share(z, y), 3),
    )


def train(x: torch.Tensor, shown: tuple, rule: tuple, dimension: int, seed: int) -> list[dict]:
    """Train one network and return its frames of the images and labels `shown`."""
    torch.manual_seed(seed)
    encoder = encoders.build("small-cnn", in_channels=1, image_size=8)
    model = encoders.Model(encoder, encoders.Projector(encoder.feature_dim, 128, dimension))
    method = methods.build(rule[0], **rule[1])
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    generator = torch.Generator().manual_seed(seed)
    steps, frames = frame_steps(), []
    for step in range(STEPS + 1):
        if step in steps:
            frames.append(frame(model, *shown))
        batch = torch.randperm(len(x), generator=generator)[:BATCH]
        loss = method(*map(model, augment.two_views(x[batch], generator, "digits")))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        scheduler.step()
    return frames


def frame_steps() -> list[int]:
    """Return the steps of the frames, from 0 to the last, ever further apart."""
    return sorted({round(STEPS * (k / (FRAMES - 1)) ** 1.7) for k in range(FRAMES)})


def main() -> None:
    """Train every rule in both spaces and write motion.json."""
    torch.set_num_threads(1)
    x, *shown = digits()
    runs = []
    for name, options in RULES:
        gamma = (1 + options.get("beta", 0)) / options["temperature"]
        for space, dimension in SPACES.items():
            seeds = [train(x, shown, (name, options), dimension, seed) for seed in range(SEEDS)]
            ends = [{k: v for k, v in frames[-1].items() if k != "at"} for frames in seeds]
            setting = dict(method=name, options=options, gamma=gamma, space=space)
            runs.append(setting | dict(frames=seeds[0], ends=ends))
            print(setting, *ends, sep="\n  ", flush=True)
    labels = shown[1].tolist()
    artefact = dict(labels=labels, steps=frame_steps(), neighbours=NEIGHBOURS, runs=runs)
    text = json.dumps(artefact, separators=(",", ":"))
    ledgers.write("motion.json", text.encode())


if __name__ == "__main__":
    main()
