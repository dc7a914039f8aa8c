"""What comes from outside, as an attacker or a bad line would send it: refused in a sentence or read
rightly."""

import io
import socket
import stat
import struct
import tarfile
import threading
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hnlib import _archives


def everything(name):
    return True


def tar(*entries) -> bytes:
    """A tar of (name, content) pairs, and of ready TarInfos."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                archive.addfile(entry)
                continue
            info = tarfile.TarInfo(entry[0])
            info.size = len(entry[1])
            archive.addfile(info, io.BytesIO(entry[1]))
    return stream.getvalue()


def special(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def zipped(*entries) -> bytes:
    """A zip of (name or ZipInfo, content) pairs."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return stream.getvalue()


def zip_link(name):
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


@pytest.fixture
def unpacked(tmp_path):
    def read(content: bytes, wanted=everything, **more):
        path = tmp_path / "deep" / ("archive.zip" if content[:2] == b"PK" else "archive.tar.gz")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        files = _archives.unpacked(path, wanted, **more)
        assert [p for p in tmp_path.rglob("*") if p.is_file()] == [path]
        return files

    return read


@pytest.mark.parametrize("pack", [tar, zipped])
def test_wanted_files_are_read_by_their_path_below_the_top_folder(unpacked, pack):
    content = pack(("top/a.txt", b"a"), ("top/deep/b.txt", b"b"), ("top/c.txt", b"c"))
    assert unpacked(content) == {"a.txt": b"a", "deep/b.txt": b"b", "c.txt": b"c"}
    assert unpacked(content, {"c.txt"}.__contains__) == {"c.txt": b"c"}


OUTSIDE = [
    "../../../evil.txt",
    "/tmp/evil.txt",
    "top/../../evil.txt",
    "C:\\evil.txt",
    "..\\evil.txt",
]


@pytest.mark.parametrize("pack", [tar, zipped])
@pytest.mark.parametrize("name", OUTSIDE)
def test_a_path_that_leaves_the_archive_is_refused(unpacked, pack, name):
    with pytest.raises(ValueError, match=r"cannot be used.*evil"):
        unpacked(pack(("top/a.txt", b"a"), (name, b"evil")), {"a.txt"}.__contains__)


@pytest.mark.parametrize(
    "content",
    [
        tar(special("top/a.txt", tarfile.SYMTYPE, "/etc/passwd")),
        tar(special("top/a.txt", tarfile.LNKTYPE, "/etc/passwd")),
        tar(special("top/a.txt", tarfile.CHRTYPE)),
        tar(special("top/a.txt", tarfile.FIFOTYPE)),
        zipped((zip_link("top/a.txt"), "/etc/passwd")),
    ],
    ids=["link", "hard link", "device", "pipe", "zip link"],
)
def test_links_and_devices_are_refused(unpacked, content):
    with pytest.raises(ValueError, match=r"top/a\.txt.*a link, a device"):
        unpacked(content)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("pack", [tar, zipped])
@pytest.mark.parametrize(
    "other", ["top/á.txt", "top/Á.TXT", "top/a\u0301.txt", "top//á.txt", "o/á.txt"]
)
def test_a_path_that_stands_twice_is_refused(unpacked, pack, other):
    with pytest.raises(ValueError, match="twice"):
        unpacked(pack(("top/á.txt", b"1"), (other, b"2")))


def test_what_is_called_a_zip_is_read_as_one_alone(tmp_path):
    """A tar of unknown origin could claim headers of any size."""
    (tmp_path / "set.zip").write_bytes(tar(("top/a.txt", b"a")))
    with pytest.raises(ValueError, match="not a zip file"):
        _archives.unpacked(tmp_path / "set.zip", everything)


@pytest.mark.parametrize("pack", [tar, zipped])
def test_a_bomb_is_refused_by_what_it_claims(unpacked, pack):
    bomb = pack(("top/zeros", bytes(2**20)), ("top/more", bytes(2**20)))
    assert len(bomb) < 2**14
    with pytest.raises(ValueError, match="more than 2000000 bytes"):
        unpacked(bomb, largest=2_000_000)


