import functools
import hashlib
import io
import os
import struct
import tarfile
import zipfile
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from hnlib import __main__ as cli
from hnlib.images import data


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
        path = data.location("cifar10", tmp_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **{k: v for k, v in (arrays() | changes).items() if v is not None})
        return path

    return write


def test_digits_are_embedded_and_split_by_class():
    digits = data.load("digits")
    assert digits.x_train.shape == (1437, 8, 8, 1) and digits.x_test.shape == (360, 8, 8, 1)
    assert digits.x_train.dtype == torch.uint8 and digits.x_train.max() == 255
    assert digits.y_train.dtype == torch.int64 and digits.num_classes == 10
    assert digits.y_test.bincount().min() >= 34 and digits.y_test.bincount().max() <= 38
    assert data.load("digits").digest == digits.digest and len(digits.digest) == 64


def test_unknown_name_lists_the_known():
    with pytest.raises(ValueError, match=r"'imagenet'.*digits, cifar10"):
        data.load("imagenet")


def test_a_file_in_place_is_used_as_it_is(place, tmp_path, monkeypatch):
    place()
    monkeypatch.setenv("HNLIB_DATA", str(tmp_path))
    loaded, expected = data.load("cifar10"), arrays()
    assert np.array_equal(loaded.x_train.numpy(), expected["x_train"])
    assert loaded.y_test.dtype == torch.int64 and loaded.class_names[3] == "cat"
    assert loaded.x_unlabelled is None and (loaded.image_size, loaded.channels) == (8, 3)


def test_optional_arrays(place, tmp_path):
    place(class_names=np.array(["a", "b", "c"]), x_unlabelled=arrays(5)["x_train"])
    loaded = data.load("cifar10", tmp_path)
    assert loaded.class_names == ("a", "b", "c") and len(loaded.x_unlabelled) == 5


def test_the_digest_sees_every_array(place, tmp_path):
    place()
    before = data.load("cifar10", tmp_path).digest
    for key, value in arrays().items():
        changed = value.copy()
        changed.flat[-1] = (changed.flat[-1] + 1) % 3
        place(**{key: changed})
        assert data.load("cifar10", tmp_path).digest != before


@pytest.mark.parametrize(
    "changes, fault",
    [
        (dict(y_test=None), "lacks y_test"),
        (dict(x_train=arrays()["x_train"].astype(float)), "x_train of type float64"),
        (dict(x_test=arrays()["x_test"][..., 0]), "shape"),
        (dict(x_test=arrays(size=6)["x_test"]), "different sizes"),
        (dict(x_train=np.zeros((12, 0, 0, 3), np.uint8)), "x_train of type uint8 and shape"),
        (dict(y_train=np.arange(5)), "y_train"),
        (dict(y_train=np.arange(12) + 5), "labels"),
        (dict(y_train=np.arange(12) - 1), "labels"),
        (dict(x_unlabelled=np.zeros((2, 8, 8, 3))), "x_unlabelled"),
        (dict(y_train=np.array([None] * 12, dtype=object)), "cannot be read"),  # needs pickle
        (dict(y_train=np.array([np.nan] * 12)), "y_train of type float64"),
        (dict(class_names=np.array([np.nan] * 3)), "class_names of type float64"),
        (dict(class_names=np.array([["a", "b", "c"]])), "class_names"),
        (dict(class_names=np.array(["a", "b", "\x1b[2J"])), r"class_names that .* '\\x1b\[2J'"),
        (dict(y_train=np.full(12, 2**60)), f"labels 0 to {2**60}"),
        (dict(y_train=np.full(12, 2**63, np.uint64)), f"labels 0 to {2**63}"),
    ],
)
def test_an_ill_formed_file_is_refused_with_the_remedy(place, tmp_path, changes, fault):
    path = place(**changes)
    with pytest.raises(ValueError, match=fault) as error:
        data.load("cifar10", tmp_path)
    assert str(path) in str(error.value) and "hnlib data cifar10" in str(error.value)


def test_more_classes_than_images_are_refused_at_once(tmp_path):
    """A list of them would fill the memory."""
    path = data.location("cifar100", tmp_path)
    path.parent.mkdir()
    np.savez(path, **arrays() | dict(y_train=np.full(12, 2**60)))
    with pytest.raises(ValueError, match=f"labels 0 to {2**60} for 16 classes"):
        data.load("cifar100", tmp_path)


def test_labels_of_ones_own_are_whole_numbers():
    x, y = torch.zeros(2, 8, 8, 1, dtype=torch.uint8), torch.tensor([0.0, torch.nan])
    with pytest.raises(ValueError, match=r"labels of own are torch.float32"):
        data.Dataset("own", x, y, x, torch.zeros(2, dtype=torch.int64), ("a",), "0")


