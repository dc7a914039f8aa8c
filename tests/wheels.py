"""The wheel beside chosen packages, for tests of what is installed with what."""

import subprocess
import sys
import zipfile
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

DISTRIBUTIONS = metadata.packages_distributions()


def needed(extra):
    """The distributions that `pip install hnlib[extra]` brings, as installed here."""
    found, asked = set(), [Requirement(f"hnlib[{extra}]" if extra else "hnlib")]
    while asked:
        one = asked.pop()
        for part in {*one.extras, ""} - {part for name, part in found if name == one.name}:
            found.add((one.name, part))
            wanted = map(Requirement, metadata.distribution(one.name).requires or [])
            asked += [r for r in wanted if not r.marker or r.marker.evaluate({"extra": part})]
    return {canonicalize_name(name) for name, _ in found}


def unpacked(wheel, folder):
    """Unpack a wheel; return run(extra, code), the process with it and what the extra asks for.

    What else is installed cannot be imported.
    """
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)

    def run(extra, code, **options):
        allowed = needed(extra) | {"pip", "setuptools"}
        hidden = {
            module
            for module, names in DISTRIBUTIONS.items()
            if not {*map(canonicalize_name, names)} & allowed
        }
        hidden -= {"hnlib", "hnbook", "sphinx"}  # the last: libraries look for its name alone
        code = f"""
import sys
sys.modules.update(dict.fromkeys({hidden}))
sys.path.insert(0, {str(folder)!r})
{code}"""
        options = {"cwd": folder} | options
        command = [sys.executable, "-I", "-c", code]
        return subprocess.run(command, capture_output=True, text=True, **options)

    return run
