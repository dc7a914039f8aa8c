"""What every run has: its options with their ranges, and the configuration that names its record.

Each kind of data adds its own options in a dataclass of its package (`hnlib/images/config.py`). An
option is one field. It enters only the records in which it is not at its default, so that an option
that is added later leaves the names of older records as they are.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import re
import warnings
from collections.abc import Container, Iterable, Mapping
from dataclasses import field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from cyclopts import Parameter
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from hnlib import _files

#: Methods that records call by an older name, and what it is now: a method, and an option of it
#: that is true. Their names and keys stay.
RECORDED_AS = {"unremix-printed": ("unremix", "printed")}

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Course = (
    tuple[float, float] | tuple[float, float, Count] | tuple[float, float, Literal["cosine"], Count]
)
Hidden = Parameter(parse=False)  # not an option of the command line
Rare = Parameter(show=False)  # not in its help
checked = ConfigDict(extra="forbid", allow_inf_nan=False)


@dataclass(frozen=True, kw_only=True, config=checked)
class Execution:
    """How to execute a run. These settings do not enter the record's name.

    Parameters
    ----------
    device
        where to train
    checkpoint
        file that the state is written to, and resumed from
    checkpoint_seconds
        between two writings of the checkpoint, always after an epoch (0: after each)
    minutes
        stop after the epoch in which so many have passed; the same call resumes
    resume
        resume from an existing checkpoint
    data_root
        of the data sets (default: $HNLIB_DATA or the cache)
    record_to
        folder for the record
    save
        file for the trained encoder (safetensors)
    step
        eager, compiled (by torch.compile, of images) or graph (one CUDA graph, untested on a card)
    progress
        show a progress bar
    evaluate_every
        epochs between rows of the history (0: the last)
    predictions
        digest of what was predicted of the run before it began, for its record
    """

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    checkpoint: Path | None = None
    checkpoint_seconds: Annotated[float, Field(ge=0)] = 30.0
    minutes: Positive | None = None
    resume: Annotated[bool, Hidden] = True
    data_root: Path | None = None
    record_to: Annotated[Path | None, Hidden] = None
    save: Path | None = None
    step: Literal["eager", "compiled", "graph"] = "eager"
    progress: Annotated[bool, Hidden] = True
    evaluate_every: Annotated[int, Field(ge=0)] | None = None
    predictions: Annotated[str | None, Hidden] = None

    def __post_init__(self):
        if self.minutes is not None and self.checkpoint is None:
            raise ValueError(
                f"minutes={self.minutes:g} requires checkpoint=PATH, to resume from when they "
                "have passed"
            )


@dataclass(frozen=True, kw_only=True, config=checked)
class Engine:
    """Where many jobs are carried out.

    Parameters
    ----------
    engine
        here (one after the other), processes (of this machine, each with one thread), or ray (the
        machines of a cluster)
    workers
        processes at once
    address
        of a Ray cluster (default: the one that runs here)
    cpus
        cores for each of Ray's jobs
    gpus
        GPUs for each of Ray's jobs, such as 0.5 (default: 1 where the cluster has any)
    """

    engine: Literal["here", "processes", "ray"] = "here"
    workers: Count = 2
    address: str = "auto"
    cpus: Positive = 1
    gpus: Annotated[float, Field(ge=0)] | None = None

    @classmethod
    def of(cls, given: str | dict | Engine | None) -> Engine:
        """Return an engine from its name, or from its fields."""
        if given is None or isinstance(given, cls):
            return given or cls()
        if not isinstance(given, str | dict):
            raise ValueError(f'engine must be like "processes" or {{"workers": 4}}, got {given!r}')
        return cls(engine=given) if isinstance(given, str) else cls(**given)

    @property
    def chosen(self) -> dict:
        """The fields that are not at their defaults."""
        return {
            name: value for name, value in vars(self).items() if value != defaults(Engine)[name]
        }


@dataclass(frozen=True, kw_only=True, config=checked)
class Configuration:
    r"""The options that runs of all kinds have; `resolved` fills in those that are None.

    Parameters
    ----------
    experiment
        heading on the Results page
    dataset
        name of a data set, see hnlib data
    method
        name of a method; None: untrained
    options
        of the method
    epochs
        passes over the data
    batch_size
        examples in a step (graphs: at most so many)
    seed
        of weights, batches and views
    lr
        learning rate
    lr_schedule
        constant, warm-up (linear for ten steps, then constant), or cosine with a linear warm-up
    weight_decay
        of Adam; of AdamW for transformers
    beta2
        of Adam: how slowly it forgets the size of old gradients
    schedule
        `{option: (start, end)}` moves an option of the method linearly over the epochs, with
        `(start, end, changes)` in that many steps; `(start, end, "cosine", periods)` moves it to
        the end and back that many times
    reach_end
        a schedule reaches its end in the last epoch, not after it
    queue
        older keys that are candidates too
    momentum
        of the encoder of the keys
    precision
        32-true or bf16-mixed; losses are float32
    max_steps
        end training early
    """

    experiment: Annotated[str, Field(min_length=1), Rare] = "images"
    dataset: str = "digits"
    method: str | None = "simclr"
    dataset_digest: Annotated[str | None, Hidden] = None
    options: Annotated[dict[str, Any], Hidden] = field(default_factory=dict)
    epochs: Annotated[int, Field(ge=0)] | None = None
    batch_size: Annotated[int, Field(ge=2)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    lr: Positive | None = None
    lr_schedule: Literal["constant", "warm-up", "cosine"] | None = None
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    beta2: Annotated[float, Field(ge=0, lt=1), Rare] = 0.999
    schedule: Annotated[dict[str, Course], Hidden] = field(default_factory=dict)
    reach_end: Annotated[bool, Rare] = False
    queue: Annotated[int, Field(ge=0)] = 0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.999
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    max_steps: Annotated[int, Field(ge=1)] | None = None

    kind: ClassVar[str]
    #: Fields that every record names, even at their default
    recorded: ClassVar[tuple[str, ...]] = (
        *("experiment", "dataset", "method", "dataset_digest", "options", "epochs", "seed"),
        *("batch_size", "lr", "momentum"),
    )
    #: Fields that apply only together with another one, or with a value of it
    requires: ClassVar[dict[str, tuple]] = {"momentum": ("queue",)}
    #: Measured accuracies, and rank correlations, which may be negative
    accuracies: ClassVar[tuple[str, ...]] = ()
    correlations: ClassVar[tuple[str, ...]] = ()
    #: Data sets and encoders by name; what ends in PATH stands for a path of your own
    datasets: ClassVar[Mapping[str, Any]] = {}
    own_datasets: ClassVar[tuple[str, ...]] = ()
    encoders: ClassVar[Mapping[str, Any]] = {}
    evaluate_every: ClassVar[int] = 0  # where `Execution.evaluate_every` is None

    def __post_init__(self):
        if self.method in RECORDED_AS:
            name, option = RECORDED_AS[self.method]
            rule = f"{name} with the option {option}=True now; a later version drops the old name"
            warnings.warn(f"method {self.method} is {rule}", FutureWarning, stacklevel=3)
            vars(self).update(current(vars(self)))
        for name, condition in self.requires.items():
            if not self.applies(name) and getattr(self, name) != defaults(type(self))[name]:
                other, *allowed = condition
                if other == "encoder" and self.encoders:  # the first mistake is named
                    check_choice(other, getattr(self, other), self.encoders)
                needed = filter(None, [other, " or ".join(allowed)])
                got = f", got {getattr(self, other)!r}" if allowed else ""
                raise ValueError(f"{name} requires {'='.join(needed)}{got}")

    def applies(self, name: str) -> bool:
        """Return whether a field has a meaning in this run."""
        if name not in self.requires:
            return True
        other, *allowed = self.requires[name]
        value = getattr(self, other)
        return value in allowed if allowed else bool(value)

    def dataset_choices(self, root: Path | None = None) -> tuple[str, ...]:
        """Return what `dataset` can be, if data sets are in `root`."""
        return *self.datasets, *self.own_datasets

    @classmethod
    def dataset_title(cls, name: str) -> str:
        """Return a data set as tables write it; your own by the name of its file or folder."""
        word, path, _ = _files.own_path(name)
        short = path.resolve().name if word == "folder" else path.stem
        return getattr(cls.datasets.get(name), "title", short if word else name)

    @classmethod
    def fitting(cls, dataset: str, chosen: dict, asked: Container[str] = ()) -> dict:
        """Return what must be smaller than `chosen` for a data set, as far as its size is known.

        What a reader `asked` for is what a run will have, whatever is returned for it.
        """
        return {}

    @classmethod
    def serves(cls, dataset: str, arm: dict) -> bool:
        """Return whether a data set is large enough for the fields of an arm."""
        return True

    def validates(self) -> bool:
        """Return whether the data have a part to choose by, as far as that is known."""
        return True

    @staticmethod
    def smaller_batch(most: int) -> int:
        """Return the largest power of two that is at most half of `most`; two at least."""
        return 2 ** max(1, (most // 2).bit_length() - 1)

    def check_names(self, root: Path | None = None, given: Container[str] = ()) -> None:
        """Raise ValueError unless data set and encoder are known, or `given` as objects.

        Your own data must be there, unless they are named as in records.
        """
        word, path, _ = _files.own_path(self.dataset)
        missing = word and "dataset" not in given and not path.exists()
        if missing and not re.search(r"-[0-9a-f]{8}$", path.name):
            raise ValueError(
                f"dataset must name a file or folder that is there, got {self.dataset!r}"
            )
        for name, choices in (("dataset", self.dataset_choices(root)), ("encoder", self.encoders)):
            if choices and name not in given:
                check_choice(name, getattr(self, name), choices)

    def check_data(self, root: Path | str | None = None) -> None:
        """Raise ValueError unless data are in place that are not downloaded."""

    def check_batch(self, count: int, what: str) -> None:
        """Raise ValueError if something is trained and so many examples fill no batch."""
        batch = self.batch_size or self.defaults_for_run()["batch_size"]
        if self.epochs != 0 and count < batch:
            of = f"the {count:,} {what} of {self.dataset_title(self.dataset)}"
            raise ValueError(f"batch_size must be at most {of}, got {batch:,}")

    @property
    def catalogue(self) -> dict:
        """The methods that such a run can have."""
        return import_module("hnlib.methods").CATALOGUE

    @property
    def entry(self):
        """The row of the method in the catalogue or of an example; None for the user's own."""
        methods = import_module("hnlib.methods")
        if self.method in methods.EXAMPLES:
            return methods.example(self.method).ENTRY
        return self.catalogue.get(self.method)

    def defaults_for_run(self) -> dict:
        """Return the defaults of fields that are None, and of method options."""
        return {"lr_schedule": "constant", "weight_decay": 0.0}

    def resolved(self):
        """Return this run with all defaults of recipe and catalogue filled in."""
        usual, entry = self.defaults_for_run(), self.entry
        chosen = {
            name: value
            for name, value in usual.items()
            if name in defaults(type(self)) and getattr(self, name) is None
        }
        if self.method is None and chosen.get("epochs", self.epochs):
            raise ValueError("method=None trains nothing; pass a method or epochs=0")
        if entry is not None:  # otherwise there is none, or it is the user's
            beside = {name: value for name, value in usual.items() if name in entry.defaults}
            chosen["options"] = entry.defaults | beside | self.options
        return replace(self, **chosen)

    @functools.cached_property
    def configuration(self) -> dict:
        """The part of the record that names it, as read back from JSON."""
        run = self.resolved()
        chosen = {
            name: getattr(run, name)
            for name, default in unchosen(type(run)).items()
            if (name in run.recorded or getattr(run, name) != default) and run.applies(name)
        }
        chosen["dataset"] = _files.own_name(run.dataset)
        if (entry := run.entry) is not None:
            chosen["options"] = recorded_options(run.options, entry)
            for recorded, (method, option) in RECORDED_AS.items():
                if run.method == method and chosen["options"].pop(option, False):
                    chosen["method"] = recorded
        return json.loads(json.dumps(chosen, default=lambda v: getattr(v, "__qualname__", str(v))))

    @property
    def name(self) -> str:
        """The name of the record."""
        return name(self.configuration)

    @classmethod
    def read(cls, configuration: dict):
        """Return the run of a record's configuration."""
        configuration = current(configuration)
        infinity = {"inf": math.inf, "-inf": -math.inf}  # which JSON cannot write
        options = {
            key: infinity.get(value, value) if isinstance(value, str) else value
            for key, value in configuration["options"].items()
        }
        return cls(**unchosen(cls) | configuration | {"options": options})

    def renamed(self, experiment: str, seed: int):
        """Return this run with another experiment and seed, which are taken as they are."""
        twin = object.__new__(type(self))
        vars(twin).update(vars(self), experiment=experiment, seed=seed)
        vars(twin).pop("configuration", None)
        return twin

    def display_values(self) -> dict:
        """Return the fields as numbers and words."""
        return {name: to_text(getattr(self, name)) for name in defaults(type(self))}


