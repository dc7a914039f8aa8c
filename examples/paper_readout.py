"""Read out a saved run on images as the code released with HCL does, in its `image/linear.py`.

    hnlib train images --dataset cifar10 --encoder resnet18 --method hcl --save run.safetensors
    python examples/paper_readout.py run.safetensors

A linear layer learns from one fresh view of each image an epoch and is tested on plain images. An
oddity of that code: the frozen encoder is in train mode meanwhile. So features are normalised by
the statistics of their batch, which also move the running ones that the test images then meet.
"""

import copy
import sys

import torch
from torch.nn import Linear, functional

from hnlib.images import augment, evaluation, task
from hnlib.training import records, train


def readout(encoder, data, augmentation, epochs=100, size=512, lr=1e-3, decay=1e-6, seed=0):
    """Return the test accuracy; the encoder is not changed."""
    device = next(encoder.parameters()).device
    x, y = data.x_train.to(device), data.y_train.to(device)
    encoder, generator = copy.deepcopy(encoder), torch.Generator(device).manual_seed(seed)
    torch.manual_seed(seed)
    layer = Linear(evaluation.embed(encoder, x[:1]).shape[1], data.num_classes).to(device)
    adam = torch.optim.Adam(layer.parameters(), lr=lr, weight_decay=decay)
    encoder.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(x), generator=generator, device=device).split(size):
            with torch.no_grad():
                features = encoder(augment.view(x[batch], generator, augmentation))
            adam.zero_grad()
            functional.cross_entropy(layer(features), y[batch]).backward()
            adam.step()
    found = layer(evaluation.embed(encoder, data.x_test)).argmax(1)
    return float((found == data.y_test.to(device)).float().mean())


if __name__ == "__main__":
    saved, device = train.load(sys.argv[1]), "cuda" if torch.cuda.is_available() else "cpu"
    of = task.Task(records.run_of(saved.record))
    print(readout(saved.encoder.to(device), of.evaluation_data, of.augmentation))
