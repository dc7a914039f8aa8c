"""What a run is: the one place where its options are named, each with its type, default and range.

A run is a frozen dataclass. From its fields follow the checks, the `configuration` that its record
keeps and is named by, what a recipe fills in, what is unusual about it, the columns of the table of
runs, the flags of `hnlib train` and the keywords of `train`. A new option of a run is one line
here; it enters only those records in which it is not at its default, so old names stay true. What
says how a run is carried out (where, how watched, where written) is an `Execution`.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import math
import re
import sys
import typing
from dataclasses import dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

_PAPERS = dict(
    epochs=400,
    batch_size=256,
    lr=1e-3,
    weight_decay=1e-6,
    augmentation="hcl",
    options=dict(temperature=0.5),
    stl10=dict(augmentation="hcl-32"),
)
_HCL = _PAPERS | dict(
    options=dict(temperature=0.5, tau_plus=0.1),
    cifar100=dict(tau_plus=0.05),
    **{"tiny-imagenet": dict(tau_plus=0.01)},
)
#: Settings by name: fields of an `ImageRun` that are not given take these. `options` go to the
#: methods that have them; under a data set's name stands what it needs otherwise, under a method's
#: what that method alone does there. "book" is what the default build can afford; the next five are
#: the papers' (hcl App. D.1 and released code; hcl-ot, whose batch is 512; h-scl Sec. V-A, without
#: its noise, whose strength is not printed; dro-adnce's released commands; unremix, "the training
#: setup of HCL"); "fast" is ours.
RECIPES = {
    "book": dict(epochs=30, batch_size=256, lr=1e-3, weight_decay=1e-6),
    "hcl": _HCL,
    "hcl-ot": _PAPERS | dict(batch_size=512),
    "h-scl": _PAPERS | dict(epochs=200, batch_size=512),
    "adnce": _PAPERS
    | dict(
        adnce=dict(
            cifar10=dict(temperature=0.4, mu=0.7, sigma=0.5),
            cifar100=dict(temperature=0.3, mu=0.5, sigma=1.0),
            stl10=dict(temperature=0.2, mu=0.8, sigma=1.0),
        )
    ),
    "unremix": _HCL,
    "fast": dict(epochs=100, batch_size=128, lr=3e-3, weight_decay=1e-6, lr_schedule="cosine"),
}
LARGEST = {int: 2**63 - 1, float: sys.float_info.max}  # what tables and PyTorch take
#: What embeddings of sentences are judged by: classes, and likeness; the last two are generated.
TRANSFER = ("mr", "cr", "subj", "mpqa", "trec", "msrp")
SIMILARITY = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sick")
SENTENCE_TASKS = (*TRANSFER, *SIMILARITY, "topic", "alike")
PRECISIONS = ("32-true", "bf16-mixed")  # others need a scaler in the checkpoint, or other inputs


def option(
    default,
    help: str = "",
    *,
    least: float | None = None,
    within: str = "",
    choices=(),
    named: bool | str = False,
    applies: str = "",
    absent=None,
    headline: bool = False,
    derived: bool = False,
) -> Any:
    """A field of a run.

    `least`, `within` (an interval such as "[0, 1)"), `choices`: its range. `named`: records name it
    even at its default (of the kind of runs given), as they did from the start; leave it False for
    a new option. `applies`: the field, or field=value, without which it means nothing. `absent`:
    what its absence from a record means, where that is not the default. `headline`: every record
    and every table says it, so it is never unusual. `derived`: filled in by the loop.
    """
    about = {k: v for k, v in locals().items() if k != "default"}
    about["named"] = named or headline
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=about)
    return dataclasses.field(default=default, metadata=about)


@dataclass(frozen=True, kw_only=True)
class Fields:
    """Frozen dataclasses whose fields are `option`s: the checks that follow from them."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = _of_kind(field.name, hints(type(self))[field.name], getattr(self, field.name))
            object.__setattr__(self, field.name, value)
            for one in value if isinstance(value, tuple) else (value,):
                _check_range(field, one)


