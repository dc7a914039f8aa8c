"""The data sets and encoders that runs on images name: a new one is an entry. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from hnlib._files import own_path


@dataclass(frozen=True)
class DataSet:
    """What is known of a data set before it is read.

    Parameters
    ----------
    title
        as tables write it
    size, channels, classes, train, test
        side in pixels, colours, classes, images for training and for testing
    source
        class of `torchvision.datasets` that downloads it, of which `parts` are read; else it is
        embedded here, or a file of yours
    class_names
        where the data have none
    augmentation
        name of its usual augmentation
    """

    title: str
    size: int
    channels: int
    classes: int
    train: int
    test: int
    source: str | None = None
    parts: tuple[bool | str, ...] = (True, False)
    class_names: tuple[str, ...] = ()
    augmentation: str = "simclr"

    def __str__(self) -> str:
        images = f"{self.train:,} + {self.test:,} images of {self.size}×{self.size}"
        grey = ", grey" * (self.channels == 1)
        return f"{self.title}: {images}{grey}, {self.classes} classes"


CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SPLITS = ("train", "test", "unlabeled")  # of STL-10

DATASETS = {
    "digits": DataSet("digits", 8, 1, 10, 1437, 360, augmentation="digits"),
    "cifar10": DataSet("CIFAR-10", 32, 3, 10, 50_000, 10_000, "CIFAR10", class_names=CIFAR10),
    "cifar100": DataSet("CIFAR-100", 32, 3, 100, 50_000, 10_000, "CIFAR100"),
    "stl10": DataSet("STL-10", 96, 3, 10, 5000, 8000, "STL10", SPLITS),
    "tiny-imagenet": DataSet("Tiny ImageNet", 64, 3, 200, 100_000, 10_000),
}

#: What `torchvision.datasets.ImageFolder` reads
PICTURES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def training_images(name: str) -> int | None:
    """Return how many images a data set, or a folder:PATH[@SIZE], trains on; None if unknown."""
    if known := DATASETS.get(name):
        return known.train
    word, folder, _ = own_path(name)
    if word != "folder" or not folder.is_dir():
        return None
    split = any((folder / part).is_dir() for part in ("test", "val"))
    counts = [
        sum(x.suffix.lower() in PICTURES for x in one.rglob("*"))
        for one in (folder / "train" if split else folder).iterdir()
        if one.is_dir()
    ]
    return sum(count if split else count - count // 5 for count in counts)  # each fifth tests


#: By name, what builds it with random weights: "here" or a function of `torchvision.models`
ENCODERS = {"small-cnn": "here", "resnet18": "resnet18", "resnet50": "resnet50"}