def test_a_file_that_claims_a_petabyte_is_refused(place, tmp_path):
    path, header = place(), b"{'descr': '|u1', 'fortran_order': False, 'shape': (2**40, 32, 32, 1)}"
    header = header.replace(b"2**40", str(2**40).encode())
    with zipfile.ZipFile(path, "a") as file:
        content = b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header
        file.writestr("x_unlabelled.npy", content)
    with pytest.raises(ValueError, match=r"x_unlabelled.npy claims uint8 of shape.*Delete it"):
        data.load("cifar10", tmp_path)


@settings(max_examples=80)
@given(st.data())
def test_a_file_with_other_bytes_is_the_same_set_or_none(tmp_path_factory, drawn):
    path = data.location("cifar10", tmp_path_factory.mktemp("data"))
    path.parent.mkdir()
    np.savez(path, **arrays(2, 2, 1))
    before, content = data.load("cifar10", path.parents[1]).digest, bytearray(path.read_bytes())
    for _ in range(drawn.draw(st.integers(1, 3))):
        where = drawn.draw(st.integers(0, len(content) - 1))
        content[where] = drawn.draw(st.integers(0, 255))
    path.write_bytes(content[: drawn.draw(st.one_of(st.none(), st.integers(0, len(content))))])
    try:
        assert data.load("cifar10", path.parents[1]).digest == before
    except ValueError as error:
        assert "Delete it" in str(error) and "\n" not in str(error)