@functools.cache
def hints(kind) -> dict[str, Any]:
    """The types of a dataclass's fields."""
    return typing.get_type_hints(kind)


def default(field):
    """What a field is where nothing is said."""
    return {} if field.default is dataclasses.MISSING else field.default


KINDS = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    bool: (bool, "True or False"),
    Path: ((str, Path), "a path"),
}


def _of_kind(name: str, hint: Any, value: Any) -> Any:
    """The value as its field holds it. ValueError: it is of another kind."""
    kinds = typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)
    kind: Any = kinds[0]
    if value is None and (NoneType in kinds or kind is dict):
        return {} if kind is dict else None
    if typing.get_origin(kind) is tuple:
        several = value if isinstance(value, list | tuple | set) else [value]
        inner = typing.get_args(kind)
        if Ellipsis not in inner and len(several) != len(inner):
            raise ValueError(f"{name}={value!r} must have {len(inner)} values")
        return tuple(_of_kind(name, inner[0], v) for v in several)
    fits, words = KINDS.get(kind) or (kinds, " or ".join(k.__name__ for k in kinds))
    text = str(value) if isinstance(value, str | Path) else name
    if "\0" in text or (kind is Path and not text.strip()):
        raise ValueError(f"{name}={text!r} is no name; leave it out or write one")
    odd = isinstance(value, bool) != (kind is bool) or value != value
    if odd or not isinstance(value, fits):
        raise ValueError(f"{name}={value!r} must be {words}")
    if kind in LARGEST and LARGEST[kind] < abs(value) < math.inf:
        raise ValueError(f"{name} is too large a number: {LARGEST[kind]:.3g} is the largest")
    return value if kind in (str, bool) else kind(value)  # a number of NumPy's becomes plain


def _check_range(field, value) -> None:
    least, within, known = (field.metadata[key] for key in ("least", "within", "choices"))
    if value is None:
        return
    if known and value not in known:
        word = field.name.removesuffix("s")  # of one among several
        raise ValueError(f"unknown {word} {value!r}; known: {', '.join(known)}")
    if least is not None and not least <= value < math.inf:
        raise ValueError(f"{field.name}={value} must be at least {least}")
    if within:
        low, high = map(float, within[1:-1].split(","))
        ends = [end for end, bracket in ((low, within[0]), (high, within[-1])) if bracket in "[]"]
        if not (low < value < high or value in ends):
            raise ValueError(f"{field.name}={value} must lie in {within}")


