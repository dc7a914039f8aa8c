"""Put the pages of earlier releases beside those just built, for the switch of versions.

    python3 book/builder/earlier_releases.py _build/html https://OWNER.github.io/NAME/

Every release has its pages as `pages.tar.gz` (`.github/workflows/release.yml`); `gh` fetches them.
Each gets a folder named by its tag, and `versions.json` lists all. Needs no package.
"""

import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PAGES = "pages.tar.gz"


def gh(*arguments: str) -> str:
    """Return what GitHub's command line answers."""
    return subprocess.run(["gh", *arguments], check=True, capture_output=True, text=True).stdout


def add(html: Path, address: str) -> list[dict]:
    """Unpack the pages of all releases that have them, newest first, and write `versions.json`."""
    listed = [{"name": "latest", "version": "latest", "url": address, "preferred": True}]
    releases = json.loads(gh("release", "list", "--json", "tagName"))
    for tag in (release["tagName"] for release in releases):
        assets = json.loads(gh("release", "view", tag, "--json", "assets"))["assets"]
        if PAGES not in [asset["name"] for asset in assets]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            gh("release", "download", tag, "--pattern", PAGES, "--dir", folder)
            with tarfile.open(Path(folder, PAGES)) as archive:
                archive.extractall(html / tag, filter="data")
        listed.append({"name": tag, "version": tag, "url": f"{address}{tag}/"})
    html.mkdir(exist_ok=True)
    (html / "versions.json").write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    return listed


if __name__ == "__main__":
    add(Path(sys.argv[1]), sys.argv[2])
