"""`train` in one call: fields of the run, options of the method and settings of the execution."""

import dataclasses

from hnlib.training import kinds
from hnlib.training import train as training
from hnlib.training.config import Execution, defaults

CLASSES = {"Dataset": "images", "GraphSet": "graphs", "Corpus": "sentences"}
DEFAULT = object()  # the method of a run that names none
BEGINNINGS = {"folder:": "images", "text:": "sentences"}


def run_class(dataset, framework=None):
    """Return the class of the runs on a data set."""
    if not isinstance(dataset, str):
        return kinds.run_class(CLASSES[type(dataset).__name__])
    known = {name: kind for kind in kinds.KINDS for name in kinds.run_class(kind).datasets}
    beginning = dataset.partition(":")[0] + ":"
    kind = "graphs" if framework else (known | BEGINNINGS).get(dataset, BEGINNINGS.get(beginning))
    return kinds.run_class(kind or "images")


def train(dataset="digits", method=DEFAULT, encoder=None, **keywords):
    """Train a run on a data set, with a method and an encoder that are named or objects."""
    objects = {"dataset": dataset, "method": method, "encoder": encoder}
    named = {k: v for k, v in objects.items() if isinstance(v, str) or (k, v) == ("method", None)}
    own = {k: v for k, v in objects.items() if k not in named and v not in (None, DEFAULT)}
    kind = run_class(dataset, keywords.get("framework"))
    execution = {f.name for f in dataclasses.fields(Execution)} & keywords.keys()
    fields = keywords.keys() & defaults(kind).keys()
    options = keywords.get("options", {}) | {
        k: v for k, v in keywords.items() if k not in execution | fields
    }
    chosen = {k: v for k, v in keywords.items() if k in fields} | {"options": options}
    settings = {k: v for k, v in keywords.items() if k in execution}
    return training.train(kind(**named | chosen), **own, **settings)