def test_a_zip_that_claims_less_than_it_unfolds_to_is_refused(unpacked):
    bomb = bytearray(zipped(("top/zeros", bytes(2**20))))
    for signature, place in ((b"PK\1\2", 24), (b"PK\3\4", 22)):
        struct.pack_into("<I", bomb, bomb.index(signature) + place, 1000)
    with pytest.raises(ValueError, match="cannot be used"):
        unpacked(bytes(bomb), largest=2000)


def test_of_an_entry_that_holds_more_than_it_says_no_more_is_unfolded(unpacked):
    bomb = bytearray(zipped(("top/zeros", bytes(2**25))))
    for signature, place in ((b"PK\1\2", 24), (b"PK\3\4", 22)):
        struct.pack_into("<I", bomb, bomb.index(signature) + place, 1000)
    tracemalloc.start()
    with pytest.raises(ValueError, match="cannot be used"):
        unpacked(bytes(bomb))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**22


NAMES = st.sampled_from(["top/a", "top/b", "TOP/A", "../x", "/x", "top/\0", "a" * 300, ".", "é/ü"])
CONTENT = st.lists(st.tuples(NAMES, st.binary(max_size=40)), max_size=4)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@given(CONTENT, st.booleans(), st.data())
def test_an_altered_archive_is_read_or_refused_and_writes_nothing(
    tmp_path_factory, entries, zip, data
):
    content = bytearray((zipped if zip else tar)(*entries))
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.one_of(st.none(), st.integers(0, len(content))))]
    folder = tmp_path_factory.mktemp("archive")
    archive = folder / ("archive.zip" if zip else "archive.tar.gz")
    archive.write_bytes(content)
    try:
        files = _archives.unpacked(archive, everything, largest=2**20)
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert all(isinstance(file, bytes) for file in files.values())
    assert [path.name for path in folder.parent.rglob("*evil*")] == []
    assert list(folder.rglob("*")) == [archive]


# Arrays


def npy(shape=(2,), kind="<i8", body=None, order="False") -> bytes:
    header = f"{{'descr': '{kind}', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    body = np.arange(2).astype("<i8").tobytes() if body is None else body
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + body


def write(path, *entries):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in entries:
            file.writestr(name, content)
    return path


def test_arrays_come_as_they_were_written(tmp_path):
    given = {"a": np.arange(6).reshape(2, 3).T, "b": np.array(["x", "yz"]), "c": np.zeros((0, 3))}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **given)
        read = _archives.arrays(tmp_path / "a.npz")
        assert list(read) == list(given)
        assert all(np.array_equal(read[key], given[key]) for key in given)
    assert _archives.arrays(write(tmp_path / "by-hand.npz", ("a.npy", npy())))["a"].tolist() == [
        0,
        1,
    ]


@pytest.mark.parametrize(
    "content, fault",
    [
        (npy(shape=(2**47,)), "claims int64 of shape"),  # a petabyte
        (npy(shape=(2**30, 2**30, 2**30)), "claims int64 of shape"),
        (npy(shape=(3,)), "claims int64 of shape"),
        (npy(shape=(-1, -2)), "."),
        (npy(shape=(0, 2**40), body=b""), "claims int64 of shape"),
        (npy(kind="|O"), "of type object"),
        (npy(shape=(2**30,), kind="<U0", body=b""), "of type <U0"),
        (npy()[:-1], "claims"),
        (b"", "."),
        (b"\x93NUMPY\7\0" + npy()[8:], "."),
        (b"(" * 5000, "."),
    ],
)
def test_arrays_that_claim_what_they_do_not_hold_are_refused(tmp_path, content, fault):
    with pytest.raises(ValueError, match=fault) as error:
        _archives.arrays(write(tmp_path / "a.npz", ("a.npy", content)))
    assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_arrays_twice_and_bombs_are_refused(tmp_path):
    with pytest.raises(ValueError, match="twice"):
        _archives.arrays(write(tmp_path / "a.npz", ("a.npy", npy()), ("a.npy", npy())))
    for other in ("a", "A.npy", "á", "a\u0301.npy"):
        names = ("a.npy", npy()), ("á.npy", npy()), (other, npy())
        with pytest.raises(ValueError, match="twice"):
            _archives.arrays(write(tmp_path / "a.npz", *names))
    np.savez_compressed(tmp_path / "bomb.npz", a=np.zeros(2**20))
    with pytest.raises(ValueError, match=r"unfold from \d+ bytes to 8388"):
        _archives.arrays(tmp_path / "bomb.npz")