def current(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a run with the present name of its method, if records have another."""
    if fields.get("method") not in RECORDED_AS:
        return fields
    method, option = RECORDED_AS[fields["method"]]
    return fields | {"method": method, "options": fields.get("options", {}) | {option: True}}


def check_choice(name: str, value: str, choices: Iterable[str]) -> str:
    """Return the value; raise ValueError unless it is a choice, or begins as one with a PATH."""
    paths = tuple(choice.removesuffix("PATH") for choice in choices if choice.endswith("PATH"))
    if value in choices or (value.startswith(paths) and value not in paths):
        return value
    raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def listed(*names: Iterable[str] | Mapping[str, str]) -> Parameter:
    """Return the help of an option of these names, with what each is where that is said."""
    every = (one.items() if isinstance(one, Mapping) else ((x, "") for x in one) for one in names)
    pairs = itertools.chain.from_iterable(every)
    return Parameter(help=", ".join(f"{x} ({about})" if about else x for x, about in pairs))


def recorded_options(options: dict, entry) -> dict:
    """Return the options of a record's name, with 1 as 1.0 where the default is a float."""
    recorded = {}
    for name, value in options.items():
        usual = entry.defaults.get(name)
        if name not in entry.later or value != usual:
            recorded[name] = float(value) if type(value) is int and type(usual) is float else value
    return recorded


@functools.cache
def defaults(kind: type) -> dict[str, Any]:
    """Return the fields of a dataclass with their defaults."""
    return {f.name: {} if f.default is dataclasses.MISSING else f.default for f in fields(kind)}


@functools.cache
def unchosen(kind: type) -> dict[str, Any]:
    """Return the fields of a resolved run in which nothing was chosen; records leave them out."""
    return vars(kind().resolved())


def reject_duplicates(pairs, what: str = "parameter") -> dict:
    """Return (name, value) pairs as a dictionary; a repeated name is an error."""
    values = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"{what} {name!r} is given twice")
        values[name] = value
    return values


