"""Image data sets: the cache file, downloads through torchvision, folders, subsets."""

import re
import shutil
import tarfile
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from drawn import seeded
from PIL import Image
from scripts import ROOT

from builder import own_data
from hnlib import _files, methods
from hnlib.images import data, encoders, registry, task
from hnlib.images._torchvision import torchvision
from hnlib.images.config import AUGMENTATIONS, ImageRun

rng = np.random.default_rng(0)
ARRAYS = dict(
    x_train=rng.integers(0, 256, (12, 8, 8, 3), np.uint8),
    y_train=np.arange(12) % 3,
    x_test=rng.integers(0, 256, (4, 8, 8, 3), np.uint8),
    y_test=np.arange(4) % 3,
)


def place(folder, **changes):
    """Write a file where `load("cifar10", folder)` looks for it."""
    (folder / "images").mkdir(exist_ok=True)
    np.savez(folder / "images/cifar10.npz", **ARRAYS | changes)


DIGITS = data.load("digits")


def test_digits_are_embedded_and_split_by_class():
    assert DIGITS.x_train.shape == (1437, 8, 8, 1) and DIGITS.x_test.shape == (360, 8, 8, 1)
    assert DIGITS.y_test.bincount().min() >= 34 and DIGITS.y_test.bincount().max() <= 38
    with pytest.raises(ValueError, match="digits has 1437 training images, got a size of 1438"):
        data.subset(DIGITS, 1438)


def test_a_file_in_place_is_used_as_it_is(tmp_path, monkeypatch):
    place(tmp_path, x_unlabelled=ARRAYS["x_test"])
    monkeypatch.setenv("HNLIB_DATA", str(tmp_path))
    loaded = data.load("cifar10")
    assert np.array_equal(loaded.x_train.numpy(), ARRAYS["x_train"])
    assert loaded.class_names[3] == "cat" and len(loaded.x_unlabelled) == 4
    place(tmp_path, class_names=np.array(["a", "b", "c"]))
    assert data.load("cifar10", tmp_path).class_names == ("a", "b", "c")


@pytest.mark.parametrize(
    "changes, message",
    [
        (dict(x_test=ARRAYS["x_test"][..., 0]), r"x_test .* got torch.uint8 \[4, 8, 8\]"),
        (dict(y_train=np.array([None] * 12, dtype=object)), "allow_pickle=False"),
        (dict(y_train=np.arange(12) - 1), "y_train .* must lie in 0 to 9, got -1 to 10"),
    ],
)
def test_a_file_of_another_form_is_refused_and_nothing_unpickled(tmp_path, changes, message):
    place(tmp_path, **changes)
    with pytest.raises(ValueError, match=rf"/images/cifar10\.npz.*{message}"):
        data.load("cifar10", tmp_path)


@pytest.mark.parametrize("part", ["x_train", "y_train", "x_test", "y_test", "x_unlabelled"])
def test_the_digest_sees_every_array(tmp_path, part):
    arrays = ARRAYS | dict(x_unlabelled=ARRAYS["x_test"])
    changed = arrays[part].copy()
    changed.flat[-1] = (changed.flat[-1] + 1) % 3
    digests = []
    for array in (arrays[part], arrays[part], changed):
        place(tmp_path, **arrays | {part: array})
        digests.append(data.load("cifar10", tmp_path).digest)
    assert digests[0] == digests[1] != digests[2]


# --- downloads


@pytest.mark.parametrize("name", ["cifar100", "stl10"])
def test_a_set_comes_from_torchvision_and_is_stored_once(tmp_path, monkeypatch, name):
    """STL-10 has its channels first there, and images without labels."""
    images, calls = rng.integers(0, 256, (2, 3, 32, 32), np.uint8), []

    def downloaded(folder, part, download):
        calls.append(part)
        stored = images if name == "stl10" else images.transpose(0, 2, 3, 1)
        labels = dict(targets=[9, 0], labels=np.array([9, 0]))
        return SimpleNamespace(data=stored, **labels, classes=[*"abcdefghij"])

    monkeypatch.setattr(torchvision.datasets, name.upper(), downloaded)
    first, again = data.load(name, tmp_path), data.load(name, tmp_path)
    assert calls == (["train", "test", "unlabeled"] if name == "stl10" else [True, False])
    assert np.array_equal(first.x_train.numpy(), images.transpose(0, 2, 3, 1))
    assert first.y_test.tolist() == [9, 0] and first.class_names == tuple("abcdefghij")
    assert (first.x_unlabelled is not None) == (name == "stl10")
    assert first.digest == again.digest
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == [f"{name}.npz"]