@given(st.data())
def test_an_altered_file_of_arrays_is_refused_or_read(tmp_path_factory, data):
    stream = io.BytesIO()
    given = {"x": np.arange(4, dtype=np.uint8), "y": np.array([1, 2])}
    np.savez(stream, **given)
    content = bytearray(stream.getvalue())
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.one_of(st.none(), st.integers(0, len(content))))]
    path = tmp_path_factory.mktemp("npz") / "a.npz"
    path.write_bytes(content)
    try:
        read = _archives.arrays(path)
    except ValueError as error:
        assert "\n" not in str(error)
    else:  # names and times of the zip are no contents
        assert sum(value.nbytes for value in read.values()) <= len(content)


# Downloads


def serve(answer: bytes, stay: bool = False) -> tuple[str, threading.Event]:
    """The address of a server that sends `answer` once, and then closes, or says nothing more."""
    listening, done = socket.create_server(("127.0.0.1", 0)), threading.Event()

    def talk():
        connection, _ = listening.accept()
        with listening, connection:
            connection.recv(4096)
            connection.sendall(answer)
            if stay:
                done.wait(30)

    threading.Thread(target=talk, daemon=True).start()
    return f"http://127.0.0.1:{listening.getsockname()[1]}/file", done


def download(url, md5=None, largest=2**20):
    return _archives.downloaded("set", url, "put it there", md5, largest)


def head(length: int) -> bytes:
    return f"HTTP/1.0 200 OK\r\nContent-Length: {length}\r\n\r\n".encode()


def test_a_download_comes_whole_and_is_gone_after(tmp_path):
    with download(serve(head(5) + b"bytes")[0]) as path:
        assert path.read_bytes() == b"bytes"
    assert not path.exists()
    (tmp_path / "file").write_bytes(b"bytes")
    with download(f"file://{tmp_path}/file", "4b3a6218bb3e3a7303e8a171a60fcf92") as path:
        assert path.read_bytes() == b"bytes"


@pytest.mark.parametrize(
    "answer, options, fault",
    [
        (b"HTTP/1.0 404 gone\r\n\r\n", {}, "404"),
        (b"nonsense\r\n", {}, "."),
        (b"", {}, "."),
        (head(9) + b"bytes", {}, "cut off after 5 of 9"),
        (head(5) + b"bytes", dict(md5="0" * 32), "MD5 is 4b3a62.* instead of 000"),
        (head(5) + b"bytes", dict(largest=4), "more than 4 bytes"),
        (head(-3) + b"bytes", dict(largest=4), "more than 4 bytes"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: many\r\n\r\n", {}, "."),
    ],
)
def test_what_is_sent_otherwise_is_refused(answer, options, fault):
    with pytest.raises(ValueError, match=fault), download(serve(answer)[0], **options):
        pytest.fail("the block was entered")


@pytest.mark.parametrize("answer", [b"", head(9), head(9) + b"byte"])
def test_a_server_that_falls_silent_is_left(monkeypatch, answer):
    monkeypatch.setattr(_archives, "PATIENCE", 0.1)
    url, done = serve(answer, stay=True)
    with pytest.raises(ValueError, match="timed out"), download(url):
        pytest.fail("the block was entered")
    done.set()


def test_a_server_that_drips_is_left(monkeypatch):
    """Bytes come, but too few. The clock is made up: each look at it is a minute later."""
    clock = iter(range(0, 6000, 60))
    monkeypatch.setattr(_archives.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(_archives, "PATIENCE", 30)
    with pytest.raises(ValueError, match="stalls"), download(serve(head(9) + b"b")[0]):
        pytest.fail("the block was entered")