@dataclass(frozen=True, kw_only=True)
class Execution(Fields):
    """How a run is carried out. Nothing here changes what it is; no record is named by it."""

    device: str = option("auto", "auto, cpu, cuda")
    checkpoint: Path | None = option(None, "written after each epoch, continued if present")
    resume: bool = option(True, "continue an existing checkpoint")
    data_root: Path | None = option(None, "default: $HNLIB_DATA, else the user's cache")
    record_to: Path | None = option(None, "folder for the record")
    save: Path | None = option(None, "write the trained encoder here (safetensors)")
    progress: bool = option(True, "show a bar")
    evaluate_every: int | None = option(
        None, "epochs between rows of the history, 0: only the last (default: 5, graphs 0)", least=0
    )
    evaluate_at: tuple[int, ...] = option((), "epochs that get a row besides, with commas", least=0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Recorded(Fields):
    """What a record is about. Two are equal if their records have one name."""

    def chosen(self) -> dict:
        """The fields that the record names, as they are."""
        chosen = {}
        for field in dataclasses.fields(self):
            absent, value = field.metadata["absent"], getattr(self, field.name)
            plain = value == (default(field) if absent is None else absent)
            if self.names(field) or (self.has(field) and not plain):
                chosen[field.name] = value
        return chosen

    def names(self, field) -> bool:
        """Whether the record names a field even at its default."""
        named = field.metadata["named"]
        if isinstance(named, str):
            named = named in [kind.__name__ for kind in type(self).__mro__]
        return named and self.has(field)

    def __post_init__(self):
        super().__post_init__()
        for field in dataclasses.fields(self):
            value, means = getattr(self, field.name), field.metadata["applies"]
            if value != default(field) and not self.has(field):
                raise ValueError(f"{field.name}={words(value)} means nothing without {means}")

    @property
    def configuration(self) -> dict:
        """What the record keeps and is named by."""
        return self.chosen()

    @property
    def name(self) -> str:
        """The name of the record."""
        return name(self.configuration)

    def __eq__(self, other):
        return isinstance(other, Recorded) and self.name == other.name

    def __hash__(self):
        return hash(self.name)

    def has(self, field) -> bool:
        """Whether a field means anything here."""
        if not (applies := field.metadata["applies"]):
            return True
        other, _, wanted = applies.partition("=")
        return getattr(self, other) == wanted if wanted else bool(getattr(self, other))


@dataclass(frozen=True, kw_only=True, eq=False)
class Configuration(Recorded):
    """What runs of all kinds have.

    A field that is None is filled in by `resolved`. Modules and data of one's own stand here under
    their names, functions among the `options` of the method as they are. `schedule` {option:
    (start, end[, changes])}.
    """

    experiment: str = option("images", "heading on the Results page", headline=True)
    dataset: str = option(
        "digits", "digits, cifar10, cifar100, stl10, tiny-imagenet, folder:PATH", headline=True
    )
    method: str | None = option("simclr", "of the catalogue", headline=True)
    dataset_digest: str | None = option(None, headline=True, derived=True)
    options: dict = option({}, "KEY=VALUE: an option of the method, e.g. beta=2.0", headline=True)
    epochs: int | None = option(None, "passes over the data", least=0, headline=True)
    batch_size: int | None = option(None, "images, graphs or pairs in a step", least=2, named=True)
    seed: int = option(0, "of weights, batches, views", within="[0, 4294967295]", headline=True)
    lr: float | None = option(None, "learning rate", within="(0, inf)", named=True)
    lr_schedule: str | None = option(None, choices=("constant", "cosine"), absent="constant")
    weight_decay: float | None = option(None, "of Adam", least=0, named="ImageRun", absent=0.0)
    schedule: dict = option({}, "OPTION=START:END[:CHANGES]: one that moves, e.g. beta=1:0")
    reach_end: bool = option(
        False, "a schedule has its END in the last epoch, not after it", applies="schedule"
    )
    queue: int = option(0, "older keys that serve as candidates too", least=0)
    momentum: float = option(
        0.999,
        "of the encoder of the keys, which at 1 would never follow",
        within="[0, 1)",
        named=True,
        applies="queue",
    )
    precision: str = option("32-true", choices=PRECISIONS, named="ImageRun")
    compile: bool = option(False, "compile the model with torch.compile")
    max_steps: int | None = option(None, "end training early", least=1, named="ImageRun")

    def __post_init__(self):
        super().__post_init__()
        for name, course in self.schedule.items():
            ends = list(course) if isinstance(course, list | tuple) else []
            whole = len(ends) == 2 or (len(ends) == 3 and isinstance(ends[2], int) and ends[2] >= 1)
            if not whole or any(isinstance(v, bool) or not isinstance(v, Real) for v in ends):
                raise ValueError(
                    f"schedule: {name}={course!r} must be (start, end) or (start, end, number of "
                    "changes)"
                )
        # ends of 1 and of 1.0 are one course, and so name one record
        exact = {k: [float(v) for v in c[:2]] + [*c[2:]] for k, c in self.schedule.items()}
        object.__setattr__(self, "schedule", exact)

    title_form = "{dataset}, {encoder}, {epochs} epochs"
    evaluate_every = 0  # what Execution.evaluate_every is where that is None

    @property
    def catalogue(self) -> dict:
        """The methods that such a run can have."""
        from hnlib import methods  # here: reading and naming records need not wait for torch

        return methods.CATALOGUE

    def usual(self, channels: int | None = None) -> dict:
        """What is taken where a field is None; options of methods stand beside the fields."""
        absent = {field.name: field.metadata["absent"] for field in dataclasses.fields(self)}
        return {name: value for name, value in absent.items() if value is not None}

    def resolved(self, channels: int | None = None):
        """This run with nothing left to recipe and catalogue; `channels` of images choose their
        augmentation. ValueError: no method, but epochs to train."""
        usual, fields = self.usual(channels), hints(type(self))
        said = {k: v for k, v in usual.items() if k in fields and getattr(self, k) is None}
        if self.method is None and said.get("epochs", self.epochs):
            known = f"name a method ({', '.join(self.catalogue)}) or pass epochs=0"
            raise ValueError(f"method=None trains nothing; {known}")
        if (entry := self.catalogue.get(self.method)) is not None:  # else none, or one's own
            usual = {k: v for k, v in usual.items() if k in entry.options}
            said["options"] = entry.options | usual | self.options
        changes = {k: v for k, v in said.items() if v != getattr(self, k)}
        return replace(self, **changes) if changes else self

    @property
    def configuration(self) -> dict:
        """What the record keeps and is named by, as it will be read back: tuples are lists."""
        run = self.resolved()
        chosen = run.chosen()
        if (entry := run.catalogue.get(run.method)) is not None:
            chosen["options"] = entry.recorded(run.options)
        return json.loads(json.dumps(chosen, default=lambda v: getattr(v, "__qualname__", str(v))))

    def shown(self) -> dict:
        """The fields as a table shows them: numbers and words."""
        return {name: words(getattr(self, name)) for name in hints(type(self))}

    def changed(self, channels: int | None = None) -> dict:
        """What is unusual about the training, by field, as a table shows it; headlines aside."""
        run, usual = self.resolved(channels), self.usual(channels)
        shown = run.shown()
        fields = [f for f in dataclasses.fields(run) if run.has(f) and not f.metadata["headline"]]
        plain = {field.name: words(usual.get(field.name, default(field))) for field in fields}
        return {key: shown[key] for key, value in plain.items() if shown[key] != value}

    def changed_options(self) -> dict:
        """The method's options that are not the catalogue's; all of a method of one's own."""
        options, entry = self.configuration["options"], self.catalogue.get(self.method)
        return options if entry is None else entry.changed(options)

    def row(self, channels: int | None = None) -> dict:
        """What a table of runs has about this one: fields and options of the method under their
        names; `options` and `changed` that are unusual; `title`, where it was made; in words."""
        run = self.resolved(channels)
        row, options = run.shown(), words(run.changed_options())
        changed = ", ".join(f"{key} {value}" for key, value in run.changed(channels).items())
        title = self.title_form.format(**row | {"train_size": row.get("train_size") or "all"})
        title = ", ".join(filter(None, (title, changed)))
        more = {k: tuple(v) if isinstance(v, list) else v for k, v in run.options.items()}
        return more | row | {"options": options, "changed": changed, "title": title}

    def refuse_unnamed(self) -> None:
        """ValueError: an option has no name by which records and checkpoints could tell it."""
        for value in map(str, self.configuration["options"].values()):
            if any(mark in value for mark in ("<lambda>", "<locals>", " at 0x")):
                raise ValueError(
                    f"the option {value} has no name by which a record or checkpoint could tell it "
                    "from another; pass a function of a module, or an object whose repr says what "
                    "it is"
                )


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageRun(Configuration):
    """An encoder of images, trained on two views of each. `recipe` is a key of `RECIPES`,
    `augmentation` a name or what `augment.recorded` makes of one's own."""

    encoder: str = option("small-cnn", "small-cnn, resnet18, resnet50, pixels", headline=True)
    recipe: str = option("book", "settings for what is not given", choices=RECIPES)
    train_size: int | None = option(None, "a class-balanced subset of the images", headline=True)
    validation: int = option(0, "training images set apart, on which to choose", least=0)
    augmentation: str | dict | None = option(None, "by the channels if not given", named=True)
    separate_views: bool = option(
        False, "each view passes the encoder by itself, with batch statistics of its own"
    )
    oracle_positives: bool = option(False, "second views of another image of the class")
    admitted: float = option(
        1.0,
        "share of the pairs of one class that stay negatives, drawn anew in each step",
        within="[0, 1]",
    )
    mixing: str | None = option(
        None, "i-mix or un-mix: views that mix two images", choices=("i-mix", "un-mix")
    )
    mixing_share: float | None = option(
        None, "of the own image in a mixture, if not drawn", within="[0, 1]", applies="mixing"
    )
    evaluate_size: int | None = option(None, "limit of the readouts", least=2, named=True)
    protocols: tuple[str, ...] = option(
        ("clean",), "of the readout, several with commas", choices=("clean", "paper")
    )
    projector: str | None = option(None, derived=True)

    title_form = "{dataset}, {train_size} images, {encoder}, {epochs} epochs"
    evaluate_every = 5

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "protocols", tuple(sorted({"clean", *self.protocols})))

    def usual(self, channels: int | None = None) -> dict:
        said = RECIPES[self.recipe]
        own = said.get(self.method, {}).get(self.dataset, {})
        more = said.get("options", {}) | said.get(self.dataset, {}) | own
        usual = super().usual() | said | more
        if channels is None:
            return usual
        from hnlib.images import augment

        return {"augmentation": augment.recipe_for(channels)} | usual

    def resolved(self, channels: int | None = None):
        from hnlib.images import augment

        run = super().resolved(channels)
        if not isinstance(run.augmentation, str):
            return run
        return replace(run, augmentation=augment.recorded(augment.resolve(run.augmentation)))

    def changed(self, channels: int | None = None) -> dict:
        return super().changed(channels or (1 if self.dataset == "digits" else 3))

    def shown(self) -> dict:
        from hnlib.images import augment

        shown = super().shown()
        if isinstance(self.augmentation, dict):
            kinds = hints(augment.Recipe)
            for key, value in self.augmentation.items():
                if key not in kinds:
                    raise ValueError(f"augmentation has no {key!r}, only {', '.join(kinds)}")
                _of_kind(f"augmentation: {key}", kinds[key], value)
            recipe = augment.resolve(self.augmentation)
            if missing := sorted(augment.recorded(recipe).keys() - self.augmentation.keys()):
                raise ValueError(f"augmentation lacks {missing[0]}, which every recipe has")
            named = (name for name, known in augment.RECIPES.items() if known == recipe)
            shown["augmentation"] = next(named, shown["augmentation"])
        return shown


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphRun(Configuration):
    """A GIN trained by InfoGraph, or by GraphCL on two views of each graph. `labels` matter where
    the method learns from them."""

    experiment: str = option("graphs", "heading on the Results page", headline=True)
    dataset: str = option("motifs", "motifs, MUTAG and others: see hnlib data", headline=True)
    method: str | None = option("infograph", "of the framework", headline=True)
    framework: str = option("infograph", choices=("infograph", "graphcl"), headline=True)
    layers: int = option(3, "of the GIN", least=1, headline=True)
    hidden: int = option(32, "width of the GIN", least=1, named=True)
    labels: str | None = option(
        None,
        "that train; by fold (default): not those of its test graphs",
        choices=("fold", "all"),
        named=True,
    )
    folds: int = option(10, "of the cross-validation", least=2, named=True)
    augmentations: tuple[str, ...] = option(
        ("drop", "edges", "subgraph", "mask"),
        "with commas",
        choices=("drop", "edges", "subgraph", "mask"),
        named=True,
        applies="framework=graphcl",
    )
    ratio: float = option(
        0.2, "of the augmentations", within="[0, 1)", named=True, applies="framework=graphcl"
    )
    original: bool = option(
        False, "the first view is the graph itself", applies="framework=graphcl"
    )

    title_form = "{dataset}, {framework}, {encoder}, {epochs} epochs"

    @property
    def encoder(self) -> str:
        return f"gin{self.layers}"

    @property
    def configuration(self) -> dict:
        """As in every run, but the number of layers stands in the encoder's name."""
        chosen = super().configuration
        del chosen["layers"]
        return chosen | {"encoder": self.encoder}

    def shown(self) -> dict:
        return super().shown() | {"encoder": self.encoder}

    @property
    def catalogue(self) -> dict:
        if self.framework == "graphcl":
            return super().catalogue
        try:
            from hnlib.graphs import methods
        except ImportError:  # records can be read without PyTorch Geometric
            return {}
        return methods.CATALOGUE

    def usual(self, channels: int | None = None) -> dict:
        return super().usual() | dict(epochs=20, batch_size=128, lr=1e-3)

    def resolved(self, channels: int | None = None):
        run = super().resolved()
        entry = run.catalogue.get(run.method)
        if entry is None and run.method:
            return run  # of a catalogue that is not there
        labels = (run.labels or "fold") if entry and entry.supervised else None
        return run if labels == run.labels else replace(run, labels=labels)