def test_truncated_and_altered_files_are_refused(place, tmp_path):
    path = place()
    whole = path.read_bytes()
    for damaged in (
        whole[: len(whole) // 2],
        b"",
        whole[:700] + bytes([whole[700] ^ 1]) + whole[701:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="Delete it"):
            data.load("cifar10", tmp_path)
    with path.open("wb") as file:
        np.save(file, arrays()["x_train"])  # one array, no archive
    with pytest.raises(ValueError, match="Delete it"):
        data.load("cifar10", tmp_path)
    path.write_bytes(whole)
    data.load("cifar10", tmp_path)


def serve(monkeypatch, folder, name, content: bytes | None):
    """Stand in for the network: `content` is what the archive's address has, and has its MD5."""
    archive = folder / "served" / data.ARCHIVES[name][0].split("/")[-1]
    if content is not None:
        archive.parent.mkdir(exist_ok=True)
        archive.write_bytes(content)
    md5 = hashlib.md5(content or b"").hexdigest()
    monkeypatch.setitem(data.ARCHIVES, name, (archive.as_uri(), md5, data.ARCHIVES[name][2]))
    return archive


def test_without_network_the_place_and_the_form_are_named(tmp_path, monkeypatch):
    serve(monkeypatch, tmp_path, "stl10", None)
    with pytest.raises(ValueError, match="could not be downloaded") as error:
        data.load("stl10", tmp_path)
    assert str(data.location("stl10", tmp_path)) in str(error.value)
    assert "x_train" in str(error.value)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_a_place_that_cannot_be_written_to_is_named_before_the_download(tmp_path, monkeypatch):
    (tmp_path / "taken").write_bytes(b"")  # no folder can be made in a file, whoever one is
    archive = serve(monkeypatch, tmp_path, "cifar10", None)
    with pytest.raises(
        ValueError, match=r"^\S+/taken/images cannot be written to \(Not a dir.*HNLIB"
    ):
        data.load("cifar10", tmp_path / "taken")
    assert not archive.exists()


def tar(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def test_cifar10_archive(tmp_path, monkeypatch):
    images = np.random.default_rng(1).integers(0, 256, (6, 32, 32, 3), np.uint8)
    rows = [
        bytes([label]) + image.transpose(2, 0, 1).tobytes()
        for label, image in zip(range(6), images)
    ]
    members = {f"c/data_batch_{i + 1}.bin": rows[i] for i in range(5)} | {
        "c/test_batch.bin": rows[5]
    }
    members["c/batches.meta.txt"] = "\n".join(data.CIFAR10_CLASSES).encode()
    served = serve(monkeypatch, tmp_path, "cifar10", tar(members))
    loaded = data.load("cifar10", tmp_path / "root")
    assert np.array_equal(loaded.x_train.numpy(), images[:5]) and loaded.y_train.tolist() == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert (
        np.array_equal(loaded.x_test[0].numpy(), images[5])
        and loaded.class_names == data.CIFAR10_CLASSES
    )
    served.unlink()  # the second time nothing is fetched
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["cifar10.npz"]
    assert data.load("cifar10", tmp_path / "root").digest == loaded.digest


@pytest.mark.parametrize("fault", ["outside", "altered", "cut", "missing"])
def test_a_bad_archive_leaves_nothing(tmp_path, monkeypatch, fault):
    """Control: the same archive without its fault is read, in `test_cifar10_archive`."""
    members = {f"c/data_batch_{i + 1}.bin": bytes(3073) for i in range(5)}
    members |= {"c/test_batch.bin": bytes(3073), "c/batches.meta.txt": b"one"}
    if fault == "outside":
        members["../../outside.txt"] = b"an archive must not write where it likes"
    if fault == "missing":
        del members["c/data_batch_3.bin"]
    if fault == "cut":
        members["c/data_batch_3.bin"] = bytes(3000)
    archive = serve(monkeypatch, tmp_path, "cifar10", tar(members))
    if fault == "altered":
        archive.write_bytes(archive.read_bytes()[:-9])
    with pytest.raises(ValueError, match="cifar10 could not be downloaded from file:"):
        data.load("cifar10", tmp_path / "root")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [archive]


def test_cifar100_takes_the_fine_label(tmp_path, monkeypatch):
    row = bytes([1, 42]) + bytes(3072)
    names = "\n".join(f"class{i}" for i in range(100)).encode()
    members = {"c/train.bin": row * 2, "c/test.bin": row, "c/fine_label_names.txt": names}
    serve(monkeypatch, tmp_path, "cifar100", tar(members))
    loaded = data.load("cifar100", tmp_path)
    assert loaded.y_train.tolist() == [42, 42] and loaded.class_names[42] == "class42"


def test_stl10_is_stored_by_columns_with_labels_from_one(tmp_path, monkeypatch):
    images = np.random.default_rng(2).integers(0, 256, (2, 96, 96, 3), np.uint8)
    raw = images.transpose(0, 3, 2, 1).tobytes()
    names = "\n".join("abcdefghij").encode()
    serve(
        monkeypatch,
        tmp_path,
        "stl10",
        tar(
            {
                "s/train_X.bin": raw,
                "s/train_y.bin": bytes([1, 10]),
                "s/test_X.bin": raw,
                "s/test_y.bin": bytes([3, 4]),
                "s/unlabeled_X.bin": raw * 2,
                "s/class_names.txt": names,
            }
        ),
    )
    loaded = data.load("stl10", tmp_path)
    assert np.array_equal(loaded.x_train.numpy(), images) and loaded.y_train.tolist() == [0, 9]
    assert loaded.x_unlabelled.shape == (4, 96, 96, 3)


def jpeg(shade: int, size=64) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (size, size), shade).save(stream, "JPEG")  # some of the real ones are grey
    return stream.getvalue()


def test_tiny_imagenet_archive(tmp_path, monkeypatch):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for wnid, shade in (("n2", 200), ("n1", 100)):
            archive.writestr(f"tiny-imagenet-200/train/{wnid}/images/{wnid}_0.JPEG", jpeg(shade))
        archive.writestr("tiny-imagenet-200/val/images/val_0.JPEG", jpeg(50))
        archive.writestr(
            "tiny-imagenet-200/val/val_annotations.txt", "val_0.JPEG\tn2\t0\t0\t1\t1\n"
        )
    serve(monkeypatch, tmp_path, "tiny-imagenet", stream.getvalue())
    loaded = data.load("tiny-imagenet", tmp_path)
    assert (
        loaded.class_names == ("n1", "n2")
        and loaded.y_train.tolist() == [0, 1]
        and loaded.y_test.tolist() == [1]
    )
    assert loaded.x_train.float().mean((1, 2, 3)).tolist() == pytest.approx([100, 200], abs=2)


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


def test_image_folder_without_a_split_keeps_every_fifth(tmp_path):
    pictures(tmp_path, {"cat": 10, "dog": 5})
    loaded = data.image_folder(tmp_path, size=16)
    assert (
        loaded.y_test.tolist() == [0, 0, 1]
        and len(loaded.x_train) == 12
        and loaded.image_size == 16
    )


def test_image_folder_faults(tmp_path):
    with pytest.raises(ValueError, match="nowhere"):
        data.load(f"folder:{tmp_path / 'nowhere'}")
    pictures(tmp_path / "few", {"cat": 2})
    with pytest.raises(ValueError, match="fewer than 5"):
        data.image_folder(tmp_path / "few")
    pictures(tmp_path / "split" / "train", {"cat": 1, "dog": 1})
    pictures(tmp_path / "split" / "test", {"cat": 1})
    with pytest.raises(ValueError, match="dog"):
        data.image_folder(tmp_path / "split")
    (tmp_path / "few" / "cat" / "broken.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match="folder of pictures"):
        data.image_folder(tmp_path / "few")


@pytest.mark.parametrize("link", ["cat/loop", "cat/deep/loop", "train/cat/again"])
def test_a_folder_that_is_met_twice_is_refused(tmp_path, link):
    """Its pictures would be counted forty times, in both parts of the data."""
    pictures(tmp_path / "train", {"cat": 6, "dog": 6})
    pictures(tmp_path / "test", {"cat": 6, "dog": 6})
    where = tmp_path if link.startswith("train") else tmp_path / "train"
    (where / link).parent.mkdir(exist_ok=True)
    (where / link).symlink_to(tmp_path / "test" / "cat" if where == tmp_path else where)
    with pytest.raises(ValueError, match="are the same folder; remove one"):
        data.image_folder(tmp_path if where == tmp_path else where)
    (where / link).unlink()
    data.image_folder(tmp_path)


def test_pictures_may_be_links(tmp_path):
    pictures(tmp_path / "kept", {"cat": 5})
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "cat").symlink_to(tmp_path / "kept" / "cat")
    assert len(data.image_folder(tmp_path / "shown").x_train) == 4


def bomb() -> bytes:
    """A PNG of 20,000 × 20,000 pixels."""

    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(10**6))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    "content, fault",
    [
        (bomb(), "could be decompression bomb"),
        (b"", "cannot identify"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "cannot identify"),
        (jpeg(9)[:300], "[Tt]runcated"),
        (None, "is not a file"),  # a pipe, in which one would wait for ever
    ],
    ids=["bomb", "empty", "program", "cut", "pipe"],
)
def test_pictures_that_harm_are_refused(tmp_path, content, fault):
    pictures(tmp_path, {"cat": 6})
    harm = tmp_path / "cat" / "harm.png"
    os.mkfifo(harm) if content is None else harm.write_bytes(content)
    with pytest.raises(ValueError, match=rf"folder of pictures.*harm\.png.*{fault}") as error:
        data.image_folder(tmp_path)
    assert "\n" not in str(error.value)


