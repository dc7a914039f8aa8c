"""The null model, version 1: a new loss against a temperature that got as much tuning.

`hnlib null my_loss.py` runs a file with `loss(a, b, **options)` and `CONFIGURATIONS`. Each of at
most eight configurations is trained on four tasks, at four rates and two lengths, and chosen on
validation data with two seeds; so were N1, eight temperatures of InfoNCE, and N2, eight pairs of
temperature and loudness, whose choices are recorded (`book/results/experiments/null-1.toml`). Ten
fresh seeds of what was chosen are compared, each pair on one processor.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import itertools
import json
import math
import statistics
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cyclopts.types import PositiveInt
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional

from hnlib import experiments
from hnlib._files import write_atomically
from hnlib.experiments import comparisons, evidence, runner
from hnlib.experiments.comparisons import Effect
from hnlib.experiments.null_verdicts import MARGINS, NULLS, PROTOCOL, deviation, word
from hnlib.experiments.prediction_statistics import over_seeds
from hnlib.profile import Profile, profile_loss, run_file, source
from hnlib.training import kinds, records
from hnlib.training.config import canonical
from hnlib.training.loop import Diverged

QUICK = "null-1-quick"
FRESH = range(210, 220)  # seeds of the comparison
MOST = 8  # configurations
OVER = {name: f"over {words}" for name, words in NULLS.items()} | {
    "default": f"its default over {NULLS['N1']}"
}
UNTUNED = "N1 t0.5 *"  # what gains are counted from where a share of them is explained
PHRASES = {  # of the verdicts that a sentence names with their tasks
    "beats": "beats it on",
    "loses": "loses to it on",
    "leads": "leads it on",
    "trails": "trails it on",
    "diverged": "diverged on",
}
FAILED = -math.inf  # the score of a training that diverged


@dataclasses.dataclass(frozen=True)
class Loss:
    """A loss read from a file: its code and its configurations, the first being the default."""

    path: Path
    code: str
    function: Callable
    configurations: tuple[dict, ...]

    @property
    def name(self) -> str:
        """The name in records, which holds the digest of the code."""
        return f"{self.path.stem}-{hashlib.sha256(self.code.encode()).hexdigest()[:8]}"

    def method(self, options: dict) -> Given:
        """Return the loss with options as a method that `train` takes."""
        return Given(self.function, self.name, options)


class Given(nn.Module):
    """A function of the unit embeddings of pairs, wrapped as a method for training.

    `pairs` is the function; two views are pairs in both directions, and the loss is the mean of
    both.
    """

    def __init__(self, function: Callable, name: str, options: dict):
        super().__init__()
        self.function, self.name, self.options = function, name, options

    def pairs(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the loss of queries [n, d] whose answers are the keys [n, d] of the same row."""
        a, b = (functional.normalize(x.float(), dim=1) for x in (queries, keys))
        return self.function(a, b, **self.options)

    def forward(self, z1: Tensor, z2: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the loss of two views."""
        return (self.pairs(z1, z2) + self.pairs(z2, z1)) / 2


def read(path: Path | str) -> Loss:
    """Run a file and return its loss.

    Raises
    ------
    ValueError
        If it has no `loss`, its `CONFIGURATIONS` are not one to eight dictionaries, two are alike,
        a configuration does not return a scalar with a gradient, or it imports modules beside it.
    OSError
        If the file cannot be read.
    """
    path = Path(path)
    code, names = source(path), run_file(str(path))
    if own := _own_modules(code, path.parent.resolve()):
        raise ValueError(
            f"{path} imports {own[0]}, a module beside it, whose changes its records would not "
            "show; put the whole loss into one file"
        )
    function, configurations = names.get("loss"), names.get("CONFIGURATIONS", [{}])
    if not callable(function):
        raise ValueError(f"{path} must define loss(a, b, **options)")
    listed = isinstance(configurations, list | tuple)
    if not listed or not 1 <= len(configurations) <= MOST:
        got = len(configurations) if listed else type(configurations).__name__
        rule = f"CONFIGURATIONS of {path} must be a list of 1 to {MOST} dictionaries"
        raise ValueError(f"{rule}, got {got}")
    for i, options in enumerate(configurations):
        if not isinstance(options, dict) or not _is_json(options) or options in configurations[:i]:
            raise ValueError(
                f"CONFIGURATIONS[{i}] of {path} must be a dictionary of numbers and words that is "
                f"not there already, got {options!r}"
            )
        what = f"CONFIGURATIONS[{i}] of {path} = {options}"
        alone = f"{path} has no CONFIGURATIONS, and loss(a, b) fails"
        _try(function, options, what if "CONFIGURATIONS" in names else alone)
    return Loss(path, code, function, tuple(configurations))


def _own_modules(code: str, folder: Path) -> list[str]:
    """Return the modules that the code imports from its folder, but for a checkout's hnlib."""
    imported = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            imported += [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported.append(node.module or "")
    own = []
    for name in sorted({name.partition(".")[0] for name in imported} - {"hnlib", ""}):
        spec = PathFinder.find_spec(name, [str(folder), *sys.path])
        places = spec and [*(spec.submodule_search_locations or [spec.origin])]
        if places and Path(places[0]).parent == folder:
            own.append(name)
    return own


def _is_json(value) -> bool:
    try:
        return json.loads(json.dumps(value)) == value
    except (TypeError, ValueError):
        return False


def _try(function: Callable, options: dict, what: str) -> None:
    """Raise ValueError unless the loss of two small batches is a finite scalar with a gradient."""
    generator = torch.Generator().manual_seed(0)
    a, b = functional.normalize(torch.randn(2, 8, 16, generator=generator), dim=2)
    try:
        value = function(a.requires_grad_(), b, **options)
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        if shape != () or not value.isfinite():
            mean = ": return its mean" if isinstance(value, Tensor) else ""
            got = f"{shape}{mean}" if shape else value.item()
            raise ValueError(f"loss must return a finite scalar tensor, got {got}")
        value.backward()
    except Exception as error:
        raise ValueError(f"{what}: {type(error).__name__}: {error}") from error


def arms(loss: Loss, protocol: experiments.Experiment) -> dict[str, dict[str, dict]]:
    """Return the configurations at the rates and lengths of the null model, by task and name."""
    found: dict[str, dict[str, dict]] = {}
    for block in protocol.blocks:
        trained = {(arm["max_steps"], arm["lr"]) for arm in protocol.arms[block].values()}
        found[block] = {}
        for i, options in enumerate(loss.configurations):
            for steps, lr in sorted(trained):
                arm = dict(options=options, max_steps=steps, lr=lr, method=loss.name)
                found[block][f"{i} x{steps} lr{lr}"] = arm
    return found


def nulls(protocol: experiments.Experiment) -> experiments.Experiment:
    """Return the fresh runs of the null model and of InfoNCE at t = 0.5, as validation chose them.

    Raises ValueError if the runs that choose them are not recorded.
    """
    rule = dict(by="validation", experiment=protocol.name)
    rules = {name: rule | {"among": f"{name} *"} for name in NULLS}
    rules["untuned"] = rule | {"among": UNTUNED}
    none = {block: {} for block in protocol.blocks}
    fresh = dataclasses.replace(protocol, seeds=tuple(FRESH), arms=none, chosen=rules)
    for block, name in itertools.product(fresh.blocks, rules):
        if fresh.arm(name, block) is None:
            raise ValueError(
                f"what {protocol.name} chooses on {block} is not recorded here; install the "
                f"records, or make them with hnlib queue --run --only {PROTOCOL}"
            )
    return fresh


def chosen(loss: Loss, choice: experiments.Experiment, block: str, pattern: str = "*") -> dict:
    """Return the arm with the best mean validation score; runs that diverged have no record."""
    metric = f"{choice.metric(block)}_validation"

    def score(name: str) -> float:
        values = choice.values(name, metric, block)
        return statistics.fmean(values.get(seed, FAILED) for seed in choice.seeds)

    scores = {name: score(name) for name in choice.matching(pattern, block)}
    best = max(scores, key=lambda name: scores[name])
    if scores[best] == FAILED:
        name = f"{loss.path}, configuration {pattern[0]}" if pattern != "*" else loss.path
        raise ValueError(f"{name}: every training diverged on {block}")
    return choice.arms[block][best]


def work(
    experiment: experiments.Experiment,
    loss: Loss,
    folder: Path,
    processes: int,
    finished: Callable,
    data_root: Path | None,
) -> experiments.Experiment:
    """Train the runs that the folder has no record of; return the experiment with its records."""
    runner.train(
        experiment.missing(),
        device="cpu",
        engine=runner.Engine(engine="processes", workers=processes),
        data_root=data_root,
        record_to=folder,
        method=functools.partial(_method, str(loss.path), loss.name),
        finished=lambda run, _: finished(run),
        leave_out=(Diverged,),
    )
    return dataclasses.replace(experiment, recorded=records.by_key(folder))


def _method(path: str, name: str, run) -> Given | None:
    """Return the loss of a run, read from its file in each process."""
    if run.method != name:
        return None
    loss = _read(path)
    if loss.name != name:
        raise ValueError(f"{path} was edited while it was on trial; start the trial again")
    return loss.method(run.options)


_read = functools.cache(read)


def costs(protocol: experiments.Experiment) -> Callable:
    """Return the seconds of a run: those of the quickest tenth of recorded runs of its kind."""
    times: dict[tuple, list[float]] = {}
    for record in itertools.chain.from_iterable(records.by_key().values()):
        chosen = record["configuration"]
        if chosen.get("pairs_only"):
            kind = chosen["dataset"], chosen["encoder"], chosen["max_steps"]
            times.setdefault(kind, []).append(record["seconds"])  # of machines that may be busy
    quick = {kind: float(np.quantile(some, 0.1)) for kind, some in times.items()}
    usual = 60 * protocol.minutes
    return lambda run: quick.get((run.dataset, run.encoder, run.max_steps), usual)


def share(part: Effect, whole: Effect) -> tuple[float, float, float] | None:
    """Return part/whole with Fieller's 95 % interval, None unless that of `whole` is above zero.

    Both are differences of the same seeds: what N1 and what the loss gain over InfoNCE at t = 0.5.
    """
    if not whole.low > 0 or part.seeds != whole.seeds:
        return None
    x, y = np.array(part.values), np.array(whole.values)
    (xx, xy), (_, yy) = np.cov(x, y) / len(x) * stats.t.ppf(0.975, len(x) - 1) ** 2
    a, b, c = y.mean() ** 2 - yy, x.mean() * y.mean() - xy, x.mean() ** 2 - xx
    if a <= 0:
        return None
    half = math.sqrt(max(b * b - a * c, 0.0))
    return x.mean() / y.mean(), (b - half) / a, (b + half) / a


def foreseen(protocol: experiments.Experiment) -> dict[str, float]:
    """Return, by task, the lead in points that ten seeds detect with probability 0.8."""
    found, seeds = {}, len(FRESH)
    for block in protocol.blocks:
        if (spread := deviation(protocol, block)) is not None:
            error = spread / math.sqrt(seeds)
            design = Effect(0.0, error, seeds - 1, "these images", family=len(protocol.blocks))
            found[block] = MARGINS[protocol.metric(block)] + comparisons.detectable(design)
    return found


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a trial found: profiles by stage, and differences by null model and task."""

    loss: Loss
    compared: experiments.Experiment
    profiles: dict[str, Profile]
    effects: dict[str, dict[str, Effect]]
    by_query: dict[str, dict[str, Effect]]
    gains: dict[str, dict[str, Effect]]

    def words(self, base: str = "N1") -> dict[str, str]:
        """Return the verdict on each task; a loss whose fresh seed diverged has none."""
        effects, metric = self.effects[base].items(), self.compared.metric
        return {k: "diverged" if x.unpaired else word(x, MARGINS[metric(k)]) for k, x in effects}

    def mean(self, base: str = "N1") -> Effect:
        """Return the mean difference over the tasks, over the seeds that all of them have."""
        found = [dict(zip(x.seeds, x.values)) for x in self.effects[base].values()]
        seeds = sorted(set.intersection(*map(set, found)))
        return over_seeds([statistics.fmean(one[k] for one in found) for k in seeds])

    @property
    def model(self) -> str:
        """The name of the null model, with its tasks if some are left out."""
        name, blocks = self.compared.name, self.compared.blocks
        alone = f" on {', '.join(blocks)} alone" if blocks != experiments.load(name).blocks else ""
        return name.replace("null-", "null model ") + alone

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        words, found = self.words(), self.mean().interval(1)
        parts = [
            f"{phrase} {', '.join(block for block, one in words.items() if one == name)}"
            for name, phrase in PHRASES.items()
            if name in words.values()
        ]
        if not parts:
            parts = ["equivalent" if {*words.values()} == {"equivalent"} else "unresolved"]
        balances = [x.balance for x in self.profiles.values() if x.balance is not None]
        if balances:
            low, high = min(balances), max(balances)
            span = f"balance {low:.2g}" + f" to {high:.2g}" * (high - low > 0.01 * high)
            parts.append(span.replace("-", "−"))
        stem = self.loss.path.stem
        mean = "on average " * (len(words) > 1)
        return f"{stem}, {self.model}: {found} {mean}over {NULLS['N1']}, {'; '.join(parts)}."

    @property
    def shares(self) -> dict[str, tuple[float, float, float] | None]:
        """The gain of N1 over InfoNCE at t = 0.5, as a share of the loss's gain, by task."""
        gains, blocks = self.gains, self.compared.blocks
        return {block: share(gains["N1"][block], gains["loss"][block]) for block in blocks}

    @property
    def lines(self) -> list[str]:
        """What was found on each task, in words."""
        found = []
        for block in self.compared.blocks:
            for base, several in self.effects.items():
                found.append(
                    f"{block}, {OVER[base]}: {several[block].interval()}: {self.words(base)[block]}"
                )
            if (one := self.shares[block]) is None:
                found.append(f"{block}: no gain over InfoNCE at t = 0.5 to explain")
            else:
                middle, low, high = (f"{100 * x:.0f}".replace("-", "−") for x in one)
                interval = f"{middle} % [{low}, {high}]"
                found.append(f"{block}: a temperature has {interval} of its gain over t = 0.5")
        return found

    @property
    def latex(self) -> str:
        """A row of a table: name, then difference and interval on each task, and the mean."""
        effects = [*self.effects["N1"].values(), self.mean()]
        cells = [f"${x.difference:+.1f}$ $[{x.low:+.1f}, {x.high:+.1f}]$" for x in effects]
        return " & ".join([self.loss.path.stem.replace("_", r"\_"), *cells]) + r" \\"

    def record(self) -> dict[str, Any]:
        """Return all that was found, for JSON."""
        loss, compared = self.loss, self.compared

        def parts(effect: Effect) -> dict:
            names = ("difference", "low", "high", "p", "seeds", "values")
            return {name: getattr(effect, name) for name in names}

        return {
            "protocol": compared.name,
            "digest": compared.digest,
            "loss": loss.name,
            "code": loss.code,
            "configurations": loss.configurations,
            "environment": records.environment(torch.device("cpu")),
            "profiles": {k: str(x) for k, x in self.profiles.items()},
            "chosen": {
                block: {name: compared.arm(name, block) for name in compared.names(block)}
                for block in compared.blocks
            },
            "effects": {
                base: {k: parts(x) | {"verdict": self.words(base)[k]} for k, x in several.items()}
                for base, several in self.effects.items()
            },
            "new queries": {
                base: {k: parts(x) for k, x in several.items()}
                for base, several in self.by_query.items()
            },
            "share explained by a temperature": self.shares,
            "sentence": self.sentence,
        }

    def figure(self):
        """Draw the differences from N1 and N2 with their intervals, and the margins."""
        from matplotlib.figure import Figure

        blocks = [*self.compared.blocks]
        figure = Figure((6.4, 0.9 + 0.6 * len(blocks)), layout="constrained")
        ax = figure.subplots()
        for row, block in enumerate(blocks):
            margin = MARGINS[self.compared.metric(block)]
            ax.fill_betweenx([row - 0.4, row + 0.4], -margin, margin, color="#737373", alpha=0.2)
            for up, (base, look) in zip((-0.12, 0.12), {"N1": "o", "N2": "s"}.items()):
                effect = self.effects[base][block]
                label = f"over {NULLS[base]}" if row == 0 else None
                bar = effect.half(0.05 / effect.family)
                ax.errorbar(
                    effect.difference, row + up, xerr=bar, fmt=look, color="#737373", label=label
                )
        ax.axvline(0, color="#737373", lw=0.8)
        ax.set_yticks(range(len(blocks)), blocks)
        ax.invert_yaxis()
        ax.set(xlabel="difference in points; grey: the margin", title=self.loss.path.stem)
        figure.legend(loc="outside lower center", ncols=2, fontsize=9)
        return figure


def profiles(loss: Loss) -> dict[str, Profile]:
    """Return the profiles of the default on the batches recorded while encoders trained."""
    batches = {name: torch.from_numpy(z) for name, z in evidence.stages().items()}
    method = loss.method(loss.configurations[0])
    return {name: profile_loss(method.pairs, a, b) for name, (a, b) in batches.items()}


def null(
    file: Path,
    /,
    *,
    quick: bool = False,
    processes: PositiveInt = 2,
    data_root: Path | None = None,
    out: Path | None = None,
    tasks: tuple[str, ...] = (),
) -> None:
    """Test whether a loss beats a temperature that got as much tuning (null model 1).

    Parameters
    ----------
    file
        with loss(a, b, **options), where row i of b answers row i of a, and CONFIGURATIONS, a list
        of at most eight dictionaries of options, the first of which is the default; without
        CONFIGURATIONS the one configuration is loss(a, b)
    quick
        a rehearsal on two embedded data sets, offline; no verdict
    processes
        trainings at once, of one thread each
    data_root
        of the data sets (default: $HNLIB_DATA or the cache)
    out
        folder of the results and of the trainings (default: _build/null in the checkout,
        without one in the working directory)
    tasks
        some of static, random, films and digits, with --quick of generated and digits; a verdict
        needs all of them
    """
    from tqdm import tqdm

    torch.set_num_threads(1)  # so small matrices wait for one another on a busy machine
    loss, protocol = read(file), part(experiments.load(QUICK if quick else PROTOCOL), tasks)
    if loss.configurations == ({},):
        print(f"One configuration, loss(a, b): {file} names no options to try in CONFIGURATIONS.")
    out = out or records.default_folder().parent / "null"
    runs = out / "runs"  # the null's are of all losses
    compared, folder = nulls(protocol), out / loss.name
    everywhere = records.by_key(runs)
    compared = dataclasses.replace(compared, recorded=here(everywhere))
    own = dict(arms=arms(loss, protocol), chosen={}, seeds=protocol.seeds[: 1 if quick else None])
    choice = dataclasses.replace(protocol, recorded=everywhere, **own)
    load_data(protocol, data_root)
    print("Stage 0: the profile of the default.")
    stages = profiles(loss)
    for name, found in stages.items():
        print(f"{name:16}{found}")
    price, left, beside = costs(protocol), [*choice.missing()], [*compared.missing()]
    longest = [
        max(price(choice.run(name, 0, block)) for name in choice.names(block))
        for block in choice.blocks
    ]
    fresh = 2 * len(FRESH)  # of the choice and of the default, on each task
    most = sum(map(price, left + beside)) + fresh * sum(longest)
    print(
        f"Stage 1: {len(left)} trainings that choose, at most "
        f"{len(beside) + fresh * len(longest)} that compare; about "
        f"{math.ceil(most / 60 / processes)} min with {processes} at once on idle cores."
    )
    for block, lead in foreseen(protocol).items():
        print(f"On {block}, ten seeds find a lead of {lead:.1f} points four times in five.")
    form = "{desc}: {percentage:3.0f} % |{bar}| {elapsed} passed, about {remaining} left"
    with tqdm(total=most, desc=loss.path.stem, bar_format=form) as bar:
        # not past the total, by rounding: tqdm would warn
        how = (
            loss,
            runs,
            processes,
            lambda run: bar.update(min(price(run), bar.total - bar.n)),
            data_root,
        )
        try:
            choice = work(choice, *how)
            best = {
                block: {
                    "loss": chosen(loss, choice, block),
                    "default": chosen(loss, choice, block, "0 *"),
                }
                for block in choice.blocks
            }
            known = dict(arms=best, recorded=here(choice.recorded))
            compared = dataclasses.replace(compared, **known)
            bar.total = bar.n + sum(map(price, compared.missing()))  # the default may be the choice
            compared = work(compared, *how)
        except KeyboardInterrupt:
            bar.write("The same command resumes from here.")
            raise
    pairs = {name: ("loss", name) for name in NULLS}
    effects = {
        base: compared.effects({"": pair})
        for base, pair in {**pairs, "default": ("default", "N1")}.items()
    }
    by_query = {k: compared.effects({"": x}, target="new images") for k, x in pairs.items()}
    gains = {name: compared.effects({"": (name, "untuned")}) for name in ("loss", "N1")}
    outcome = Outcome(loss, compared, stages, effects, by_query, gains)
    print(*outcome.lines, sep="\n")
    write_atomically(folder / "record.json", canonical(outcome.record(), indent=1).encode())
    write_atomically(folder / "row.tex", (outcome.latex + "\n").encode())
    outcome.figure().savefig(folder / "differences.svg")
    rehearsal = "A rehearsal: a verdict needs all tasks at both lengths." if quick or tasks else ""
    print(outcome.sentence, *filter(None, [rehearsal]), folder, sep="\n")


def here(recorded: dict[str, list[dict]]) -> dict[str, list[dict]]:
    """Return the records of this processor, by key: only runs of one processor are compared."""
    processor = comparisons.processor(records.environment(torch.device("cpu"))["hardware"])
    made = {key: experiments.by_processor(several) for key, several in recorded.items()}
    return {key: [one[processor]] for key, one in made.items() if processor in one}


def part(protocol: experiments.Experiment, tasks: tuple[str, ...]) -> experiments.Experiment:
    """Return a protocol with some of its tasks (default: all); ValueError if one is unknown."""
    if unknown := sorted({*tasks} - {*protocol.blocks}):
        known = ", ".join(protocol.blocks)
        raise ValueError(f"tasks must be among {known}, got {unknown[0]}")
    blocks = {
        name: fields
        for name, fields in protocol.blocks.items()
        if name in (tasks or protocol.blocks)
    }
    return dataclasses.replace(protocol, blocks=blocks)


def load_data(protocol: experiments.Experiment, data_root: Path | None) -> None:
    """Load the data of a protocol; a ValueError names the command that downloads missing data."""
    for block, fields in protocol.blocks.items():
        kind, name = fields.get("kind", protocol.fields["kind"]), fields["dataset"]
        try:
            import_module(f"{kinds.KINDS[kind]}.data").load(name, data_root)
        except (ValueError, OSError) as error:
            raise ValueError(f"{block} needs {name}; see hnlib data {name} ({error})") from error
