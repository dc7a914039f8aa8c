"""Put verdicts of `hnlib null` into the ledger of the null model.

    PYTHONPATH=book python book/recorders/null_ledger.py _build/null/*/record.json refused.py

replaces the records of the same losses in `book/results/null3_ledger.json`; tasks that it has of the
same code, and that a record lacks, stay. Of a file of a loss it records why `hnlib null` refuses
it. `null_ledger.json` is version 2's, and stays as it is.
"""

import json
import sys
from pathlib import Path

import ledgers
import numpy as np

from hnlib.experiments import evidence, null, null_files


def entry(path: Path) -> dict:
    """Return the record of a verdict, or of a refusal."""
    if path.suffix == ".json":
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["protocol"] != null.VERSION:
            raise SystemExit(f"{path} is of {record['protocol']}, not of {null.VERSION}")
        check(record)
        return record
    try:
        null_files.read(path)
    except ValueError as error:
        reason = str(error).removeprefix(f"{path}, ")
        return {"name": path.stem, "refused": reason, "code": path.read_text(encoding="utf-8")}
    raise SystemExit(f"{path} is not refused; run `hnlib null {path}`")


def check(record: dict) -> None:
    """Stop unless a record's tasks are those of the protocol, and its numbers agree."""
    blocks = null.protocol().blocks
    for task, one in record["tasks"].items():
        if task not in blocks:
            raise SystemExit(f"{record['name']}: {task} is no task of {null.VERSION}")
        effect, block = null.effects(one)["N1"], blocks[task]
        given = one["margin"], len(one["seeds"]), effect.family
        if given != (block["matters"], block["fresh"], len(blocks)):
            raise SystemExit(
                f"{record['name']}: margin, fresh seeds and family of {task} are not the protocol's"
            )
        said, word = one["effects"]["N1"], null.judge(effect, one["margin"], null.lead(one))
        if word != said["verdict"] or not np.allclose(
            [effect.low, effect.high], [said["low"], said["high"]]
        ):
            raise SystemExit(
                f"{record['name']}: its verdict on {task} does not follow from its scores"
            )


def joined(known: dict, new: dict) -> dict:
    """Return a record with the tasks that the ledger has of the same code, and its sentence anew.

    Each task keeps the environment of its trainings. Attempts with other code count, too.
    """
    if "tasks" not in new:
        return new
    is_same = "tasks" in known and known.get("code") == new.get("code")
    tasks = {
        task: {"environment": record["environment"]} | one
        for record in ([known, new] if is_same else [new])
        for task, one in record["tasks"].items()
    }
    tasks = {task: tasks[task] for task in null.protocol().blocks if task in tasks}
    effects = {task: one | {"effects": null.effects(one)} for task, one in tasks.items()}
    attempts = sorted({*known.get("attempts", ()), *new["attempts"]})
    outcome = null.Outcome(new["name"], new["protocol"], effects, len(attempts))
    return new | {"tasks": tasks, "attempts": attempts, "sentence": outcome.sentence}


if __name__ == "__main__":
    ledger = evidence.measurement("null3_ledger")
    for one in map(entry, map(Path, sys.argv[1:])):
        known = ledger.get(one["name"], {})
        one = joined(known, one)
        if lost := known.get("tasks", {}).keys() - one.get("tasks", {}).keys():
            raise SystemExit(f"{one['name']} has {', '.join(lost)} in the ledger; judge all tasks")
        ledger[one["name"]] = one
        print(one.get("sentence", one.get("refused")))
    ledgers.write("null3_ledger.json", ledger)
