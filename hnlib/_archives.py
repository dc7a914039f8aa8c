"""Downloads, archives and files of arrays: whole and harmless, or refused in a sentence."""

from __future__ import annotations

import hashlib
import http.client
import math
import stat
import tarfile
import tempfile
import time
import unicodedata
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath

import numpy as np

PATIENCE = 60  # seconds a server may stay silent
SLOWEST = 1000  # bytes a second that it must bring on average thereafter
LARGEST = 2**33  # bytes of a download, and of what an archive holds
PACKED = 16  # how many times its size a file of arrays may unfold to
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def said(error: BaseException) -> str:
    """An error's message in one line, or its name where it has none."""
    if isinstance(error, KeyError):
        return f"{error} is missing"
    return " ".join(str(error).split()) or type(error).__name__


def check_folder(folder: Path) -> None:
    """Make the folder. ValueError: files cannot be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        reason = f"{folder} cannot be written to ({error.strerror})"
        raise ValueError(f"{reason}; choose another place with $HNLIB_DATA") from error


@contextmanager
def downloaded(
    name: str, url: str, instead: str, md5: str | None = None, largest: int = LARGEST
) -> Iterator[Path]:
    """The file at `url`, in a folder that is gone after the block, in which it is to be read.

    ValueError, with what to do `instead`: it cannot be had or read, stalls, is cut short or too
    large, or has another MD5.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / PurePosixPath(url).name
            found = _fetch(url, path, largest)
            if md5 not in (None, found):
                raise ValueError(f"its MD5 is {found} instead of {md5}")
            yield path
    except (OSError, http.client.HTTPException, LookupError, ValueError) as error:
        fault = f"{name} could not be downloaded from {url} ({said(error)})"
        raise ValueError(f"{fault}; where there is no network, {instead}") from error


def _fetch(url: str, path: Path, largest: int) -> str:
    """Write what `url` sends to `path`, and return its MD5."""
    from tqdm import tqdm

    request = urllib.request.Request(url, headers={"User-Agent": "hnlib"})
    digest, size, start = hashlib.md5(usedforsecurity=False), 0, time.monotonic()
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer, path.open("wb") as file:
        total = int(answer.headers.get("Content-Length") or 0)
        with tqdm(total=total or None, unit="B", unit_scale=True, disable=None) as bar:
            while piece := answer.read1(2**20):
                size += len(piece)
                if size > largest:
                    raise OSError(f"it has more than {largest} bytes")
                if (passed := time.monotonic() - start) > PATIENCE + size / SLOWEST:
                    raise OSError(f"it stalls: {size} bytes in {passed:.0f} seconds")
                digest.update(piece)
                bar.update(file.write(piece))
    if size < total:
        raise OSError(f"it was cut off after {size} of {total} bytes")
    return digest.hexdigest()


def unpacked(
    archive: Path, wanted: Callable[[str], object], largest: int = LARGEST
) -> dict[str, bytes]:
    """The files of an archive, by its name a zip or else a tar, whose paths below its top folder
    are `wanted`; nothing is written, so that no path leads anywhere. A tar must have been known by
    its digest: its headers are read whatever size they claim.

    ValueError: an archive that is not whole, holds more than `largest` bytes, or has a path that
    leaves it or stands twice, a link or a device.
    """
    read = _zip if archive.suffix == ".zip" else _tar
    seen, size, files = set(), 0, {}
    try:
        for name, plain, length, content in read(archive):
            size += length
            if size > largest:
                raise ValueError(f"it holds more than {largest} bytes")
            if not plain or _leaves(name):
                raise ValueError(f"it holds {name!r}, a link, a device or a path that leaves it")
            path = str(PurePosixPath(name))  # without "./" and "//"
            below, folded = path.partition("/")[2], alike(path)
            if folded in seen or below in files:
                raise ValueError(f"it holds {name!r} twice, perhaps in other letters")
            seen.add(folded)
            if wanted(below):
                files[below] = content()
    except Exception as error:  # the ways in which archives break are without number
        raise ValueError(f"the archive cannot be used: {said(error)}") from error
    return files


# what stands in an archive: path, whether it is a file or a folder, size, and how it is read
Entries = Iterator[tuple[str, bool, int, Callable[[], bytes]]]


def _zip(archive: Path) -> Entries:
    with zipfile.ZipFile(archive) as file:
        for entry in file.infolist():
            kind = stat.S_IFMT(entry.external_attr >> 16)
            plain = kind in (0, stat.S_IFREG, stat.S_IFDIR)
            yield entry.filename, plain, entry.file_size, lambda entry=entry: _held(file, entry)


def _held(file: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """What an entry holds; of one that holds more than it says, no more is unfolded."""
    with file.open(entry) as stream:
        content = stream.read(entry.file_size)
        if len(content) < entry.file_size or stream.read(1):
            raise ValueError(f"{entry.filename} does not hold the {entry.file_size} bytes it says")
    return content


def _tar(archive: Path) -> Entries:
    with tarfile.open(archive) as file:
        for entry in file:
            plain = entry.isfile() or entry.isdir()
            yield entry.name, plain, entry.size, lambda entry=entry: file.extractfile(entry).read()


def alike(name: str) -> str:
    """The same for names that differ in case or in how their accents are written."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def _leaves(name: str) -> bool:
    path = PureWindowsPath(name)  # knows / and \ and drives
    return bool(path.anchor) or ".." in path.parts or "\0" in name


def arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file. What they claim is held against the file before any is read.

    ValueError: a file that is not whole, wants pickle, has an array twice, or claims more than it
    holds.
    """
    try:
        with zipfile.ZipFile(path) as file:
            _check_claims(file, path.stat().st_size)
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except Exception as error:  # as above
        raise ValueError(said(error)) from error


def _check_claims(file: zipfile.ZipFile, size: int) -> None:
    entries = file.infolist()
    if len({alike(entry.filename.removesuffix(".npy")) for entry in entries}) < len(entries):
        raise ValueError("it holds an array twice")
    claimed = sum(entry.file_size for entry in entries)
    if claimed > PACKED * size:
        raise ValueError(f"it claims to unfold from {size} bytes to {claimed}")
    for entry in entries:
        with file.open(entry) as stream:
            shape, _, kind = HEADERS[np.lib.format.read_magic(stream)](stream)
            large = math.prod(n or 1 for n in shape) > LARGEST  # and empty otherwise
            if large or stream.tell() + math.prod(shape) * kind.itemsize != entry.file_size:
                raise ValueError(
                    f"{entry.filename} claims {kind} of shape {shape}, and has not that"
                )
            if kind.hasobject or not kind.itemsize:
                raise ValueError(f"{entry.filename} is of type {kind}")