@dataclass(frozen=True, kw_only=True, eq=False)
class SentenceRun(Configuration):
    """An encoder of sentences, trained on neighbours of a corpus or on each sentence twice under
    dropout, with a tokenizer learned on the corpus."""

    experiment: str = option("sentences", "heading on the Results page", headline=True)
    dataset: str = option("topics", "topics, novels, text:PATH", headline=True)
    method: str | None = option("simclr", "of the catalogue", headline=True)
    encoder: str = option("bag", choices=("bag", "gru", "transformer"), headline=True)
    views: str = option(
        "neighbours", "what a pair is", choices=("neighbours", "dropout"), headline=True
    )
    train_size: int | None = option(None, "pairs, the same for all seeds", least=2, headline=True)
    dimension: int = option(256, "of an encoder's embeddings", least=1, named=True)
    towers: int = option(1, "2: one encoder for each sentence of a pair", within="[1, 2]")
    vocabulary: int = option(16384, "tokens at most", within="[300, 32767]", named=True)
    length: int = option(64, "tokens after which a sentence is cut", within="[2, 64]", named=True)
    both: bool = option(False, "the loss in both directions", applies="views=neighbours")
    tasks: tuple[str, ...] = option((), "default: those of the corpus", choices=SENTENCE_TASKS)

    title_form = "{dataset}, {train_size} pairs, {encoder}, {epochs} epochs"

    def usual(self, channels: int | None = None) -> dict:
        lr = 0.1 if self.encoder == "bag" else 1e-3  # a word is seldom met, and then moves alone
        return super().usual() | dict(epochs=5, batch_size=256, lr=lr)


