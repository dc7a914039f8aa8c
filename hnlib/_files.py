"""Files written whole or not at all, one process a file, and where the checkout is."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from contextlib import contextmanager
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


def write_atomically(path: Path | str, data) -> None:
    """Write bytes, or call `data(temporary_path)`, then rename: the old file is intact until the
    new one is whole.

    OSError: a full disk, among others; it names the file and says that the old one is intact.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix or ".part"
    )  # torch.save wants an ending
    os.close(handle)
    try:
        data(temporary) if callable(data) else Path(temporary).write_bytes(data)
        with open(temporary, "rb+") as written:
            os.fsync(
                written.fileno()
            )  # the new name must not outlive a power cut without its contents
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # mkstemp makes files only their owner can read
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # torch.save makes a RuntimeError of a full disk
        full = (
            shutil.disk_usage(path.parent).free < 2**20
            or getattr(error, "errno", None) == errno.ENOSPC
        )
        if isinstance(error, RuntimeError) and not full:
            raise
        state = "the file that was there is intact" if path.exists() else "nothing was left there"
        remedy = "the disk is full: free space or choose another folder" if full else error
        raise OSError(f"{path} could not be written and {state}; {remedy}") from error
    finally:
        Path(temporary).unlink(missing_ok=True)


@contextmanager
def only_process(path: Path | str):
    """Keep other processes of this machine from making the same file while the block runs, however
    it ends.

    ValueError: another process is making it.
    """
    from filelock import FileLock, Timeout  # runs need it, the losses do not

    path = Path(path).resolve()
    # Locks live apart and stay: one that is deleted beside its file can be held twice.
    folder = (
        Path(tempfile.gettempdir())
        / f"hnlib-locks-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = FileLock(folder / hashlib.sha256(str(path).encode()).hexdigest()[:32], timeout=0)
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