def test_a_data_set_and_an_encoder_are_one_entry_each(tmp_path, monkeypatch, prints, refuses):
    """As CONTRIBUTING adds them: grey images, which torchvision has as a tensor [N,H,W]."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (entries,) = re.findall(r"^(DATASETS\[.*?)^```", text, re.M | re.S)
    images = rng.integers(0, 256, (6, 28, 28), np.uint8)

    def downloaded(folder, part, download):
        labels = torch.arange(6) % 2
        return SimpleNamespace(data=torch.from_numpy(images), targets=labels, classes=[*"ab"])

    monkeypatch.setattr(torchvision.datasets, "FashionMNIST", downloaded)
    try:
        exec(entries, vars(registry))
        assert "Fashion-MNIST: 60,000 + 10,000 images of 28×28, grey, 10 classes" in prints("data")
        found = data.load("fashion-mnist", tmp_path)
        assert np.array_equal(found.x_train[..., 0].numpy(), images)
        run = ImageRun(dataset="fashion-mnist", encoder="resnet34")
        run.check_names()
        assert run.resolved().augmentation == ImageRun(dataset="digits").resolved().augmentation
        assert encoders.build("resnet34", 1, 28).feature_dim == 512
        words = ["train", "images", "--dataset", "fashion-mnist", "--dry-run", "--train-size"]
        assert "60,000 training images, train_size" in refuses(*words, "60001")
        assert "ask for 60,001" in refuses(*words, "60000", "--validation", "1")
        assert prints(*words, "60000", "--encoder", "resnet34")
        with pytest.raises(ValueError, match="Fashion-MNIST has 6 training images"):
            ImageRun(dataset="fashion-mnist", train_size=7).check_names(tmp_path)  # in that file
    finally:
        registry.DATASETS.pop("fashion-mnist", None)
        registry.ENCODERS.pop("resnet34", None)


def test_more_images_than_there_are_is_refused_before_anything_trains(tmp_path):
    """Else the experiments of a page that ask for fewer would train first."""
    folder = own_data.pictures(tmp_path / "mine", (50, 75))  # 100 to train on
    usual = dict(dataset=folder, validation=20, batch_size=30)
    for most, more, said in (
        (dict(train_size=80), dict(train_size=81), "mine has 100 training images, "),
        (
            dict(batch_size=80),
            dict(batch_size=81),
            "at most the 80 images for training of mine, got 81",
        ),
        (
            dict(train_size=30),
            dict(train_size=29),
            "at most the 29 images for training of mine, got 30",
        ),
    ):
        ImageRun(**usual | most).check_names()
        with pytest.raises(ValueError, match=said):
            ImageRun(**usual | more).check_names()
    ImageRun(dataset="stl10", batch_size=6000).check_names(tmp_path)  # of its 105,000
    with pytest.raises(ValueError, match="validation must be less than the 100"):
        data.hold_out(data.load(folder), 100)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_of_yours_are_augmented_as_any_whatever_their_channels(channels):
    """Unless you say how."""
    few = [ARRAYS[part][..., :channels] if part[0] == "x" else ARRAYS[part] for part in data.PARTS]
    own = data.Dataset("mine", *map(torch.from_numpy, few), class_names=("a", "b", "c"))
    for chosen, found in ((None, "simclr"), ("digits", "digits")):
        run = ImageRun(dataset="mine", augmentation=chosen).resolved()
        made = task.Task(run, methods.build("simclr"), dataset=own).augmentation
        assert made == AUGMENTATIONS[found]


@pytest.mark.parametrize("name", ["digits", "cifar10"])
def test_what_the_registry_says_is_what_the_data_are(name, tmp_path):
    if name == "cifar10":
        place(tmp_path)
    found, known = data.load(name, tmp_path), registry.DATASETS[name]
    assert len(known.class_names or found.class_names) == known.classes
    if name == "digits":
        shape = (known.train, known.size, known.size, known.channels)
        assert found.x_train.shape == shape and len(found.x_test) == known.test


def test_of_tiny_imagenet_a_sentence_says_where_to_put_it(tmp_path):
    with pytest.raises(ValueError, match=r"not downloaded; \S+/tiny-imagenet.npz must be an unc"):
        data.load("tiny-imagenet", tmp_path)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "stl10", "MUTAG", "novels"])
def test_nothing_is_unpacked_from_a_hostile_archive(tmp_path, monkeypatch, refuses, name):
    served, root = tmp_path / "served.zip", tmp_path / "data"
    with zipfile.ZipFile(served, "w") as archive:
        for file in ("../evil.sh", "MUTAG/MUTAG_A.txt", "novels-1/corpus/A_B_1900.txt"):
            archive.writestr(file, "exit 1")
    url, network = served.as_uri(), torchvision.datasets.utils
    monkeypatch.setattr(network, "_get_redirect_url", lambda url, **_: url)
    monkeypatch.setattr(network, "_urlretrieve", lambda url, path: shutil.copy(served, path))
    monkeypatch.setattr("hnlib.graphs.data.SOURCE", url)
    monkeypatch.setattr("hnlib.sentences.data.NOVELS", url)
    monkeypatch.setattr(zipfile.ZipFile, "open", None)  # whatever reads a file raises TypeError
    monkeypatch.setattr(tarfile, "open", None)
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


def pictures(folder, **counts):
    for c, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (20, 12), (60 * c, 0, 0)).save(folder / name / f"{i}.png")


def test_a_folder_has_its_own_split_or_every_fifth_picture_is_for_testing(tmp_path):
    pictures(tmp_path / "train", cat=9, dog=5)
    whole = data.load(f"folder:{tmp_path}/train")
    assert whole.y_train.bincount().tolist() == [8, 4] and whole.y_test.tolist() == [0, 1]
    pictures(tmp_path / "val", cat=1, dog=1)
    split = data.load(f"folder:{tmp_path}")
    assert split.x_train.shape == (14, 32, 32, 3) and split.x_test.shape == (2, 32, 32, 3)
    assert split.class_names == ("cat", "dog") and split.x_train[9, 0, 0, 0] == 60
    assert data.load(f"folder:{tmp_path}@48").x_test.shape == (2, 48, 48, 3)


def test_a_folder_that_cannot_be_used_is_refused(tmp_path):
    pictures(tmp_path / "train", cat=1, dog=1)
    pictures(tmp_path / "test", cat=5)
    with pytest.raises(ValueError, match=r"\['dog'\] in one part alone"):
        data.image_folder(tmp_path)
    with pytest.raises(ValueError, match=r"test-\w{8} has the classes \('cat',\); give at least 2"):
        data.image_folder(tmp_path / "test")
    Image.fromarray(np.ones((8, 8), np.uint16)).save(tmp_path / "test/cat/deep.tif")
    with pytest.raises(ValueError, match=r"deep\.tif has the mode I;16"):
        data.image_folder(tmp_path / "test")
    (tmp_path / "test/cat/deep.tif").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n")
    with pytest.raises(OSError, match=r"deep\.tif"):  # pillow would start an interpreter
        data.image_folder(tmp_path / "test")


@pytest.mark.parametrize("form", [*data.FORMATS, "GIF", "TGA", "PCX"])
def test_pictures_of_six_formats_are_read_whatever_their_names_say(tmp_path, form):
    """Pillow has forty readers, and some of them start programs."""
    pictures(tmp_path, cat=1, dog=1)
    Image.new("RGB", (20, 12), (200, 200, 200)).save(tmp_path / "cat/0.png", form)
    if form in data.FORMATS:
        assert data._pictures(tmp_path, 8)[0][0].tolist() == [[[200] * 3] * 8] * 8
    else:
        with pytest.raises(OSError, match=r"cannot identify image file .*0\.png"):
            data._pictures(tmp_path, 8)


# --- subsets


@pytest.mark.parametrize("n", [2, 135, 1430, 1437])
def test_a_subset_is_balanced(n):
    part = data.subset(DIGITS, n, seed=1)
    counts, available = (x.y_train.bincount(minlength=10) for x in (part, DIGITS))
    assert len(part.x_train) == counts.sum() == n
    level = int(counts.max())  # every class has as many, one fewer, or all it has
    assert ((counts >= level - 1) | (counts == available)).all()
    assert torch.equal(part.x_test, DIGITS.x_test)


def images_of(run, method="simclr", dataset=DIGITS):
    """What a run trains on."""
    run = ImageRun(method=method, **run).resolved()
    return task.Task(run, methods.build(method), dataset=dataset)


def test_runs_of_all_seeds_train_on_one_subset():
    found = [images_of(dict(train_size=100, seed=seed)) for seed in (0, 1)]
    assert torch.equal(found[0].x, found[1].x) and found[0].run.dataset_digest
    assert torch.equal(found[0].x, data.subset(DIGITS, 100).x_train)
    assert not torch.equal(found[0].x, data.subset(DIGITS, 100, seed=1).x_train), "control"
    first, second = (images_of(dict(validation=80, seed=seed)).dataset for seed in (0, 1))
    assert torch.equal(first.x_validation, second.x_validation)


@pytest.mark.parametrize(
    ("run", "method", "examples"),
    [
        ({}, "simclr", 16),
        ({}, "scl", 12),
        (dict(oracle_positives=True), "simclr", 12),
        (dict(admitted=0.5), "simclr", 12),
        (dict(train_size=6), "simclr", 6),
    ],
)
def test_images_without_a_class_are_left_out_where_classes_or_a_size_are_asked_for(
    tmp_path, run, method, examples
):
    place(tmp_path, x_unlabelled=ARRAYS["x_test"])
    found = images_of(run | dict(batch_size=2), method, data.load("cifar10", tmp_path))
    assert found.examples == len(found.x) == examples
    drawn = torch.cat([*found.batches(seeded())])
    assert torch.equal(drawn.sort().values, torch.arange(examples))


def test_validation_images_are_set_apart_once_and_for_all():
    part = data.hold_out(DIGITS, 80)
    assert part.y_validation.bincount().tolist() == [8] * 10 and len(part.x_train) == 1357
    both = torch.cat([part.x_train, part.x_validation]).flatten(1)
    assert torch.equal(both.unique(dim=0), DIGITS.x_train.flatten(1).unique(dim=0))
    assert part.digest != DIGITS.digest
    again = data.subset(data.hold_out(DIGITS, 80), 10)
    assert torch.equal(again.x_validation, part.x_validation)


def test_the_command_verifies_a_set(tmp_path, prints):
    place(tmp_path)
    printed = prints("data", "cifar10", "--root", tmp_path)
    assert data.load("cifar10", tmp_path).digest in printed and str(tmp_path) in printed
    assert "MUTAG" in prints("data", "--root", tmp_path)
