"""The data sets and encoders that runs on images name: a new one is an entry. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
    if (counts := _counts(name)) is None:
        return None
    return sum(train for train, _ in counts)


def check_folder(name: str) -> None:
    """Raise ValueError for a folder of which no data set can be made; it is not read."""
    if (counts := _counts(name)) is None:
        return
    if sum(train > 0 for train, _ in counts) < 2 or not any(test for _, test in counts):
        raise ValueError(
            "dataset must be a folder with a subfolder of pictures for each class, two or more, of "
            "five pictures or more (each fifth tests), or with such folders train and test, got "
            f"{name!r}"
        )


def _counts(name: str) -> list[tuple[int, int]] | None:
    """Return the pictures for training and for testing of a folder's classes; None if unknown."""
    word, folder, _ = own_path(name)
    if word != "folder" or not folder.is_dir():
        return None
    tests = [folder / part for part in ("test", "val") if (folder / part).is_dir()]
    if tests:
        train, test = _pictures(folder / "train"), _pictures(tests[0])
        return [(n, 0) for n in train] + [(0, n) for n in test]
    return [(n - n // 5, n // 5) for n in _pictures(folder)]  # each fifth tests


def _pictures(folder: Path) -> list[int]:
    """Return how many pictures each subfolder has."""
    parts = [one for one in folder.iterdir() if one.is_dir()] if folder.is_dir() else []
    return [sum(x.suffix.lower() in PICTURES for x in part.rglob("*")) for part in parts]


#: By name, what builds it with random weights: "here" or a function of `torchvision.models`
ENCODERS = {"small-cnn": "here", "resnet18": "resnet18", "resnet50": "resnet50"}