def literal(text: str):
    """Return the value of a JSON or Python literal, or the text itself."""
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except ValueError:
        return text


def sentence(error: ValidationError) -> str:
    """Return each invalid option with its rule and the value given, on one line."""
    rules = []
    for one in error.errors():
        rule = str(one.get("ctx", {}).get("error", ""))  # a sentence of ours
        if not rule:
            must = one["msg"].replace("Input should", "must", 1)
            rule = f"{one['loc'][0] if one['loc'] else 'run'} {must}, got {one['input']!r}"
            if isinstance(one["input"], str) and "," in one["input"]:
                rule += "; separate values by spaces"
        rules.append(rule)
    return "; ".join(rules)


def to_text(value):
    """Return a value as a table shows it."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    if not isinstance(value, dict):
        return value
    several = {k: v if isinstance(v, list | tuple) else [v] for k, v in value.items()}
    return ",".join(f"{k}={':'.join(map(str, v))}" for k, v in several.items())


def canonical(value, indent=None) -> str:
    """Return JSON with sorted keys, by which records are named and compared.

    An infinity is written as a string, and a value that could not be measured as null.
    """
    separators = (",", ": ") if indent else (",", ":")
    options = dict(sort_keys=True, ensure_ascii=False, allow_nan=False)
    return json.dumps(_finite(value), indent=indent, separators=separators, **options)


def name(configuration: dict) -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical(configuration).encode()).hexdigest()[:12]


def key(configuration: dict) -> str:
    """Return a key that identifies a run, whatever experiment it was made for."""
    same = {"experiment": None, "dataset_digest": None}
    return _SORTED.encode(configuration | same)


_SORTED = json.JSONEncoder(sort_keys=True)


def _finite(value):
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        if {*map(type, value)} == {float} and all(map(math.isfinite, value)):  # scores: many
            return [v + 0 for v in value]
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value + 0 if isinstance(value, float) else value  # -0.0 is 0.0
