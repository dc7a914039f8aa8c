"""Draw the dial of the start page for the README, on a light and on a dark ground.

python book/theme/dial.py
"""

import re
from pathlib import Path

from hnlib.notebooks.execute import read, root


def on_dark(svg: str) -> str:
    """Return the picture with its colours as bright as book.css makes them on the dark ground."""
    css = (Path(__file__).parent / "book.css").read_text("utf-8")
    lift = float(re.findall(r"filter: brightness\(([\d.]+)\)", css)[0])

    def brighter(found: re.Match) -> str:
        parts = (int(found[0][i : i + 2], 16) for i in (1, 3, 5))
        return "#" + "".join(f"{min(255, round(lift * x)):02x}" for x in parts)

    return re.sub(r"#[0-9a-f]{6}\b", brighter, svg)


def write(folder: Path) -> None:
    """Execute the start page as far as its static dial and write the two pictures."""
    import matplotlib

    matplotlib.use("agg")
    names: dict = {}
    for cell in read(root() / "notebooks/start-here.md").cells:
        if cell.cell_type == "code" and "interactive(" not in cell.source:
            exec(cell.source, names)
            if "static-of-picture" in cell.metadata.get("tags", ()):
                break
    light = folder / "dial-light.svg"
    names["fig"].savefig(light, metadata={"Date": None}, bbox_inches="tight")
    (folder / "dial-dark.svg").write_text(on_dark(light.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    write(Path(__file__).parent)