@functools.cache
def _digits():
    return data.load("digits")


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 1437), st.integers(0, 5))
def test_a_subset_is_balanced_and_without_repetition(n, seed):
    digits = _digits()
    part = data.subset(digits, n, seed)
    counts, available = part.y_train.bincount(minlength=10), digits.y_train.bincount()
    assert len(part.x_train) == n and counts.sum() == n
    exhausted = counts == available
    assert (
        counts[~exhausted].numel() == 0 or counts[~exhausted].max() - counts[~exhausted].min() <= 1
    )
    assert (
        not exhausted.any()
        or exhausted.all()
        or counts[exhausted].max() <= counts[~exhausted].max()
    )
    assert torch.equal(part.x_test, digits.x_test)


def test_a_subset_repeats_with_its_seed_and_takes_each_image_once():
    x = torch.arange(40, dtype=torch.uint8).view(40, 1, 1, 1)
    y = torch.arange(40) % 4
    whole = data.Dataset("numbers", x, y, x, y, tuple("abcd"), "0")
    part = data.subset(whole, 10, seed=3)
    assert len(part.x_train.unique()) == 10 and torch.equal(
        part.x_train.flatten() % 4, part.y_train
    )
    assert torch.equal(part.x_train, data.subset(whole, 10, seed=3).x_train)
    assert not torch.equal(part.x_train, data.subset(whole, 10, seed=4).x_train)
    assert part.digest != whole.digest


@pytest.mark.parametrize("n", [-1, 1, 1438])
def test_a_subset_larger_than_the_set_is_refused(n):
    with pytest.raises(ValueError, match=f"{n}.*1437"):
        data.subset(data.load("digits"), n)


def test_validation_images_are_set_apart_once_and_for_all():
    x = torch.arange(40, dtype=torch.uint8).view(40, 1, 1, 1)
    y = torch.arange(40) % 4
    whole = data.Dataset("numbers", x, y, x, y, tuple("abcd"), "0")
    part = data.hold_out(whole, 8)
    assert part.y_validation.bincount().tolist() == [2, 2, 2, 2] and part.digest != whole.digest
    assert (
        torch.equal(torch.cat([part.x_train, part.x_validation]).unique(), x.unique())
        and len(part.x_train) == 32
    )
    assert torch.equal(part.x_validation, data.hold_out(whole, 8).x_validation)
    assert torch.equal(data.subset(part, 10).x_validation, part.x_validation)
    for n in (0, 39):
        with pytest.raises(ValueError, match=f"^{n} validation images.*choose 1 to 38"):
            data.hold_out(whole, n)


def test_the_command_describes_a_set(place, tmp_path, capsys):
    path = place()
    assert cli.main(["data", "cifar10", "--root", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert cli.main(["data", "--root", str(tmp_path)]) == 0
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (
        list(listed) == [*data.KNOWN, "sentences", "graphs"]
        and "MUTAG" in listed["graphs"]
        and listed["cifar10"] == str(path)
    )
    assert listed["stl10"].endswith("stl10.npz (not there yet)")
    assert (
        "[12, 8, 8, 3]" in printed
        and str(path) in printed
        and data.load("cifar10", tmp_path).digest in printed
    )
