"""Image data sets in memory; real ones are downloaded once and stored in one file each."""

from __future__ import annotations

import functools
import hashlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hnlib import _checks
from hnlib._files import DAMAGED, data_folder, explain_failed_download, own_name, own_path
from hnlib.images.config import ImageRun
from hnlib.images.registry import DATASETS

SIDE = 32  # pixels of your own pictures, if nothing is said
FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # pillow's other readers stay away
PARTS = ("x_train", "y_train", "x_test", "y_test")
FORM = "an uncompressed .npz with uint8 x_train, x_test [N,H,W,C] and integer y_train, y_test [N]"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images uint8 [N,H,W,C] and labels int64 [N], split for training and test."""

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    class_names: tuple[str, ...]
    x_unlabelled: Tensor | None = None
    x_validation: Tensor | None = None
    y_validation: Tensor | None = None

    def __post_init__(self):
        if self.num_classes < 2:
            raise ValueError(f"{self.name} has the classes {self.class_names}; give at least 2")
        for part in ("train", "test", "validation", "unlabelled"):
            x, y = getattr(self, f"x_{part}"), getattr(self, f"y_{part}", None)
            if x is None:
                continue
            size = x.shape[1:]
            if x.dtype != torch.uint8 or len(size) != 3 or size != self.x_train.shape[1:]:
                raise ValueError(
                    f"x_{part} of {self.name} must be uint8 [N,H,W,C] with the shape of the "
                    f"training images, got {x.dtype} {list(x.shape)}"
                )
            if y is not None and not 0 <= y.min() <= y.max() < self.num_classes:
                raise ValueError(
                    f"y_{part} of {self.name} must lie in 0 to {self.num_classes - 1}, got "
                    f"{int(y.min())} to {int(y.max())}"
                )

    @functools.cached_property
    def digest(self) -> str:
        """Return what identifies the images and labels."""
        digest = hashlib.sha256()
        parts = self.x_train, self.y_train, self.x_test, self.y_test, self.x_unlabelled
        for part in parts:
            if part is not None:
                digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
                digest.update(part.contiguous().numpy().data)
        return digest.hexdigest()

    @property
    def num_classes(self) -> int:
        """Return the number of classes."""
        return len(self.class_names)

    @property
    def image_size(self) -> int:
        """Return the side in pixels."""
        return self.x_train.shape[1]

    @property
    def channels(self) -> int:
        """Return 1 or 3."""
        return self.x_train.shape[3]


def load(name: str, root: Path | str | None = None) -> Dataset:
    """Load a set of the registry, or folder:PATH[@SIZE].

    `root` defaults to `$HNLIB_DATA`, else the user's cache. A real set is stored in
    `root/images/NAME.npz`. If that file exists it is used as it is; otherwise the set is
    downloaded, checked against its MD5 and written there; one without a source is yours to write.
    """
    if name == "digits":
        return _digits()
    word, path, size = own_path(name)
    if word == "folder":
        return image_folder(path, int(size or SIDE))
    _checks.one_of("dataset", name, (*ImageRun.datasets, *ImageRun.own_datasets))
    path = data_folder(root, "images") / f"{name}.npz"
    if not path.exists():
        if not DATASETS[name].source:
            raise ValueError(
                f"{name} is not downloaded; {path} must be {FORM}, as image_folder(PATH, 64) reads "
                "them of its archive once the pictures of val are in folders of their classes"
            )
        _download(name, path)
    return _read(name, path)


def image_folder(path: Path | str, size: int = SIDE) -> Dataset:
    """Load a folder of pictures, one subfolder per class: RGB, shorter side `size`, centre cropped.

    If it has subfolders `train` and `test` (or `val`), these are the split; else every fifth
    picture of each class, in the order of their names, is for testing.
    """
    path = Path(path)
    name = own_name(f"folder:{path}" + (f"@{size}" if size != SIDE else ""))
    test = path / ("test" if (path / "test").is_dir() else "val")
    if test.is_dir():
        (x, y, classes), (x_test, y_test, others) = (
            _pictures(part, size) for part in (path / "train", test)
        )
        if differ := sorted(set(classes) ^ set(others)):
            raise ValueError(f"{path} has {differ} in one part alone; give both the same classes")
        return _dataset(name, x, y, x_test, y_test, classes)
    x, y, classes = _pictures(path, size)
    fifth = np.concatenate([np.arange(n) for n in np.bincount(y)]) % 5 == 4
    return _dataset(name, x[~fifth], y[~fifth], x[fifth], y[fifth], classes)


def subset(dataset: Dataset, n: int, seed: int = 0) -> Dataset:
    """Take `n` of the training images, as equally from all classes as possible."""
    chosen = _balanced(dataset, n, seed)
    return replace(dataset, x_train=dataset.x_train[chosen], y_train=dataset.y_train[chosen])


def hold_out(dataset: Dataset, n: int) -> Dataset:
    """Set aside `n` training images for validation, balanced by class."""
    if n >= (count := len(dataset.x_train)):
        raise ValueError(
            f"validation must be less than the {count:,} training images of {dataset.name}, got {n}"
        )
    chosen = _balanced(dataset, n, seed=0)
    rest = np.setdiff1d(np.arange(len(dataset.x_train)), chosen)
    x, y = dataset.x_train, dataset.y_train
    validation = dict(x_validation=x[chosen], y_validation=y[chosen])
    return replace(dataset, x_train=x[rest], y_train=y[rest], **validation)


def _balanced(dataset: Dataset, n: int, seed: int) -> np.ndarray:
    """Return ascending indices of `n` training images, as equally from all classes as possible."""
    y = dataset.y_train.numpy()
    if not 1 <= n <= len(y):
        raise ValueError(f"{dataset.name} has {len(y)} training images, got a size of {n}")
    generator = np.random.default_rng(seed)
    shuffled = generator.permutation(len(y))
    # rank within its class, in shuffled order: taking low ranks first balances classes
    rank = np.empty(len(y), int)
    for c in np.unique(y):
        members = shuffled[y[shuffled] == c]
        rank[members] = np.arange(len(members))
    return np.sort(np.lexsort((generator.random(len(y)), rank))[:n])


def _digits() -> Dataset:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x = np.rint(x * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    train, test = train_test_split(np.arange(len(y)), test_size=360, stratify=y, random_state=0)
    return _dataset("digits", x[train], y[train], x[test], y[test], [str(c) for c in range(10)])


def _read(name: str, path: Path) -> Dataset:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
        usual = DATASETS[name].class_names or np.unique(arrays["y_train"])
        classes = [str(c) for c in arrays.get("class_names", usual)]
        parts = [arrays[part] for part in PARTS]
        return _dataset(name, *parts, classes=classes, unlabelled=arrays.get("x_unlabelled"))
    except (*DAMAGED, LookupError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error}); needed is {FORM}") from error


def _dataset(name, x_train, y_train, x_test, y_test, classes, unlabelled=None) -> Dataset:
    x_train, x_test, x_unlabelled = (
        None if x is None else torch.from_numpy(np.ascontiguousarray(x))
        for x in (x_train, x_test, unlabelled)
    )
    y_train = _checks.labels(y_train, len(x_train), name)
    y_test = _checks.labels(y_test, len(x_test), name)
    return Dataset(name, x_train, y_train, x_test, y_test, tuple(classes), x_unlabelled)


def _download(name: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        explain_failed_download(name, f"the data at {path}: {FORM}"),
        tempfile.TemporaryDirectory(dir=path.parent) as folder,
    ):
        complete = Path(folder) / path.name
        np.savez(complete, **_torchvision(name, Path(folder)))
        complete.replace(path)


def _torchvision(name: str, folder: Path) -> dict[str, np.ndarray]:
    """Let torchvision download a set, check its published MD5, unpack and read it."""
    from hnlib.images._torchvision import torchvision

    known = DATASETS[name]
    kind = getattr(torchvision.datasets, str(known.source))
    train, test, *unlabelled = [kind(folder, part, download=True) for part in known.parts]
    arrays = [_pixels(train), _labels(train), _pixels(test), _labels(test)]
    named = dict(zip((*PARTS, "x_unlabelled"), [*arrays, *map(_pixels, unlabelled)]))
    return named | {"class_names": np.array(train.classes)}


def _pixels(part) -> np.ndarray:
    """Return the images of a set of torchvision, [N,H,W,C]; some are [N,H,W], some [N,C,H,W]."""
    x = np.asarray(part.data)
    if x.ndim == 3:
        return x[..., None]
    return x.transpose(0, 2, 3, 1) if x.shape[1] in (1, 3) else x


def _labels(part) -> np.ndarray:
    return np.asarray(part.targets if hasattr(part, "targets") else part.labels)


def _pictures(folder: Path, size: int) -> tuple[np.ndarray, np.ndarray, list[str]]:
    from hnlib.images._torchvision import torchvision

    images = torchvision.datasets.ImageFolder(folder)
    x = np.stack([_picture(path, size) for path, _ in images.samples])
    return x, np.array(images.targets), images.classes


def _picture(file: str, size: int) -> np.ndarray:
    from PIL import Image, ImageOps

    with Image.open(file, formats=FORMATS) as image:
        if image.mode[0] in "IF":  # pillow would cut what is above 255
            raise ValueError(f"picture {file} has the mode {image.mode}; save it with 8 bits")
        image = image.convert("RGB")
    return np.asarray(ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR))