@dataclass(frozen=True, kw_only=True, eq=False)
class Measurement(Recorded):
    """A record of something other than a trained encoder: memory and time of a loss."""

    experiment: str = option("large-batches", named=True)
    measured: str = option("cost", named=True)
    loss: str = option("dense", named=True)
    method: str = option("simclr", named=True)
    embeddings: int = option(1024, least=2, named=True)
    dimension: int = option(128, least=1, named=True)
    device: str = option("cpu", named=True)


def read(
    configuration: dict, whole: bool = False
) -> ImageRun | GraphRun | SentenceRun | Measurement:
    """The run of a record's configuration. ValueError: it names what no run has, or a value of
    another kind; if it is to be `whole`, it lacks what every record has, or leaves it open."""
    kind = GraphRun if "framework" in configuration else ImageRun
    kind = SentenceRun if "vocabulary" in configuration else kind
    kind = Measurement if "measured" in configuration else kind
    chosen = dict(configuration)
    if kind is GraphRun and "encoder" in chosen:
        name, _, layers = str(encoder := chosen.pop("encoder")).partition("gin")
        if name or not layers.isdecimal():
            raise ValueError(f"encoder={encoder!r} of a run on graphs must be gin1, gin2, …")
        chosen["layers"] = int(layers)
    if unknown := sorted(chosen.keys() - hints(kind).keys()):
        raise ValueError(
            f"the configuration names {unknown[0]}, which no {kind.__name__} has; "
            "read it with the hnlib that wrote it, or a newer one"
        )
    for key, hint in hints(kind).items():
        if hint is dict and not isinstance(chosen.get(key, {}), dict):
            raise ValueError(f"{key}={chosen[key]!r} must be dict")
    if "options" in chosen:  # JSON has no infinity
        far = {"inf": math.inf, "-inf": -math.inf}
        chosen["options"] = {k: far.get(str(v), v) for k, v in chosen["options"].items()}
    run = kind(**chosen)
    usual = run.usual() if isinstance(run, Configuration) else {}
    for field in dataclasses.fields(run) if whole else ():
        if run.names(field) and field.name not in chosen:
            raise ValueError(f"the configuration lacks {field.name}; every {kind.__name__} has it")
        if field.name in usual and chosen.get(field.name, 0) is None:
            raise ValueError(f"the configuration leaves {field.name} open; a run has chosen it")
    return run


