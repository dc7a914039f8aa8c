"""Files written whole or not at all, one process a file, and where the checkout is."""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def project_root() -> Path:
    """The checkout: the nearest folder above the working directory, or above this package, with a
    `_toc.yml`.

    Where there is none, as in a script of one's own, the working directory.
    """
    for folder in (Path.cwd(), *Path.cwd().parents, Path(__file__).resolve().parents[1]):
        if (folder / "_toc.yml").is_file() and (folder / "notebooks").is_dir():
            return folder
    return Path.cwd()


def data_folder(root: Path | str | None = None) -> Path:
    """Where data sets live: `root`, else `$HNLIB_DATA`, else the user's cache."""
    root = root or os.environ.get("HNLIB_DATA")
    if not root:
        import platformdirs

        root = platformdirs.user_cache_path("hnlib")
    return Path(root)


def temporary(path: Path | str) -> Path:
    """A name beside `path` for what is renamed to it once it is whole. It says whose it is: what
    processes of this machine that are gone left in the folder is deleted."""
    path = Path(path)
    mine = f"~{platform.node()}~"
    for left in path.parent.glob(".*~*~*"):
        named = re.search(re.escape(mine) + r"(\d{1,9})~[0-9a-f]{8}\.", left.name)
        if named and not _runs(int(named[1])):
            with suppress(OSError):  # gone already, or another user's
                left.unlink()
    own = f"{mine}{os.getpid()}~{secrets.token_hex(4)}"
    return path.with_name(f".{path.stem[:40]}{own}{path.suffix or '.part'}")  # torch.save wants one


def _runs(process: int) -> bool:
    if os.name != "posix":  # elsewhere asking would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True


def check_writable(path: Path | str) -> None:
    """OSError: no file can be written there; it says why."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name a file")
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is a device or a pipe; name a file")
    with _at(path) as target:
        probe = temporary(target)
        try:
            probe.write_bytes(b"1")
        finally:
            probe.unlink(missing_ok=True)


def write_atomically(path: Path | str, data) -> None:
    """Write bytes, or call `data(temporary_path)`, then rename: the old file is intact until the
    new one is whole. A link stays one: the file that it leads to is written.

    OSError: a full disk, among others; it names the file and says that the old one is intact.
    """
    with _at(Path(path)) as target:
        new = temporary(target)
        try:
            data(str(new)) if callable(data) else new.write_bytes(data)
            with new.open("rb+") as written:
                # the new name must not outlive a power cut without its contents
                os.fsync(written.fileno())
            new.replace(target)
        finally:
            new.unlink(missing_ok=True)


@contextmanager
def _at(path: Path) -> Iterator[Path]:
    """Where `path` leads, its folder made. OSError: what is written there cannot be."""
    target = Path(os.path.realpath(path))
    try:
        if target.is_symlink():
            raise OSError(errno.ELOOP, "the link leads in a circle")
        target.parent.mkdir(parents=True, exist_ok=True)
        yield target
    except (OSError, RuntimeError) as error:  # torch.save makes a RuntimeError of a full disk
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        if isinstance(error, RuntimeError):
            full = shutil.disk_usage(target.parent).free < 2**20
            if not full:
                raise
        state = "the file that was there is intact" if path.exists() else "nothing was left there"
        reason = getattr(error, "strerror", None)  # without the name of the temporary file
        remedy = f"{reason}: {target.parent}" if reason else error
        if full:
            remedy = "the disk is full: free space or choose another folder"
        raise OSError(f"{path} could not be written and {state}; {remedy}") from error


@contextmanager
def only_process(path: Path | str):
    """Keep other processes of this machine from making the same file while the block runs, however
    it ends.

    ValueError: another process is making it, or the folder of locks is another user's.
    """
    from filelock import FileLock, Timeout  # runs need it, the losses do not

    path = os.path.realpath(path)
    # Locks live apart and stay: one that is deleted beside its file can be held twice. Not in
    # $TMPDIR where that can be helped: the other process may have another.
    place = "/tmp" if os.access("/tmp", os.W_OK) else tempfile.gettempdir()
    user = os.getuid() if hasattr(os, "getuid") else 0  # which Windows says of every file
    folder = Path(place) / f"hnlib-locks-{user}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    there = folder.lstat()  # a link would lead to another's
    if not stat.S_ISDIR(there.st_mode) or there.st_uid != user:
        raise ValueError(f"{folder} is not this user's folder of locks; have it removed")
    lock = FileLock(folder / hashlib.sha256(os.fsencode(path)).hexdigest()[:32], timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(
            f"another process is making {path} right now; wait for it, or change the seed or "
            "the path"
        ) from None
    try:
        yield
    finally:
        lock.release()
