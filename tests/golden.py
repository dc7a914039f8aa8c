"""A snapshot of recorded numbers, losses and numbers in texts, which tells whether one has moved.

    PYTHONPATH=book python tests/golden.py

writes `tests/golden/*.json` anew; `inline.json` from the executed pages, if there are any.
`tests/pages/test_golden.py` compares. A number of an experiment may move if its file, its records
or those that choose its arms did; a loss, or a number without such a reason, moves only with
`--although-nothing-changed`, and the commit says why.
"""

import argparse
import functools
import hashlib
import itertools
import json
import math
import os
import sys
import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from hnlib import experiments, methods
from hnlib.experiments import evidence
from hnlib.notebooks import execute, inline_values
from hnlib.training import records

FOLDER = Path(__file__).with_suffix("")
NESTING = {"experiments": 4, "losses": 1, "inline": 2}  # levels whose entries have their own line
EFFECT = ("difference", "between", "df")
GROUND = "rests on"  # of an experiment: a digest of all that its numbers may move with
RAW = argparse.RawDescriptionHelpFormatter
FLAG = "--although-nothing-changed"


def of_experiment(name: str) -> dict:
    """Return blocks by name, with a row for each arm and its effect over the first, and verdicts.

    A screen of hundreds of arms, which predicts nothing, has only the totals of its effects: one by
    one they would make the file too large.
    """
    found = experiments.recorded(name)
    content = {GROUND: ground(found.design)}
    content |= {block: _of_block(found, block) for block in found.design.blocks}
    if verdicts := [dict(row) for row in experiments.verdicts(found)]:
        rows = {row.pop(""): [*row.values()] for row in verdicts}
        content["verdicts"] = {"columns": [*verdicts[0]], "rows": rows}
    return content


@functools.cache
def ground(one) -> str:
    """Return a digest of an experiment's file, of all its tracked records and of its choosers."""
    text = evidence.path(f"experiments/{one.name}.toml").read_text("utf-8")
    parts = [text, *(ground(other) for other in one.choosers())]
    if base := tomllib.loads(text).get("base"):
        parts.append(evidence.path(f"experiments/{base}.toml").read_text("utf-8"))
    found = records.index_of(records.tracked()).find(_keys(one)).values()
    parts += sorted(record["digest"] for record in itertools.chain(*found))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _keys(one) -> set[str]:
    """Return the keys of all runs, of a chosen arm those of whatever might be chosen."""
    keys, found = set(), experiments.found(one)
    for block in one.blocks:
        arms = [found.arm(name, block) for name in one.arms[block]]
        for name in one.chosen_in(block):
            source, among = found.candidates(name, block)
            arms += [source.arm(arm, block) for arm in among]
        runs = (one.run(arm, seed, block) for arm in arms if arm for seed in one.seeds)
        keys |= {records.key(run.configuration) for run in runs}
    return keys


def _of_block(found, block: str) -> dict:
    design = found.design
    decides, beside = design.metric(block), design.beside
    metrics = [decides, *([beside[decides]] if isinstance(beside, dict) else beside)]
    first, *others = arms = design.names(block)
    rows = {arm: _of_arm(found, block, arm, metrics) for arm in sorted(arms)}
    columns = ["runs", "recorded", *(f"mean {metric}" for metric in metrics), *EFFECT]
    content = {"seeds": len(design.seeds), "columns": columns, "rows": rows}
    over = {arm: _effect(found, block, arm, first) for arm in others}
    if over and not design.predictions:
        sizes = zip(*(row for row in over.values() if len(row) == len(EFFECT)))
        totals = (math.fsum(filter(None, column)) for column in sizes)
        errors = Counter(row[0] for row in over.values() if len(row) == 1)
        return content | {"effects": dict(zip(EFFECT, totals)) | errors}
    for arm, effect in over.items():
        rows[arm] += effect
    return content


def _of_arm(found, block: str, arm: str, metrics: list[str]) -> list:
    """Return the digest of the names of the runs, the number of records and the mean metrics."""
    runs = [found.run(arm, seed, block) for seed in found.design.seeds]
    names = None if None in runs else "\n".join(run.name for run in runs).encode()
    digest = names and hashlib.sha256(names).hexdigest()[:12]
    row = [digest, len(found.values(arm, metrics[0], block))]
    for metric in metrics:
        try:
            values = found.values(arm, metric, block).values()
            row.append(math.fsum(values) / len(values) if values else None)
        except ValueError as error:  # a read-out that this block does not have
            row.append(type(error).__name__)
    return row


def _effect(found, block: str, arm: str, first: str) -> list:
    """Return what `EFFECT` names, the class of an error, or nothing without a common seed.

    One seed has an infinite error, which JSON cannot write.
    """
    here, base = (found.values(one, found.design.metric(block), block) for one in (arm, first))
    if not here.keys() & base.keys():
        return []
    try:
        effect = experiments.effect(found, arm, first, block=block)
    except ValueError as error:
        return [type(error).__name__]
    return [effect.difference, effect.between if effect.df else None, effect.df]


