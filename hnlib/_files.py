"""Where files live, atomic writes, and a lock for files that one process writes at a time."""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import re
import secrets
import struct
import sys
import sysconfig
import tempfile
import tomllib
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.machinery import PathFinder
from pathlib import Path
from zipfile import BadZipFile, ZipFile

INSTALLED = Path(__file__).resolve().parent / "_ledgers"  # what a wheel brings of the checkout
EVIDENCE = "book/results"  # in the checkout, and below INSTALLED


def project_root() -> Path:
    """Return the checkout.

    That is the nearest folder with `_toc.yml` and `notebooks` above the working directory or this
    package; without one, the working directory.
    """
    for folder in (Path.cwd(), *Path.cwd().parents, Path(__file__).resolve().parents[1]):
        if (folder / "_toc.yml").is_file() and (folder / "notebooks").is_dir():
            return folder
    return Path.cwd()


def evidence(name: str) -> Path:
    """Return a file or folder of the recorded evidence: the checkout's, or what a wheel brings.

    Raises ValueError if it is in neither.
    """
    for folder in (project_root(), INSTALLED):
        if (path := folder / EVIDENCE / name).exists():
            return path
    where = f"neither in a checkout around {Path.cwd()} nor installed"
    raise ValueError(f"{EVIDENCE}/{name} is {where}")


def data_folder(root: Path | str | None = None, kind: str = "") -> Path:
    """Return the data folder of a kind: in `root`, else in `$HNLIB_DATA`, else in the cache."""
    root = root or os.environ.get("HNLIB_DATA")
    if not root:
        import platformdirs

        root = platformdirs.user_cache_path("hnlib")
    return Path(root) / kind


def own_path(dataset: str) -> tuple[str, Path, str]:
    """Return word, path and size of your own data, word:PATH[@SIZE]; of a name three empty ones."""
    word, colon, rest = dataset.partition(":")
    text, _, size = rest.rpartition("@")
    text, size = (text, size) if size.isdecimal() else (rest, "")
    return (word, Path(text).expanduser(), size) if colon else ("", Path(), "")


def own_name(dataset: str) -> str:
    """Return the name of your own data in records: folder:PATH[@SIZE] is folder:NAME-DIGEST[@SIZE].

    The digest is that of the file, or of all files below the folder and of their names. Any other
    name, and a path where nothing lies, is returned as it is: it may be such a name.
    """
    word, path, size = own_path(dataset)
    if not word or not path.exists():
        return dataset
    name = path.stem if path.is_file() else path.resolve().name
    return f"{word}:{name}-{_content(path.resolve())}" + (f"@{size}" if size else "")


_CONTENTS: dict[Path, tuple[dict[Path, int], str]] = {}


def _content(path: Path) -> str:
    """Return 8 hexadecimal digits that identify a file, or all files below a folder.

    They are kept while the file, or each of the folders, has not been modified: a file that is
    replaced modifies its folder.
    """
    known, digest = _CONTENTS.get(path, ({}, ""))
    if known and all(x.exists() and x.stat().st_mtime_ns == at for x, at in known.items()):
        return digest
    every = sorted(path.rglob("*")) if path.is_dir() else []
    files, whole = [x for x in every if x.is_file()], hashlib.sha256()
    for file in files:
        whole.update(file.relative_to(path).as_posix().encode() + b"\0")
        with file.open("rb") as stream:
            whole.update(hashlib.file_digest(stream, "sha256").digest())
    if path.is_file():
        whole.update(path.read_bytes())
    watched = [path, *(x for x in every if x.is_dir()), *(files if len(files) < 1000 else [])]
    stamps = {x: x.stat().st_mtime_ns for x in watched}
    _CONTENTS[path] = stamps, (digest := whole.hexdigest()[:8])
    return digest


def named(path: Path) -> str:
    """Return a file's stem and the digest of its code and of what it imports of its own."""
    content = b"".join(sorted(_own_code(path.resolve())))
    return f"{path.stem}-{hashlib.sha256(content).hexdigest()[:8]}"


