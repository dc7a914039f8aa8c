"""Image data sets: the cache file, downloads through torchvision, folders, subsets."""

import shutil
import tarfile
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hnlib import _files
from hnlib.images import data
from hnlib.images._torchvision import torchvision


def arrays(n=12, m=4, size=8, classes=3, channels=3):
    generator = np.random.default_rng(0)
    return dict(
        x_train=generator.integers(0, 256, (n, size, size, channels), np.uint8),
        y_train=np.arange(n) % classes,
        x_test=generator.integers(0, 256, (m, size, size, channels), np.uint8),
        y_test=np.arange(m) % classes,
    )


@pytest.fixture
def place(tmp_path):
    """Write a file where `load("cifar10", tmp_path)` looks for it."""

    def write(**changes):
        path = tmp_path / "images" / "cifar10.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **{k: v for k, v in (arrays() | changes).items() if v is not None})
        return path

    return write


DIGITS = data.load("digits")


def test_digits_are_embedded_and_split_by_class():
    assert DIGITS.x_train.shape == (1437, 8, 8, 1) and DIGITS.x_test.shape == (360, 8, 8, 1)
    assert DIGITS.y_test.bincount().min() >= 34 and DIGITS.y_test.bincount().max() <= 38
    with pytest.raises(ValueError, match="digits has 1437 training images, got a size of 1438"):
        data.subset(DIGITS, 1438)


def test_a_file_in_place_is_used_as_it_is(place, tmp_path, monkeypatch):
    place()
    monkeypatch.setenv("HNLIB_DATA", str(tmp_path))
    loaded, expected = data.load("cifar10"), arrays()
    assert np.array_equal(loaded.x_train.numpy(), expected["x_train"])
    assert loaded.class_names[3] == "cat" and loaded.x_unlabelled is None
    place(class_names=np.array(["a", "b", "c"]), x_unlabelled=arrays(5)["x_train"])
    loaded = data.load("cifar10", tmp_path)
    assert loaded.class_names == ("a", "b", "c") and len(loaded.x_unlabelled) == 5


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(x_test=arrays()["x_test"][..., 0]), r"x_test .* got torch.uint8 \[4, 8, 8\]"),
        (dict(y_train=np.array([None] * 12, dtype=object)), "allow_pickle=False"),
        (dict(y_train=np.arange(12) - 1), "y_train .* must lie in 0 to 9, got -1 to 10"),
    ],
)
def test_a_file_of_another_form_is_refused_and_nothing_unpickled(place, tmp_path, changes, message):
    path = place(**changes)
    with pytest.raises(ValueError, match=message) as error:
        data.load("cifar10", tmp_path)
    assert str(path) in str(error.value)


# --- downloads


def test_cifar_comes_from_torchvision_and_is_stored_once(tmp_path, monkeypatch):
    images = np.random.default_rng(1).integers(0, 256, (6, 32, 32, 3), np.uint8)
    calls = []

    def downloaded(folder, train, download):
        calls.append(train)
        part = slice(0, 4) if train else slice(4, 6)
        labels = [42, 0, 1, 2, 0, 42][part]
        return SimpleNamespace(data=images[part], targets=labels, classes=[*map(str, range(100))])

    monkeypatch.setattr(torchvision.datasets, "CIFAR100", downloaded)
    first, again = data.load("cifar100", tmp_path), data.load("cifar100", tmp_path)
    assert calls == [True, False]
    assert np.array_equal(first.x_train.numpy(), images[:4]) and first.y_train[0] == 42
    assert first.num_classes == 100 and first.digest == again.digest
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["cifar100.npz"]


def test_stl10_has_its_channels_last_and_unlabelled_images(tmp_path, monkeypatch):
    images = np.random.default_rng(2).integers(0, 256, (2, 3, 96, 96), np.uint8)

    def downloaded(folder, split, download):
        return SimpleNamespace(data=images, labels=np.array([0, 9]), classes=[*"abcdefghij"])

    monkeypatch.setattr(torchvision.datasets, "STL10", downloaded)
    loaded = data.load("stl10", tmp_path)
    assert np.array_equal(loaded.x_train.numpy(), images.transpose(0, 2, 3, 1))
    assert loaded.y_test.tolist() == [0, 9] and loaded.x_unlabelled.shape == (2, 96, 96, 3)


def test_of_tiny_imagenet_a_sentence_says_where_to_put_it(tmp_path):
    with pytest.raises(ValueError, match=r"not downloaded; \S+/tiny-imagenet.npz must be an unc"):
        data.load("tiny-imagenet", tmp_path)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "stl10", "MUTAG", "novels"])
