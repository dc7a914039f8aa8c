"""Hard negatives on CIFAR-10 in one file: HCL, and the temperature that it is said to be.

    python examples/hcl_cifar10.py --data cifar10.npz --epochs 100     # for a GPU
    python examples/hcl_cifar10.py --epochs 1 --width 8                # a smoke test

Needs torch and numpy. `cifar10.npz` holds x_train, x_test (uint8 [N, 32, 32, 3]), y_train and
y_test; `hnlib data cifar10` writes it. Trains a ResNet-18 with HCL (beta = 1, temperature 0.5) and
with SimCLR at temperature 0.25, which gives the negatives the same weights; prints kNN accuracies.
"""

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Two convolutions and a shortcut (He et al., 2016)."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride > 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = functional.relu(self.norm1(self.first(x)))
        return functional.relu(self.norm2(self.second(y)) + self.shortcut(x))


def resnet18(width=64):
    """Return an encoder with 8 * width features; its first layer suits 32-pixel images."""
    layers = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    inputs = width
    for outputs, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
        layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def augment(x):
    """Crop, flip, jitter and grey a batch [B, 3, 32, 32] in [0, 1], each image by itself."""
    n, device = len(x), x.device
    scale = torch.empty(n, device=device).uniform_(0.2, 1).sqrt()
    shift = (torch.rand(2, n, device=device) * 2 - 1) * (1 - scale)
    flip = torch.where(torch.rand(n, device=device) < 0.5, -1.0, 1.0)
    theta = torch.zeros(n, 2, 3, device=device)
    theta[:, 0, 0], theta[:, 1, 1], theta[:, :, 2] = scale * flip, scale, shift.T
    x = functional.grid_sample(
        x, functional.affine_grid(theta, x.shape, False), align_corners=False
    )
    brightness, contrast, colour = torch.empty(3, n, 1, 1, 1, device=device).uniform_(0.6, 1.4)
    mean = x.mean((1, 2, 3), keepdim=True)
    x = brightness * ((x - mean) * contrast + mean)
    grey = x.mean(1, keepdim=True)
    colour = torch.where(torch.rand_like(colour) < 0.2, 0.0, colour)  # one in five loses it
    return ((x - grey) * colour + grey).clamp(0, 1)


def hcl(z1, z2, beta, temperature):
    """Return the loss of HCL with its weights held fixed; beta = 0 is SimCLR."""
    z = functional.normalize(torch.cat([z1, z2]).float())
    n = len(z)
    logits = z @ z.T / temperature
    positive = logits.diagonal(n // 2).repeat(2)
    pair = torch.arange(n, device=z.device)
    admissible = torch.ones_like(logits, dtype=torch.bool)
    admissible[pair, pair] = admissible[pair, (pair + n // 2) % n] = False
    logits = logits.masked_fill(~admissible, -torch.inf)
    log_weights = (beta * logits.detach()).masked_fill(~admissible, -torch.inf).log_softmax(1)
    negatives = np.log(n - 2) + (logits + log_weights).logsumexp(1)
    return functional.softplus(negatives - positive).mean()


@torch.no_grad()
def features(encoder, x):
    """Return unit features [N, d] of uint8 images [N, 3, 32, 32]."""
    encoder.eval()
    parts = [encoder(part.float() / 255) for part in x.split(500)]
    return functional.normalize(torch.cat(parts))


def knn(encoder, train, y_train, test, y_test, k=200, temperature=0.1):
    """Return the accuracy of k nearest neighbours with weights exp(s / temperature)."""
    bank, right = features(encoder, train), 0
    for part, y in zip(features(encoder, test).split(500), y_test.split(500)):
        similarity, nearest = (part @ bank.T).topk(min(k, len(bank)))
        votes = torch.zeros(len(part), 10, device=part.device)
        votes.scatter_add_(1, y_train[nearest], (similarity / temperature).exp())
        right += int((votes.argmax(1) == y).sum())
    return right / len(y_test)


def train(x, epochs, width, beta, temperature, batch=256):
    """Return an encoder trained on uint8 images [N, 3, 32, 32]."""
    torch.manual_seed(0)
    encoder = resnet18(width).to(x.device, memory_format=torch.channels_last)
    layers = nn.Linear(8 * width, 512), nn.ReLU(), nn.Linear(512, 128)
    head = nn.Sequential(*layers).to(x.device)
    parameters = [*encoder.parameters(), *head.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=1e-3, weight_decay=1e-6)
    encoder.train()
    for epoch in range(epochs):
        for index in torch.randperm(len(x), device=x.device).split(batch)[: len(x) // batch]:
            views = torch.cat([augment(x[index].float() / 255) for _ in range(2)])
            views = views.contiguous(memory_format=torch.channels_last)
            with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
                z = head(encoder(views))
            loss = hcl(*z.chunk(2), beta, temperature)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        print(f"epoch {epoch + 1} of {epochs}: loss {loss.item():.2f}", flush=True)
    return encoder


def random_images(n=1024):
    """Return noise around one colour a class, to try the script without data."""
    rng = np.random.default_rng(0)
    y, colours = rng.integers(0, 10, n), rng.integers(0, 256, (10, 1, 1, 3))
    x = (colours[y] + rng.integers(0, 64, (n, 32, 32, 3))).clip(0, 255).astype("uint8")
    return dict(x_train=x[256:], y_train=y[256:], x_test=x[:256], y_test=y[:256])


def main():
    """Train both and print their accuracies."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--width", type=int, default=64)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    arrays = dict(np.load(args.data)) if args.data else random_images()
    arrays = {name: torch.tensor(array).to(device) for name, array in arrays.items()}
    x, test = (arrays[name].permute(0, 3, 1, 2) for name in ("x_train", "x_test"))
    y, y_test = arrays["y_train"].long(), arrays["y_test"].long()
    for name, beta, t in (("HCL", 1.0, 0.5), ("SimCLR", 0.0, 0.25)):
        encoder = train(x, args.epochs, args.width, beta, t)
        print(f"{name}, beta = {beta:g}, t = {t:g}: kNN {knn(encoder, x, y, test, y_test):.1%}")


if __name__ == "__main__":
    main()