def _own_code(path: Path) -> Iterable[bytes]:
    """Return a file and what it imports, directly or not, but for hnlib and what is installed."""
    installed = ("site-packages", "dist-packages", sysconfig.get_path("stdlib"))
    places = [str(path.parent), *(x for x in sys.path if not any(part in x for part in installed))]
    found, seen, left = {}, {"", "hnlib"}, [path]
    while left:
        if (file := left.pop()) in found:
            continue
        found[file] = file.read_bytes()
        try:
            nodes = [*ast.walk(ast.parse(found[file]))]
        except (SyntaxError, ValueError):  # a template, or compiled
            continue
        names = [one.name for node in nodes if isinstance(node, ast.Import) for one in node.names]
        names += [x.module or "" for x in nodes if isinstance(x, ast.ImportFrom) and not x.level]
        new = {name.partition(".")[0] for name in names} - seen
        seen |= new
        for spec in filter(None, (PathFinder.find_spec(name, places) for name in new)):
            for home in map(Path, spec.submodule_search_locations or [spec.origin]):
                left += home.rglob("*.py") if home.is_dir() else [home]
    return found.values()


@functools.cache
def downloads(kind: str) -> dict[str, dict]:
    """Return the files and digests of the data sets of a kind, by name."""
    return tomllib.loads(Path(__file__).with_name("downloads.toml").read_text("utf-8"))[kind]


def write_atomically(
    path: Path | str, data: bytes, private: bool = False, synced: bool = False
) -> None:
    """Write bytes and rename; a link stays a link.

    The old file is intact until the new one is complete. Only the user can read a `private` file.
    A `synced` one is on the disk on return, which takes a while.
    """
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.stem[:40]}-{secrets.token_hex(4)}.part")
    try:
        temporary.touch(0o600 if private else 0o666, exist_ok=False)
        with open(temporary, "wb") as file:
            file.write(data)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise OSError(f"{path} could not be written ({error})") from error
    finally:
        temporary.unlink(missing_ok=True)


def require_writable(path: Path | str) -> None:
    """Raise OSError if no file can be written to `path`; directories may be missing."""
    target = Path(os.path.realpath(path))
    try:
        if target.is_dir():
            raise IsADirectoryError("it is a directory")
        tempfile.TemporaryFile(dir=next(x for x in target.parents if x.exists())).close()
    except OSError as error:
        raise OSError(f"{path} cannot be written ({error.strerror or error})") from error


#: What readers of files raise where one is damaged
DAMAGED = (BadZipFile, zlib.error, struct.error, EOFError, OSError, RuntimeError, ValueError)


def read_zip(
    archive: Path, pattern: str, largest: int = 10**8, listing: str | None = None
) -> dict[str, bytes]:
    """Read the files whose path in an archive matches `pattern`, by name; delete the archive.

    Raises BadZipFile, and unpacks nothing, if no file matches, the files exceed `largest` bytes in
    total, or their names, sizes and checksums, as the archive lists them, do not have the digest
    `listing`.
    """
    try:
        with ZipFile(archive) as packed:
            files = [one for one in packed.infolist() if re.fullmatch(pattern, one.filename)]
            size = sum(one.file_size for one in files)
            lines = (f"{Path(x.filename).name} {x.file_size} {x.CRC:08x}\n" for x in files)
            actual = hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
            if not files or size > largest or listing not in (None, actual):
                raise BadZipFile(
                    f"the archive has {len(files)} of the expected files, of {size:,} bytes and "
                    f"the listing {actual}"
                )
            return {Path(one.filename).name: packed.read(one) for one in files}
    finally:
        archive.unlink()


@contextmanager
def explain_failed_download(name: str, instead: str) -> Iterator[None]:
    """Turn a failed download in the block into a ValueError that says what to put `instead`."""
    try:
        yield
    except DAMAGED as error:
        raise ValueError(
            f"{name} could not be downloaded ({error}); without a network put {instead}"
        ) from error


@contextmanager
def lock(path: Path | str, wait: bool = False) -> Iterator[None]:
    """Hold a lock on `path` in the block, through a file `.NAME.lock` beside it.

    If another process holds it, wait for it or raise ValueError. A killed process leaves no lock.
    """
    from filelock import FileLock, Timeout  # runs need it, the losses do not

    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    held = FileLock(target.with_name(f".{target.name}.lock"), timeout=-1 if wait else 0)
    try:
        held.acquire()
    except Timeout:
        raise ValueError(
            f"another process is writing {path}; wait for it, or change the seed or the path"
        ) from None
    try:
        yield
    finally:
        # While it is held: who has opened this file but not locked it finds that it has no name
        # and tries again. Windows deletes it after the release.
        with suppress(OSError):
            os.unlink(held.lock_file)
        held.release()
