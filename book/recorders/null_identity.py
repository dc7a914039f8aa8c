"""Repeat the identity control of null model 2: N1 against itself with further seeds.

    PYTHONPATH=book python book/recorders/null_identity.py FOLDER 2 3 4

trains with seeds that lie that many times `null.SHIFT` higher (about ten minutes of two idle cores
each, on digits; FOLDER keeps the trainings) and adds the differences to
`book/results/null_identity.json`.
"""

import sys
from pathlib import Path

import ledgers

from hnlib.experiments import comparisons, evidence, null, runner

if __name__ == "__main__":
    folder, found = Path(sys.argv[1]), evidence.measurement("null_identity")
    experiment, engine = null.protocol(), runner.Engine(engine="processes", workers=2)
    fresh = null.fresh_seeds(f"identity-{experiment.digest[:8]}")
    for shift in sys.argv[2:]:
        task = null.Task(experiment, "digits", None, folder, engine)
        sides, _ = null._sides(task, "identity")
        scores, _ = null.trial(task, sides, fresh, {"ours": int(shift) * null.SHIFT})
        effect = null.compare(scores, len(experiment.blocks), len(experiment.seeds))["N1"]
        found[shift] = {name: getattr(effect, name) for name in null.KEPT}
        print(shift, effect, comparisons.verdict(effect, task.margin), flush=True)
        ledgers.write("null_identity.json", found)