def of_losses() -> dict[str, dict[str, float]]:
    """Return every method's loss and, of its gradient in each view, norm and two projections.

    Nothing is drawn, so the version of torch does not matter: the inputs are sines, and MoCHi, the
    only method that mixes at random, has a fixed sequence for it.
    """
    waves = np.sin(np.outer([1.1, 1.7, 2.3, 2.9], np.arange(1, 97) ** 1.5)).reshape(4, 12, 8)
    one, other, *directions = torch.from_numpy(waves)
    views, labels = (one, one + 0.7 * other), torch.arange(12) % 3
    features = tuple(view @ view.T for view in views)
    found = {}
    builders = {name: functools.partial(methods.build, name) for name in methods.CATALOGUE}
    builders |= {name: methods.example(name).build for name in methods.EXAMPLES}
    builders["unremix-printed"] = functools.partial(methods.build, "unremix", printed=True)
    for name in sorted(builders):
        method = builders[name]()
        leaves = [view.clone().requires_grad_() for view in views]
        given = labels if method.entry.supervised else None
        loss = method(*leaves, given, features if method.entry.features else None)
        found[name] = {"loss": loss.item()}
        for view, gradient in enumerate(torch.autograd.grad(loss, leaves), 1):
            along = [(gradient * direction).sum().item() for direction in directions]
            names = (f"{what}, view {view}" for what in ("norm", "along 1", "along 2"))
            found[name] |= dict(zip(names, [gradient.norm().item(), *along]))
    return found


def of_pages() -> dict[str, dict[str, str]]:
    """Return the value of each expression in the texts of executed pages."""
    pages, executed = {}, execute.root() / "_build/executed"
    for path in sorted(executed.rglob("*.ipynb")):
        page = path.relative_to(executed).with_suffix("")
        values = execute.execution_metadata(path).get("inline")
        source = (execute.root() / "notebooks" / page).with_suffix(".md").read_text("utf-8")
        if values is None or {*values} != {*inline_values.EVAL.findall(source)}:
            raise ValueError(f"{page} has been edited since it was executed; build it again")
        if values:
            pages[page.as_posix()] = {" ".join(x.split()): y for x, y in values.items()}
    return pages


def flat(content, *place) -> dict[tuple, object]:
    """Return the leaves of a snapshot by their place, such as (experiment, block, arm, column)."""
    if not isinstance(content, dict | list):
        return {place: content}
    if isinstance(content, list):
        content = dict(enumerate(content, 1))
    elif "columns" in content:
        rows = {key: dict(zip(content["columns"], row)) for key, row in content["rows"].items()}
        content = {k: x for k, x in content.items() if k not in ("columns", "rows")} | rows
    items = (flat(value, *place, key) for key, value in content.items())
    return {key: leaf for leaves in items for key, leaf in leaves.items()}


def stored(name: str) -> dict[tuple, object]:
    """Return the leaves of a snapshot that was written."""
    return flat(json.loads((FOLDER / f"{name}.json").read_text("utf-8")))


def differences(old: dict, new: dict) -> list[str]:
    """Return a line for each leaf that moved or is gone; what is new differs from nothing."""
    return [
        f"{', '.join(map(str, k))}: {old[k]} → {new.get(k, 'nothing')}" for k in moved(old, new)
    ]


def moved(old: dict, new: dict) -> list[tuple]:
    """Return the places of leaves that moved or are gone."""
    return [k for k in old if k[1:] != (GROUND,) and not _same(old[k], new.get(k, "nothing"))]


def _same(before, after) -> bool:
    if isinstance(before, float) and isinstance(after, int | float):
        return math.isclose(before, after, rel_tol=1e-9, abs_tol=1e-12)
    return before == after


def unexplained(old: dict, new: dict) -> list[str]:
    """Return a line for each leaf that moved though what it rests on did not."""
    firm = {place[0] for place in new if old.get(place) == new[place] and place[1:] == (GROUND,)}
    # losses, and what was written before there was a digest, rest on nothing that may change
    firm |= {place[0] for place in new if (place[0], GROUND) not in old}
    return differences({k: x for k, x in old.items() if k[0] in firm}, new)


def write(name: str, content: dict) -> None:
    """Write a snapshot with ten digits a number: half of the last is below the tolerance."""
    FOLDER.mkdir(exist_ok=True)
    short = json.loads(json.dumps(content), parse_float=lambda x: float(f"{float(x):.10g}"))
    (FOLDER / f"{name}.json").write_text(f"{_lines(short, NESTING[name])}\n", "utf-8")


def _lines(content, levels: int) -> str:
    if levels and isinstance(content, dict):
        lines = [f"{_lines(key, 0)}: {_lines(x, levels - 1)}" for key, x in content.items()]
        return "{\n" + ",\n".join(lines) + "\n}"
    if levels and isinstance(content, list) and isinstance(content[0], list):
        return "[\n" + ",\n".join(_lines(x, levels - 1) for x in content) + "\n]"
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def main(arguments: list[str] | None = None) -> int:
    """Write the snapshots, unless a number moved without a reason; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=RAW)
    parser.add_argument(FLAG, action="store_true", help="write what moved without a reason, too")
    allowed = parser.parse_args(arguments).although_nothing_changed
    os.environ["HNLIB_RECALL"] = "1"  # tracked records alone
    found = {name: of_experiment(name) for name in experiments.names()}
    snapshots = {"losses": of_losses(), "experiments": found}
    lines = [
        line
        for name, content in snapshots.items()
        if (FOLDER / f"{name}.json").exists()
        for line in unexplained(stored(name), flat(content))
    ]
    if lines and not allowed:
        print(*lines, sep="\n")
        print(f"Nothing was written: {len(lines)} numbers moved, but neither files nor records.")
        print(f"If they were meant to, pass {FLAG}, and say why in the commit.")
        return 1
    for name, content in snapshots.items():
        write(name, content)
    if pages := of_pages():
        write("inline", pages)
    return 0


if __name__ == "__main__":
    sys.exit(main())
