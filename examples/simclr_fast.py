"""SimCLR on CIFAR-10, to be read from top to bottom, copied and changed; hnlib and torch alone.

    hnlib data cifar10                                       # once: fetch and verify
    python examples/simclr_fast.py                           # a ResNet-18, 100 epochs, on a GPU
    python examples/simclr_fast.py method=hcl beta=1         # with hard negatives
    python examples/simclr_fast.py data=digits encoder=small-cnn epochs=2     # on a CPU, in seconds

A line of the settings below is changed by NAME=VALUE. After each tenth of the epochs it prints the
loss, the views a second, and the accuracy of ten nearest neighbours on the test images. To compare
a method with another, do not choose by these: hold out images (`hnlib train images --validation`).
"""

import math
import sys
import time

import torch

from hnlib import methods
from hnlib.images import augment, data, encoders, evaluation
from hnlib.training.evaluation import weighted_knn

# settings ---------------------------------------------------------------------------------------
settings = dict(
    data="cifar10",  # or cifar100, digits, folder:PATH
    images=0,  # of the training images; 0: all
    encoder="resnet18",  # or resnet50, small-cnn
    method="simclr",  # any of the catalogue: hcl, dcl, ot, …
    temperature=0.25,  # half of the usual 0.5; a tilt of beta = 1 at 0.5 is as sharp
    beta=0.0,  # tilt of hcl: 0 is SimCLR
    epochs=100,
    batch=512,  # images in a step, two views of each
    lr=2e-3,
    weight_decay=1e-6,
    seed=0,
    compiled=True,  # torch.compile, on a GPU
)
for name, _, text in (one.partition("=") for one in sys.argv[1:]):
    if name not in settings or not text:
        sys.exit(f"{name!r} is not a setting; choose from {', '.join(settings)}, as NAME=VALUE")
    kind = type(settings[name])
    settings[name] = text in ("True", "1") if kind is bool else kind(text)
s = settings
print(" ".join(f"{name}={value}" for name, value in s.items()))

# data -------------------------------------------------------------------------------------------
# All images live on the device as uint8: CIFAR-10 is 0.2 GB, and no loader has to keep up.
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(s["seed"])
images = data.load(s["data"])
if s["images"]:
    images = data.subset(images, s["images"])
x, x_test = images.x_train.to(device), images.x_test.to(device)  # [N, H, W, C]
y, y_test = images.y_train.to(device), images.y_test.to(device)
count, batch = len(x), min(s["batch"], len(x))
steps = s["epochs"] * (count // batch)

# model ------------------------------------------------------------------------------------------
# An encoder, and a projector that only the loss sees. Pictures are small: the first convolution has
# stride 1, and there is no max-pooling.
height, width, channels = x.shape[1:]
model = encoders.model(s["encoder"], (channels, height, width)).to(device)
model = model.to(memory_format=torch.channels_last)
options = {"temperature": s["temperature"]} | ({"beta": s["beta"]} if s["method"] == "hcl" else {})
loss_of = methods.build(s["method"], **options)
embed = torch.compile(model) if s["compiled"] and device.type == "cuda" else model

# optimiser --------------------------------------------------------------------------------------
parameters = [*model.parameters(), *loss_of.parameters()]
optimiser = torch.optim.Adam(
    parameters, lr=s["lr"], weight_decay=s["weight_decay"], fused=device.type == "cuda"
)


def rate(step: int) -> float:
    """Return the factor of the learning rate: linear warm-up, then half a cosine."""
    rise = max(1, steps // 20)
    return min(1.0, (step + 1) / rise) * 0.5 * (1 + math.cos(math.pi * step / max(1, steps)))


schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
generator = torch.Generator(device).manual_seed(s["seed"])  # of order and views


# training ---------------------------------------------------------------------------------------
def test_accuracy() -> float:
    """Return the share of test images that their ten nearest training images name right."""
    bank, asked = (evaluation.embed(model.encoder, one) for one in (x, x_test))
    right = weighted_knn(bank, y, asked, y_test, min(10, count))
    return right.float().mean().item()


for epoch in range(1, s["epochs"] + 1):
    model.train()
    start, total = time.perf_counter(), torch.zeros((), device=device)
    order = torch.randperm(count, generator=generator, device=device)
    for index in order.split(batch)[: count // batch]:  # whole batches
        views = torch.cat(augment.two_views(x[index], generator))
        views = views.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            z1, z2 = embed(views).chunk(2)
        loss = loss_of(z1, z2)  # float32 inside
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        total += loss.detach()  # no wait for the device
    mean = total.item() / (count // batch)
    speed = 2 * batch * (count // batch) / (time.perf_counter() - start)
    if epoch % max(1, s["epochs"] // 10) == 0 or epoch == s["epochs"]:
        accuracy = f"kNN {test_accuracy():.1%}"
        print(f"epoch {epoch}: loss {mean:.3f}, {speed:,.0f} views/s, {accuracy}", flush=True)