def given(*kinds) -> dict:
    """The fields that a caller may give, by name."""
    fields = [field for kind in kinds for field in dataclasses.fields(kind)]
    return {field.name: field for field in fields if not field.metadata["derived"]}


def split(kind, keywords: dict) -> tuple:
    """Keywords of `train` as a run of that kind and an `Execution`; what neither has is an option
    of the method."""
    run = {k: v for k, v in keywords.items() if k in given(kind) and k != "options"}
    execution = {k: v for k, v in keywords.items() if k in given(Execution)}
    rest = {k: v for k, v in keywords.items() if k not in {*run, *execution, "options"}}
    return kind(**run, options=keywords.get("options", {}) | rest), Execution(**execution)


def signature(kind) -> inspect.Signature:
    """The signature of `train` for runs of a kind: data set and method come first."""
    fields, types = given(kind, Execution), hints(kind) | hints(Execution)
    first, parameter = ("dataset", "method"), inspect.Parameter
    parameters = [
        parameter(
            name,
            parameter.POSITIONAL_OR_KEYWORD if name in first else parameter.KEYWORD_ONLY,
            default=default(fields[name]),
            annotation=types[name],
        )
        for name in dict.fromkeys([*first, *fields])
        if name != "options"
    ]
    rest = parameter("method_options", parameter.VAR_KEYWORD)
    return inspect.Signature([*parameters, rest])


