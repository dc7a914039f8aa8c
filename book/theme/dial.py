"""Copy the dial of the start page for the README, on a light and on a dark ground.

python book/theme/dial.py, after `make book`
"""

import re
from pathlib import Path

from hnlib.notebooks.execute import executed_path, load_json, root


def on_dark(svg: str) -> str:
    """Return the picture with its colours as bright as book.css makes them on the dark ground."""
    css = (Path(__file__).parent / "book.css").read_text("utf-8")
    lift = float(re.findall(r"filter: brightness\(([\d.]+)\)", css)[0])

    def brighter(found: re.Match) -> str:
        parts = (int(found[0][i : i + 2], 16) for i in (1, 3, 5))
        return "#" + "".join(f"{min(255, round(lift * x)):02x}" for x in parts)

    return re.sub(r"#[0-9a-f]{6}\b", brighter, svg)


def write(folder: Path) -> None:
    """Write the two pictures, from the static dial of the start page as it was executed."""
    page = load_json(executed_path(root() / "notebooks/start-here.md"))
    if not page:
        raise SystemExit("the start page has not been executed; run `make book` first")
    tagged = "static-of-picture"
    cell = next(x for x in page["cells"] if tagged in x["metadata"].get("tags", ()))
    drawn = "".join(cell["outputs"][0]["data"]["image/svg+xml"])
    light = re.sub(r" *<dc:date>.*\n", "", drawn)
    (folder / "dial-light.svg").write_text(light, "utf-8")
    (folder / "dial-dark.svg").write_text(on_dark(light), "utf-8")


if __name__ == "__main__":
    write(Path(__file__).parent)
