"""Small data as a reader may have them: pictures by class, a collection, a text, graphs.

They are drawn with fixed seeds, so that what was trained on them is found again.
"""

import functools
import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from hnlib.notebooks.execute import root

WORDS = [f"w{i}" for i in range(60)]
OWN = "own:"  # a parameter that begins so is data made here


def pictures(folder: Path, counts=(13, 11, 12)) -> str:
    """Write a folder of pictures by class."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for k, count in enumerate(counts):
        (folder / f"class{k}").mkdir(parents=True, exist_ok=True)
        for i in range(count):
            array = rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)
            if i % 3:  # a third of a class could be of any
                array[:, :, k % 3] //= 2
            Image.fromarray(array).save(folder / f"class{k}/{i}.png")
    return f"folder:{folder}"


def collection(folder: Path, count=60) -> str:
    """Write a collection in BEIR's layout; a query is five words of its answer."""
    rng = np.random.default_rng(0)
    (folder / "qrels").mkdir(parents=True)
    texts = [" ".join(rng.choice(WORDS, 12)) for _ in range(count)]
    asked = [" ".join(text.split()[:5]) for text in texts]
    for name, each in (("corpus", texts), ("queries", asked)):
        lines = [json.dumps({"_id": f"{i}", "text": text}) for i, text in enumerate(each)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    ends = (0, count // 2, 3 * count // 4, count)
    for name, (first, last) in zip(("train", "dev", "test"), itertools.pairwise(ends)):
        pairs = (f"{i}\t{i}\t1" for i in range(first, last))
        lines = ["query-id\tcorpus-id\tscore", *pairs]
        (folder / f"qrels/{name}.tsv").write_text("\n".join(lines) + "\n")
    return f"folder:{folder}"


def text(path: Path, lengths=(30, 25, 2, 40)) -> str:
    """Write a text of documents with so many sentences each."""
    rng = np.random.default_rng(0)
    documents = [[" ".join(rng.choice(WORDS, 6)) for _ in range(n)] for n in lengths]
    path.write_text("\n\n".join(map("\n".join, documents)) + "\n")
    return f"text:{path}"


def graphs(folder: Path, count=24) -> str:
    """Write a set of graphs, rings and paths with a few wrong labels, in the form of TUDataset."""
    folder.mkdir(parents=True)
    edges, graph, start = [], [], 1
    for i in range(count):
        nodes = range(start, start + 5 + i % 3)
        ends = [*itertools.pairwise(nodes), *([(nodes[-1], nodes[0])] if i % 2 else [])]
        edges += [f"{a}, {b}" for one in ends for a, b in (one, one[::-1])]
        graph += [f"{i + 1}"] * len(nodes)
        start = nodes[-1] + 1
    for name, lines in (
        ("A", edges),
        ("graph_indicator", graph),
        ("graph_labels", [f"{(i + (i % 5 == 0)) % 2}" for i in range(count)]),
    ):
        (folder / f"mine_{name}.txt").write_text("\n".join(lines) + "\n")
    return f"folder:{folder}"


#: The file or folder of each kind for `make beside`, and how it is made
KINDS = {
    "images": ("mine", lambda path: pictures(path, (67, 61, 64))),
    "search": ("texts", lambda path: collection(path, 240)),
    "text": ("mine.txt", lambda path: text(path, (230, 180, 2, 240))),
    "graphs": ("graphs", lambda path: graphs(path, 48)),
}


def is_in(parameters: dict[str, Any]) -> bool:
    """Return whether a parameter names data that were made here."""
    return any(str(_folder()) in str(value) for value in parameters.values())


def place(value: Any) -> Any:
    """Return a parameter with own:KIND replaced by the name of such data, which are made here."""
    own = isinstance(value, str) and value.startswith(OWN)
    return _made(value.removeprefix(OWN), _folder()) if own else value


@functools.cache
def _made(kind: str, folder: Path) -> str:
    """Make data of a kind anew, once in this process, and return their name."""
    name, make = KINDS[kind]
    shutil.rmtree(folder / name, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    return make(folder / name)


def _folder() -> Path:
    return root() / "_build/beside/data"