def words(value):
    """A value as a table shows it and the command line takes it."""
    if isinstance(value, dict):
        several = ((k, v if isinstance(v, list | tuple) else [v]) for k, v in value.items())
        return ",".join(f"{k}={':'.join(map(str, v))}" for k, v in several)
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else value


# int() and float() also read 1_0, digits of other scripts, and more
WHOLE = re.compile(r"[+-]?[0-9]{1,4000}")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def number(text: str, whole: bool = False) -> float:
    """The number that a text is, wherever a user writes one. ValueError: it is none, or infinite
    as 1e999 is."""
    if not (WHOLE if whole else NUMBER).fullmatch(text):
        raise ValueError(f"{text!r} is not a {'whole ' * whole}number")
    value = int(text) if whole else float(text)
    if abs(value) == math.inf:
        raise ValueError(f"{text!r} is too large a number")
    return value + 0  # -0.0 is 0.0


def whole_number(kind, tokens) -> int:
    """What the command line says, where cyclopts would round it. ValueError: no whole number."""
    return int(number(tokens[0].value, whole=True))


def any_number(kind, tokens) -> float:
    """What the command line says. ValueError: no number."""
    return number(tokens[0].value)


def canonical(value, indent=None) -> str:
    """JSON with sorted keys, by which records are named and compared; an infinity is a word, what
    could not be measured is null. ValueError: JSON cannot say it."""
    separators = (",", ": ") if indent else (",", ":")
    write = functools.partial(json.dumps, sort_keys=True, ensure_ascii=False, allow_nan=False)
    try:
        return write(_finite(value), indent=indent, separators=separators)
    except TypeError as error:
        raise ValueError(f"a record holds what JSON cannot: {error}") from error


def name(configuration: dict) -> str:
    """The first 12 hexadecimal digits of the SHA-256 of the configuration's canonical JSON."""
    return hashlib.sha256(canonical(configuration).encode()).hexdigest()[:12]


def _finite(value):
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value + 0 if isinstance(value, float) else value  # -0.0 is 0.0
