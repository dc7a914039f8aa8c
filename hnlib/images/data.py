"""Image data sets in memory; real ones are downloaded once and kept in one file each."""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hnlib import _archives
from hnlib._files import data_folder, write_atomically

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer")
CIFAR10_CLASSES += ("dog", "frog", "horse", "ship", "truck")
FORMATS = ("BMP", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # pillow's other readers stay away
PARTS = ("x_train", "y_train", "x_test", "y_test")
FORM = "an uncompressed .npz with uint8 x_train, x_test [N,H,W,C] and integer y_train, y_test [N]"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images uint8 [N,H,W,C] and labels int64 [N], split for training and test; `digest` identifies
    the contents. ValueError: labels of another type."""

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    class_names: tuple[str, ...]
    digest: str
    x_unlabelled: Tensor | None = None
    x_validation: Tensor | None = None
    y_validation: Tensor | None = None

    def __post_init__(self):
        for y in (self.y_train, self.y_test):
            if y.dtype != torch.int64:
                raise ValueError(f"labels of {self.name} are {y.dtype}; give whole numbers, int64")

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def image_size(self) -> int:
        return self.x_train.shape[1]

    @property
    def channels(self) -> int:
        return self.x_train.shape[3]


def load(name: str, root: Path | str | None = None) -> Dataset:
    """The data set digits (embedded), cifar10, cifar100, stl10, tiny-imagenet, or folder:PATH.

    `root` defaults to `$HNLIB_DATA`, else the user's cache. A real set lives in
    `root/images/NAME.npz`; where that is missing it is downloaded, checked against its MD5 and
    written there; where it is present it is used as it is. ValueError: an unknown name; a file that
    is truncated, altered or of another form; a download that fails.
    """
    if name == "digits":
        return _digits()
    if name.startswith("folder:"):
        return image_folder(name.removeprefix("folder:"))
    if name not in ARCHIVES:
        raise ValueError(f"unknown data set {name!r}; known: {', '.join(KNOWN)}")
    path = location(name, root)
    if not path.exists():
        _download(name, path)
    return _read(name, path)


def location(name: str, root: Path | str | None = None) -> Path:
    """The file a real data set is kept in."""
    return data_folder(root) / "images" / f"{name}.npz"


def image_folder(path: Path | str, size: int = 32) -> Dataset:
    """A folder of pictures, one subfolder a class: RGB, shorter side `size`, centre cropped.

    With the subfolders `train` and `test` (or `val`) these are the split; else every fifth picture
    of each class, in the order of their names, is for testing. ValueError: no such folder, no
    pictures, one that cannot be read, a folder that is met twice, classes that differ between the
    parts.
    """
    path = Path(path)
    _refuse_loops(path)
    test = next((path / part for part in ("test", "val") if (path / part).is_dir()), path / "test")
    if (path / "train").is_dir() and test.is_dir():
        x, y, classes = _pictures(path / "train", size)
        x_test, y_test, others = _pictures(test, size)
        if differ := sorted(set(classes) ^ set(others)):
            raise ValueError(f"{test} and train differ in {differ}; give both the same classes")
        return _dataset(f"folder:{path.name}", x, y, x_test, y_test, classes)
    x, y, classes = _pictures(path, size)
    fifth = np.concatenate([np.arange(n) for n in np.bincount(y)]) % 5 == 4
    if not fifth.any():
        raise ValueError(f"{path} has fewer than 5 pictures in every class: none is for testing")
    return _dataset(f"folder:{path.name}", x[~fifth], y[~fifth], x[fifth], y[fifth], classes)


def subset(dataset: Dataset, n: int, seed: int = 0) -> Dataset:
    """The data set with `n` of its training images, as equally from all classes as possible.

    ValueError: `n` outside 2 … the number of training images.
    """
    return _train_on(dataset, _drawn(dataset, f"a training subset of {n}", n, 2, 0, seed))


def hold_out(dataset: Dataset, n: int, seed: int = 0) -> Dataset:
    """The data set with `n` of its training images set apart for validation, class-balanced:
    choices are made on them.

    ValueError: `n` that does not leave at least 2 training images, or less than 1.
    """
    chosen = _drawn(dataset, f"{n} validation images", n, 1, 2, seed)
    rest = np.setdiff1d(np.arange(len(dataset.x_train)), chosen)
    held = dict(x_validation=dataset.x_train[chosen], y_validation=dataset.y_train[chosen])
    return replace(_train_on(dataset, rest), **held)


def _drawn(dataset: Dataset, what: str, n: int, least: int, left: int, seed: int) -> np.ndarray:
    """Indices of `n` training images, as equally from all classes as possible, ascending."""
    y = dataset.y_train.numpy()
    most = len(y) - left
    if not least <= n <= most:
        of = f"{dataset.name} with its {len(y)} training images; choose {least} to {most}"
        raise ValueError(f"{what} cannot be taken from {of}")
    generator = np.random.default_rng(seed)
    shuffled = generator.permutation(len(y))
    # rank within its class, in shuffled order: taking low ranks first balances classes
    rank = np.empty(len(y), int)
    for c in np.unique(y):
        members = shuffled[y[shuffled] == c]
        rank[members] = np.arange(len(members))
    return np.sort(np.lexsort((generator.random(len(y)), rank))[:n])


def _train_on(dataset: Dataset, chosen: np.ndarray) -> Dataset:
    x_train, y_train = dataset.x_train[chosen], dataset.y_train[chosen]
    digest = _digest(x_train, y_train, dataset.x_test, dataset.y_test)
    return replace(dataset, x_train=x_train, y_train=y_train, digest=digest)


def listing(root: Path | str | None = None) -> str:
    """Where each data set is, a line each."""
    places = {name: "embedded or given" for name in KNOWN}
    for name in ARCHIVES:
        path = location(name, root)
        places[name] = f"{path}{'' if path.exists() else ' (not there yet)'}"
    return "\n".join(f"{name:15}{place}" for name, place in places.items())


def describe(name: str, root: Path | str | None = None) -> str:
    """Sizes and classes of a data set, fetched if need be, a line each."""
    dataset = load(name, root)
    said = {
        part: f"{str(array.dtype).removeprefix('torch.'):7}{list(array.shape)}"
        for part in (*PARTS, "x_unlabelled")
        if (array := getattr(dataset, part)) is not None
    }
    shown = ", ".join(dataset.class_names[:10]) + (", …" if dataset.num_classes > 10 else "")
    said |= {"classes": f"{dataset.num_classes}: {shown}", "digest": dataset.digest}
    said["location"] = location(name, root) if name in ARCHIVES else "embedded or given"
    return "\n".join(f"{key:13}{value}" for key, value in said.items())


def _digits() -> Dataset:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    x = np.rint(x * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    train, test = train_test_split(np.arange(len(y)), test_size=360, stratify=y, random_state=0)
    return _dataset("digits", x[train], y[train], x[test], y[test], [str(c) for c in range(10)])


def _read(name: str, path: Path) -> Dataset:
    try:
        arrays = _archives.arrays(path)
    except ValueError as error:
        raise _refusal(name, path, f"cannot be read ({error})") from error
    if fault := next(_faults(arrays), None):
        raise _refusal(name, path, fault)
    labels = [int(end) for y in ("y_train", "y_test") for end in (arrays[y].min(), arrays[y].max())]
    low, high, images = min(labels), max(labels), len(arrays["y_train"]) + len(arrays["y_test"])
    classes = CIFAR10_CLASSES if name == "cifar10" else range(min(high + 1, images))
    classes = [str(c) for c in np.ravel(arrays.get("class_names", classes))]
    if low < 0 or high >= len(classes):
        raise _refusal(name, path, f"has labels {low} to {high} for {len(classes)} classes")
    if unreadable := [c for c in classes if not c.isprintable()]:
        raise _refusal(name, path, f"has class_names that cannot be printed, as {unreadable[0]!r}")
    parts = [arrays[key] for key in PARTS]
    return _dataset(name, *parts, classes=classes, unlabelled=arrays.get("x_unlabelled"))


def _faults(arrays: dict[str, np.ndarray]) -> Iterator[str]:
    """What the arrays of a file lack, or have that they should not; the first is told."""
    if missing := [key for key in PARTS if key not in arrays]:
        yield f"lacks {', '.join(missing)}"
    for part in ("train", "test"):
        x, y = arrays[f"x_{part}"], arrays[f"y_{part}"]
        pixels = x.dtype == np.uint8 and x.ndim == 4 and x.size
        if not pixels or x.shape[1] != x.shape[2] or x.shape[3] not in (1, 3):
            yield f"has x_{part} of type {x.dtype} and shape {x.shape}"
        if y.dtype.kind not in "iu" or y.shape != x.shape[:1]:
            yield f"has y_{part} of type {y.dtype} and shape {y.shape} for {len(x)} images"
    size = arrays["x_train"].shape[1:]
    if size != arrays["x_test"].shape[1:]:
        yield "has images of different sizes for training and test"
    names = arrays.get("class_names")
    if names is not None and (names.ndim != 1 or names.dtype.kind not in "Uiu"):
        yield f"has class_names of type {names.dtype} and shape {names.shape}"
    more = arrays.get("x_unlabelled")
    if more is not None and (more.dtype != np.uint8 or more.shape[1:] != size):
        yield f"has x_unlabelled of type {more.dtype} and shape {more.shape}"


def _refusal(name: str, path: Path, fault: str) -> ValueError:
    return ValueError(f"{path} {fault}; needed is {FORM}. Delete it, then run `hnlib data {name}`")


def _dataset(name, x_train, y_train, x_test, y_test, classes, unlabelled=None) -> Dataset:
    x_train, x_test = (torch.from_numpy(np.ascontiguousarray(x)) for x in (x_train, x_test))
    y_train, y_test = (torch.from_numpy(y.astype(np.int64)) for y in (y_train, y_test))
    unlabelled = None if unlabelled is None else torch.from_numpy(np.ascontiguousarray(unlabelled))
    digest = _digest(x_train, y_train, x_test, y_test, unlabelled)
    return Dataset(name, x_train, y_train, x_test, y_test, tuple(classes), digest, unlabelled)


def _digest(*arrays: Tensor | None) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        if array is not None:
            digest.update(f"{array.dtype}{tuple(array.shape)}".encode())
            digest.update(array.contiguous().numpy().data)
    return digest.hexdigest()


def _download(name: str, path: Path) -> None:
    url, md5, read = ARCHIVES[name]
    _archives.check_folder(path.parent)
    with _archives.downloaded(name, url, f"put the data at {path}: {FORM}", md5) as archive:
        arrays = read(archive)
    write_atomically(path, lambda temporary: np.savez(temporary, **arrays))


def _files(archive: Path, names: Sequence[str]) -> list[bytes]:
    files = _archives.unpacked(archive, names.__contains__)
    return [files[name] for name in names]


def _cifar(label_bytes: int, names: Sequence[str], archive: Path) -> dict:
    *train, test, classes = _files(archive, names)

    def part(content):
        rows = np.frombuffer(content, np.uint8).reshape(-1, label_bytes + 3072)
        x = rows[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(x), rows[:, label_bytes - 1].astype(np.int64)  # the finer one

    arrays = dict(zip(PARTS, (*part(b"".join(train)), *part(test))))
    return arrays | {"class_names": np.array(classes.decode().split())}


def _stl10(archive: Path) -> dict:
    names = "train_X.bin", "train_y.bin", "test_X.bin", "test_y.bin", "unlabeled_X.bin"
    *parts, classes = _files(archive, (*names, "class_names.txt"))
    arrays = {}
    for key, content in zip((*PARTS, "x_unlabelled"), parts):
        content = np.frombuffer(content, np.uint8)
        if key.startswith("x"):  # stored column by column
            arrays[key] = content.reshape(-1, 3, 96, 96).transpose(0, 3, 2, 1).copy()
        else:  # stored as 1 to 10
            arrays[key] = content.astype(np.int64) - 1
    return arrays | {"class_names": np.array(classes.decode().split())}


def _tiny_imagenet(archive: Path) -> dict:
    files = _archives.unpacked(archive, re.compile(r"train/.+\.JPEG|val/.+").fullmatch)
    train = sorted(name for name in files if name.startswith("train/"))
    classes, y_train = np.unique([name.split("/")[1] for name in train], return_inverse=True)
    text = files["val/val_annotations.txt"].decode()
    test = sorted(tuple(line.split("\t")[:2]) for line in text.splitlines())

    def pictures(names):
        return np.stack([_picture(io.BytesIO(files[name])) for name in names])

    x_train, x_test = pictures(train), pictures(f"val/images/{name}" for name, _ in test)
    y_test = np.searchsorted(classes, [name for _, name in test])
    return dict(zip(PARTS, (x_train, y_train, x_test, y_test))) | {"class_names": classes}


_BATCHES = *(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin", "batches.meta.txt"
# Where each archive comes from, the MD5 its publisher gives, and its reader. The binary releases of
# CIFAR hold no pickle.
ARCHIVES: dict[str, tuple[str, str, Callable[[Path], dict]]] = {
    "cifar10": (
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        partial(_cifar, 1, _BATCHES),
    ),
    "cifar100": (
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
        partial(_cifar, 2, ("train.bin", "test.bin", "fine_label_names.txt")),
    ),
    "stl10": (
        "http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
        "91f7769df0f17e558f3565bffb0c7dfb",
        _stl10,
    ),
    "tiny-imagenet": (
        "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        "90528d7ca1a48142e341f4ef8d21d0de",
        _tiny_imagenet,
    ),
}
KNOWN = ("digits", *ARCHIVES, "folder:PATH")


def _pictures(folder: Path, size: int) -> tuple[np.ndarray, np.ndarray, list[str]]:
    from hnlib.images._torchvision import torchvision

    try:
        found = torchvision.datasets.ImageFolder(folder)
        if len({_archives.alike(name) for name in found.classes}) < len(found.classes):
            raise ValueError("two classes differ in case or in the writing of accents alone")
        x = np.stack([_picture(path, size) for path, _ in found.samples])
    except (OSError, ValueError) as error:  # no such folder, an empty class, or no picture
        needed = "a folder of pictures, one subfolder a class"
        raise ValueError(f"{folder} is not {needed} ({error})") from error
    return x, np.array(found.targets), found.classes


def _refuse_loops(folder: Path) -> None:
    """ValueError: a link leads to a folder that was met before. Its pictures would count twice."""
    met = {}
    for place, folders, _ in os.walk(folder, followlinks=True):
        for path in (os.path.join(place, name) for name in folders):
            status = os.stat(path)
            first = met.setdefault((status.st_dev, status.st_ino), path)
            if first != path:
                raise ValueError(f"{path} and {first} are the same folder; remove one of them")


def _picture(file, size: int | None = None) -> np.ndarray:
    from PIL import Image, ImageOps

    if isinstance(file, str) and not os.path.isfile(file):
        raise ValueError(f"{file} is not a file")
    try:
        with Image.open(file, formats=FORMATS) as image:
            image = image.convert("RGB")
    except Exception as error:  # what a broken picture raises depends on its format
        raise ValueError(f"{file} cannot be read: {_archives.said(error)}") from error
    if size is not None:
        image = ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    return np.asarray(image)
