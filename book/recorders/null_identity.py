"""Repeat the identity control of null model 2: N1 against itself with further seeds.

    PYTHONPATH=book python book/recorders/null_identity.py FOLDER 2 3 4

trains with seeds that lie that many times `null.SHIFT` higher (about ten minutes of two idle cores
each, on digits; FOLDER keeps the trainings) and adds the differences to
`book/results/null_identity.json`.
"""

import json
import sys
from pathlib import Path

from hnlib._files import write_atomically
from hnlib.experiments import comparisons, evidence, null, runner
from hnlib.training.config import canonical

if __name__ == "__main__":
    path, folder = evidence.path("null_identity.json"), Path(sys.argv[1])
    experiment, engine = null.protocol(), runner.Engine(engine="processes", workers=2)
    fresh = null.fresh_seeds(f"identity-{experiment.digest[:8]}")
    for shift in sys.argv[2:]:
        task = null.Task(experiment, "digits", None, folder, engine)
        sides, _ = null._sides(task, "identity")
        scores, _ = null.trial(task, sides, fresh, {"ours": int(shift) * null.SHIFT})
        effect = null.compare(scores, len(experiment.blocks))["N1"]
        found = json.loads(path.read_text(encoding="utf-8"))
        found[shift] = {name: getattr(effect, name) for name in null.KEPT}
        print(shift, effect, comparisons.verdict(effect, task.margin), flush=True)
        write_atomically(path, f"{canonical(found, indent=1)}\n".encode())
