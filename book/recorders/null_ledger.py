"""Put verdicts of `hnlib null` into the ledger of the null model.

    PYTHONPATH=book python book/recorders/null_ledger.py _build/null/*/record.json

replaces the records of the same losses in `book/results/null_ledger.json`.
"""

import json
import sys
from pathlib import Path

from hnlib._files import write_atomically
from hnlib.experiments import evidence
from hnlib.training.config import canonical

if __name__ == "__main__":
    ledger = evidence.measurement("null_ledger")
    for name in sys.argv[1:]:
        record = json.loads(Path(name).read_text(encoding="utf-8"))
        ledger[record["name"]] = record
        print(record["sentence"])
    write_atomically(evidence.path("null_ledger.json"), f"{canonical(ledger, indent=1)}\n".encode())