def test_nothing_is_unpacked_from_a_hostile_archive(tmp_path, monkeypatch, refuses, name):
    served, root = tmp_path / "served.zip", tmp_path / "data"
    with zipfile.ZipFile(served, "w") as archive:
        for file in ("../evil.sh", "MUTAG/MUTAG_A.txt", "novels-1/corpus/A_B_1900.txt"):
            archive.writestr(file, "exit 1")
    url = served.as_uri()
    network = torchvision.datasets.utils
    monkeypatch.setattr(network, "_get_redirect_url", lambda url, **_: url)
    monkeypatch.setattr(network, "_urlretrieve", lambda url, path: shutil.copy(served, path))
    monkeypatch.setattr("hnlib.graphs.data.SOURCE", url)
    monkeypatch.setattr("hnlib.sentences.data.NOVELS", url)

    def never(*_, **__):
        raise AssertionError("this reads a file of the archive")

    monkeypatch.setattr(zipfile.ZipFile, "open", never)
    monkeypatch.setattr(tarfile, "open", never)
    assert f"{name} could not be downloaded" in refuses("data", name, "--root", root)
    assert not [path for path in root.rglob("*") if path.is_file()]


@pytest.mark.parametrize("fault", ["name", "size", "listing"])
def test_only_expected_files_are_read_from_an_archive(tmp_path, fault):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../a.txt" if fault == "name" else "a.txt", "0123456789")
    asked = {"size": dict(largest=9), "listing": dict(listing="0123")}.get(fault, {})
    with pytest.raises(zipfile.BadZipFile, match="of the expected files"):
        _files.read_zip(path, r"\w\.txt", **asked)
    assert not [*tmp_path.iterdir()]


# --- folders of pictures


def pictures(folder, counts: dict[str, int]):
    for c, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (20, 12), (60 * c, 0, 0)).save(folder / name / f"{i:02}.png")


def test_image_folder_with_its_own_split(tmp_path):
    pictures(tmp_path / "train", {"cat": 3, "dog": 2})
    pictures(tmp_path / "val", {"cat": 1, "dog": 1})
    loaded = data.load(f"folder:{tmp_path}")
    assert loaded.x_train.shape == (5, 32, 32, 3) and loaded.x_test.shape == (2, 32, 32, 3)
    assert loaded.class_names == ("cat", "dog") and loaded.x_train[4, 0, 0, 0] == 60
    assert data.load(f"folder:{tmp_path}@48").x_test.shape == (2, 48, 48, 3)


def test_image_folder_faults(tmp_path):
    pictures(tmp_path / "split" / "train", {"cat": 1, "dog": 1})
    pictures(tmp_path / "split" / "test", {"cat": 1})
    with pytest.raises(ValueError, match="dog"):
        data.image_folder(tmp_path / "split")
    pictures(tmp_path / "one", {"cat": 10})
    with pytest.raises(ValueError, match=r"folder:one has the classes \('cat',\); give at least 2"):
        data.image_folder(tmp_path / "one")
    Image.fromarray(np.ones((8, 8), np.uint16)).save(tmp_path / "one/cat/deep.tif")
    with pytest.raises(ValueError, match=r"deep\.tif has the mode I;16"):
        data.image_folder(tmp_path / "one")
    (tmp_path / "one/cat/deep.tif").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n")
    with pytest.raises(OSError, match=r"deep\.tif"):  # pillow would start an interpreter
        data.image_folder(tmp_path / "one")


# --- subsets


@settings(max_examples=10)
@given(st.integers(2, 1437), st.integers(0, 5))
def test_a_subset_is_balanced(n, seed):
    part = data.subset(DIGITS, n, seed)
    counts, available = (x.y_train.bincount(minlength=10) for x in (part, DIGITS))
    assert len(part.x_train) == counts.sum() == n
    level = int(counts.max())  # every class has as many, one fewer, or all it has
    assert ((counts >= level - 1) | (counts == available)).all()
    assert torch.equal(part.x_test, DIGITS.x_test)


@pytest.fixture
def numbers():
    """Forty images that are their number, of four classes."""
    x, y = torch.arange(40, dtype=torch.uint8).view(40, 1, 1, 1), torch.arange(40) % 4
    return data.Dataset("numbers", x, y, x, y, tuple("abcd"))


def test_validation_images_are_set_apart_once_and_for_all(numbers):
    part = data.hold_out(numbers, 8)
    assert part.y_validation.bincount().tolist() == [2, 2, 2, 2]
    assert part.digest != numbers.digest
    assert len(part.x_train) == 32
    assert len(torch.cat([part.x_train, part.x_validation]).unique()) == 40
    assert torch.equal(part.x_validation, data.hold_out(numbers, 8).x_validation)
    assert torch.equal(data.subset(part, 10).x_validation, part.x_validation)


def test_the_command_verifies_a_set(place, tmp_path, prints):
    place()
    printed = prints("data", "cifar10", "--root", tmp_path)
    assert data.load("cifar10", tmp_path).digest in printed and str(tmp_path) in printed
    listed = prints("data", "--root", tmp_path)
    assert "cifar10" in listed and "MUTAG" in listed and str(tmp_path) in listed
