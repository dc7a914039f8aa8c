"""The null model, version 3: a new loss against the best temperature.

The best configuration of the loss at its best rate is compared with the best temperature of a whole
grid, N1, at its best rate, both chosen on other seeds and other queries than those that judge. On
each task every setting trains with the seeds that choose (experiment `null-3`);
the best of each side train again with seeds drawn from the digest of the loss; and
`selection.cross_fit` compares the best, the choice included.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from operator import or_
from pathlib import Path

import numpy as np
import torch
from cyclopts.types import ExistingFile, PositiveInt

from hnlib import experiments
from hnlib._files import named, write_atomically
from hnlib.experiments import comparisons, evidence, plans, runner, selection
from hnlib.experiments.comparisons import Effect
from hnlib.experiments.null_files import Loss, method_of, read
from hnlib.experiments.words import interval
from hnlib.own.data import load
from hnlib.profile import profile_loss, source, summary
from hnlib.training import records, store
from hnlib.training.config import canonical
from hnlib.training.loop import Diverged

VERSION = "null model 3"
CONTROLS = dict.fromkeys(("identity", "one", "two", "four", "disguise"), "equivalent")
CONTROLS["labels"] = "beats"  # what each must be, compared with N1
FRESH = 48  # seeds that only decide, on a task of one's own
FINALISTS = 4  # settings of a side that train with them: few others are ever the best of a half
SPLITS = 50  # random halves of the queries
SHIFT = 1000  # from the seeds of N1 to those of the identity control
WORDS = {
    "beats": "the interval lies above the margin, and so does the lead on all queries",
    "leads": "better, but perhaps by less than the margin",
    "equivalent": "two one-sided tests find the difference within the margin",
    "unresolved": "the interval is too wide to tell, or the lead on all queries contradicts it",
    "trails": "worse, but perhaps by less than the margin",
    "loses": "the interval lies below the margin's negative",
}
KEPT = ("difference", "between", "df", "family", "holm")  # of an effect, in a record
Setting = dict  # fields of a run: method, options, lr


def protocol(quick: bool = False) -> experiments.Design:
    """Return the tasks, settings and seeds of the null model, or of its rehearsal."""
    return experiments.load("null-3", small=quick)


@dataclass
class Task:
    """A block of the protocol, and how its trainings are carried out."""

    design: experiments.Design
    name: str
    loss: Loss | None
    folder: Path
    engine: runner.Engine
    data_root: Path | None = None

    def __post_init__(self):
        fields = self.design.blocks[self.name]
        self.margin, self.fresh = fields["matters"], fields["fresh"]
        self.rates = [*dict.fromkeys(one["lr"] for one in self._family("N1"))]
        self.ours = (str(self.loss.path), self.loss.name) if self.loss else (None, "")
        self.sizes, self.diverged = set(), 0

    def settings(self, family: str) -> list[Setting]:
        """Return the settings of a family's configurations, at all rates."""
        arms = self._family(family)
        seen = [one["options"] for one in arms]
        firsts = [one for i, one in enumerate(arms) if one["options"] not in seen[:i]]
        return self.at_all_rates(firsts)

    def at_all_rates(self, several: Iterable[Setting]) -> list[Setting]:
        """Return settings at all rates of the task."""
        return [one | {"lr": lr} for one in several for lr in self.rates]

    def train(self, jobs: list[tuple[Setting, int]]) -> list[np.ndarray | None]:
        """Return the scores by query of settings and seeds, None where a training diverged."""
        runs = [self.design.run(one, seed, self.name) for one, seed in jobs]
        keys = [records.key(run.configuration) for run in runs]
        # the tracked records have none of a task of your own, and need not be there for it
        is_own = self.design.fields["kind"] == "own"
        places = [self.folder] if is_own else [records.tracked(), self.folder]
        indices = [records.index_of(one) for one in places]
        found = functools.reduce(or_, (one.find(keys) for one in indices))

        missing = {key: run for key, run in zip(keys, runs) if key not in found}
        hardware = records.environment()["hardware"]
        costs = plans.costs(missing.values(), hardware, indices)
        minutes = sum(one.seconds or 0 for one in costs) / 60 / (self.engine.workers or 1)
        about = f", about {minutes:.0f} min" if minutes >= 1 else ""
        print(f"{self.name}: {len(missing)} of {len(keys)} trainings to do{about}", flush=True)

        def finished(run, outcome) -> None:
            found[records.key(run.configuration)] = [outcome]

        runner.train(
            missing.values(),
            device="cpu",
            engine=self.engine,
            data_root=self.data_root,
            record_to=self.folder,
            method=functools.partial(method_of, *self.ours),
            finished=finished,
            leave_out=(Diverged,),
        )
        scores = _scores([found[key][0] for key in keys], self.design.metric(self.name))
        self.sizes |= {len(one) for one in scores if one is not None}
        if len(self.sizes) > 1:
            raise ValueError(
                f"every training on {self.name} must have as many scores, got {sorted(self.sizes)}"
            )
        return scores

    def _family(self, name: str) -> list[Setting]:
        arms = self.design.arms[self.name]
        return [arms[one] for one in self.design.matching(f"{name} *", self.name)]


def with_task(design: experiments.Design, file: Path) -> experiments.Design:
    """Return the protocol with your own task in place of its own, at each of that task's rates."""
    name = named(file)
    own, lent = load(name, file.parent), design.arms[next(iter(design.blocks))]
    arms = {f"{arm} lr{lr}": one | {"lr": lr} for arm, one in lent.items() for lr in own["RATES"]}
    block = {"experiment": name, "dataset": name, "primary": "score"}
    block |= {"matters": float(own["MARGIN"]), "fresh": FRESH}
    new = {"fields": {"kind": "own"}, "blocks": {name: block}, "arms": {name: arms}}
    return replace(design, **new, changed={})


def _scores(outcomes: list, metric: str) -> list[np.ndarray | None]:
    """Return the scores of all held-out examples of each run, None of one that diverged."""
    whole = iter(store.complete(one for one in outcomes if isinstance(one, dict)))
    return [_scores_of(next(whole), metric) if isinstance(x, dict) else None for x in outcomes]


def _scores_of(record: dict, metric: str) -> np.ndarray | None:
    if record["metrics"][metric] is None:
        return None
    counts = {"test_images": record.get("test_images") or 0}
    counts["validation"] = record["configuration"].get("validation") or 0
    rows = {"correct": [record["correct"]]} | {name: [count] for name, count in counts.items()}
    parts = [comparisons.by_example(rows, name) for name in (metric, f"{metric}_validation")]
    return np.hstack([1.0 * part[0] for part in parts if part is not None])


def trial(
    task: Task, sides: dict[str, list[Setting]], fresh: list[int], shift: dict[str, int]
) -> tuple[dict[str, np.ndarray], dict[str, list[Setting]]]:
    """Train what chooses and what decides; return scores and settings by side, the best first.

    The scores [settings, seeds, queries] are NaN where a setting that is not among the best has no
    fresh seed, and 0 where a training diverged. `shift` is added to the seeds of a side.
    """
    choosing = task.design.seeds
    first = _train(task, sides, choosing, shift)
    orders = {name: (-one.mean((1, 2))).argsort(kind="stable") for name, one in first.items()}
    sides = {name: [sides[name][k] for k in order] for name, order in orders.items()}
    best = {name: settings[:FINALISTS] for name, settings in sides.items()}
    second, found = _train(task, best, fresh, shift), {}
    for name, one in first.items():
        more = np.full((len(one), len(fresh), one.shape[2]), np.nan)
        more[:FINALISTS] = second[name]
        found[name] = np.hstack([one[orders[name]], more])
    return found, sides


def _train(task: Task, sides: dict[str, list[Setting]], seeds, shift: dict[str, int]) -> dict:
    """Return the scores [settings, seeds, queries] by side."""
    jobs = [
        (setting, seed + shift.get(name, 0))
        for name, settings in sides.items()
        for setting in settings
        for seed in seeds
    ]
    found = task.train(jobs)
    task.diverged += sum(one is None for one in found)
    size = next((len(one) for one in found if one is not None), 1)
    rows = np.stack([np.zeros(size) if one is None else one for one in found])
    ends = np.cumsum([len(settings) for settings in sides.values()])[:-1]
    return dict(zip(sides, np.split(rows.reshape(-1, len(seeds), size), ends)))


def compare(scores: dict[str, np.ndarray], family: int, choosers: int) -> Effect:
    """Return the difference of "ours" from N1, corrected for a number of tasks.

    The first `choosers` seeds choose, the others are fresh.
    """
    effect = selection.cross_fit(scores["ours"], scores["N1"], SPLITS, choosers=choosers)
    return replace(effect, family=family, holm=min(1.0, family * effect.p))


def judge(effect: Effect, margin: float, lead: float) -> str:
    """Return the verdict of an effect that the lead on all queries, in points, does not contradict.

    The halves are of the same queries. Where unlike settings tie over all of them, what is better
    on one half is worse on the other, so the side that chooses among more settings is judged too
    low.
    """
    word = comparisons.verdict(effect, margin)
    if word == "beats" and lead <= margin:
        word = "leads"
    agrees = {"leads": lead > 0, "equivalent": abs(lead) <= margin}
    agrees |= dict.fromkeys(("trails", "loses"), lead < 0)
    return word if agrees.get(word, True) else "unresolved"


def lead(task: dict) -> float:
    """Return the lead of our best over N1's, in points on all queries, with the fresh seeds."""
    ours, base = (np.mean(task["fresh"][side][0]) for side in ("ours", "N1"))
    return float(ours - base)


def points(scores: np.ndarray) -> list[list[float]]:
    """Return the mean scores of settings and seeds, in points."""
    return (100 * scores.mean(2)).round(3).tolist()


def effects(task: dict) -> dict[str, Effect]:
    """Return the differences over the null models from a task's entry of a record."""
    kept = {base: {name: one[name] for name in KEPT} for base, one in task["effects"].items()}
    return {base: Effect(target="these queries", **one) for base, one in kept.items()}


def fresh_seeds(name: str, count: int) -> list[int]:
    """Return seeds that nobody can choose: they follow from a name, which holds a digest."""
    first = 10_000 + int(hashlib.sha256(name.encode()).hexdigest()[:7], 16)
    return [*range(first, first + count)]


def profiled(loss: Loss, options: dict) -> str:
    """Return what the profile of a configuration says, or why there is none."""
    batches = (torch.from_numpy(z) for z in evidence.stages().values())
    try:
        return summary([profile_loss(loss.method(options).pairs, *both) for both in batches])
    except Exception as error:  # whatever a loss raises there, it is compared
        return f"no profile: {error}"


def _sharpness(task: dict) -> str:
    """Return the sharpness of the best temperature and of the loss, as it was profiled."""
    (best, *_), of_loss = task["chosen"]["N1"], task["profile"].partition(":")[0]
    parts = [f"the temperature's γ = {1 / best['options']['temperature']:.3g}"]
    if of_loss.startswith("γ"):
        parts.append(f"the loss's {of_loss}")
    # records before this was noticed have no such field; none of them chose an edge
    parts += [f"the best {name} is at the edge of its grid" for name in task.get("edge", ())]
    if near := task.get("coarse"):
        listed = " or ".join(f"{t:g}" for t in near)
        parts.append(
            f"the grid is coarse at its best temperature: a neighbour ({listed}) is worse by more "
            "than the margin, so a temperature between may be better"
        )
    return ", ".join(parts)


def _edge(tried: list[Setting]) -> list[str]:
    """Return which of temperature and rate is, in the first setting, the least or greatest tried.

    A value beyond that edge may be better, so a plain temperature could beat such an N1.
    """
    values = {"temperature": [one["options"]["temperature"] for one in tried]}
    values["rate"] = [one["lr"] for one in tried]
    return [name for name, every in values.items() if every[0] in (min(every), max(every))]


def _coarse(tried: list[Setting], scores: np.ndarray, margin: float) -> list[float]:
    """Return the neighbours of the best temperature if one is worse by more than the margin.

    Then a plain temperature between two of the grid could beat such an N1. Where steps are even and
    the landscape is concave, a peak between two is above the best by less than the larger drop. The
    scores of the settings, the best first, are shares.
    """
    best: dict[float, float] = {}
    for one, score in zip(tried, scores):
        best.setdefault(one["options"]["temperature"], score)  # at its best rate
    first, grid = next(iter(best)), sorted(best)
    k = grid.index(first)
    near = [*grid[max(k - 1, 0) : k], *grid[k + 1 : k + 2]]
    return near if any(best[first] - best[t] > margin / 100 for t in near) else []


@dataclass
class Outcome:
    """What a trial found; `tasks` are entries of its record by task, with effects and margin."""

    name: str
    version: str
    tasks: dict[str, dict]
    attempts: int = 1

    def rows(self):
        """Yield task, null model ("N1"), effect, and verdict."""
        for task, one in self.tasks.items():
            for base, effect in one["effects"].items():
                yield task, base, effect, judge(effect, one["margin"], lead(one))

    @property
    def lines(self) -> list[str]:
        """The sentence, what its words mean, and the margins."""
        used = {verdict for *_, verdict in self.rows()}
        margins = ", ".join(f"{one['margin']:g} on {task}" for task, one in self.tasks.items())
        meanings = [f"({name}: {means})" for name, means in WORDS.items() if name in used]
        return [self.sentence, *meanings, f"Margins in points: {margins}."]

    @property
    def sentence(self) -> str:
        """The result in one sentence, with each task, both sharpnesses and the profile."""
        parts = [
            f"{task} {interval(effect)} over the best temperature, {verdict} "
            f"({_sharpness(self.tasks[task])})"
            for task, _, effect, verdict in self.rows()
        ]
        profiles = dict.fromkeys(one["profile"] for one in self.tasks.values() if one["profile"])
        attempt = f"{self.version}, attempt {self.attempts}"
        return f"{self.name}, {attempt}: {'; '.join([*parts, *profiles])}."

    @property
    def latex(self) -> str:
        """The head and the row of a table."""
        cells = {"loss": self.name}
        gammas = [one["profile"].partition(":")[0] for one in self.tasks.values()]
        said = dict.fromkeys(x[4:] if x[:1] == "γ" else "--" for x in gammas)
        cells[r"$\gamma$"] = ", ".join(said)
        for task, base, x, verdict in self.rows():
            numbers = f"${x.difference:+.1f}$ $[{x.low:+.1f}, {x.high:+.1f}]$ {verdict}"
            cells[f"{task} minus {base}"] = numbers
        lines = (" & ".join(line).replace("_", r"\_") for line in (cells, cells.values()))
        return "".join(line + r" \\" + "\n" for line in lines)

    def record(self) -> dict:
        """Return all that was found, for JSON."""
        tasks = {task: one | {"effects": {}} for task, one in self.tasks.items()}
        for task, base, x, verdict in self.rows():
            numbers = {name: getattr(x, name) for name in (*KEPT, "low", "high")}
            tasks[task]["effects"][base] = numbers | {"verdict": verdict}
        heads = {"name": self.name, "protocol": self.version, "sentence": self.sentence}
        return heads | {"tasks": tasks, "environment": records.environment(torch.device("cpu"))}


def null(
    target: str,
    /,
    *,
    quick: bool = False,
    processes: PositiveInt = 2,
    data_root: Path | None = None,
    out: Path | None = None,
    tasks: tuple[str, ...] = (),
    task: ExistingFile | None = None,
) -> None:
    """Test whether the best of a loss beats the best temperature (null model 3).

    Parameters
    ----------
    target
        file with loss(a, b, **options), where row i of b answers row i of a, and CONFIGURATIONS, a
        list of at most eight dictionaries of options; or a control (identity, one, two, four,
        disguise, labels)
    quick
        a rehearsal of minutes on embedded data; no verdict
    processes
        trainings at once, of one thread each (default: 2)
    data_root
        of the data sets (default: $HNLIB_DATA or the cache)
    out
        folder of the results and of the trainings (default: _build/null in the checkout,
        without one in the working directory)
    tasks
        some of banking (Banking77) and digits (default: all)
    task
        file of a task of your own in their place: train(loss, options, lr, steps, seed) returns the
        scores of the test queries, from 0 to 1; RATES, STEPS and MARGIN (points) are its own
    """
    torch.set_num_threads(1)  # small matrices wait for one another on a busy machine
    experiment, control = protocol(quick), CONTROLS.get(target)
    if control is None and not target.endswith(".py"):
        raise ValueError(f"give FILE.py or one of {', '.join(CONTROLS)}, got {target}")
    if task and target == "labels":
        raise ValueError("a task of your own has no labels; the control needs banking or digits")
    if task and task.suffix != ".py":
        raise ValueError(f"the file of a task must end in .py, got {task}")
    if task:
        experiment, data_root = with_task(experiment, task), task.parent
    if unknown := sorted({*tasks} - {*experiment.blocks}):
        raise ValueError(f"tasks must be among {', '.join(experiment.blocks)}, got {unknown[0]}")
    loss = None if control else read(target)
    name = loss.name if loss else f"{target}-{experiment.digest[:8]}"
    stem = name.rpartition("-")[0]
    out = out or records.default_folder().parent / "null"
    folder = out / (f"{name}-on-{named(task)}" if task else name)
    for place in (folder, out / "runs"):
        place.mkdir(parents=True, exist_ok=True)
    digest = "-[0-9a-f]{8}"  # an edited task, such as its margin, is another attempt, too
    tried = re.escape(stem) + digest + (f"-on-{re.escape(task.stem)}{digest}" if task else "")
    attempts = sorted(path.name for path in out.iterdir() if re.fullmatch(tried, path.name))
    print(f"{folder.name}, attempt {len(attempts)}; records go to {out}", flush=True)
    version, found = f"{VERSION}{' quick' * quick}", {}
    _refuse_another(folder / "record.json", version, tasks or experiment.blocks)
    engine = runner.Engine(engine="processes", workers=processes)
    for place in tasks or experiment.blocks:
        one = Task(experiment, place, loss, out / "runs", engine, data_root)
        sides, shift = _sides(one, target)
        count = sum(map(len, sides.values()))
        print(f"{one.name}: {count} settings, {len(experiment.seeds)} seeds choose", flush=True)
        # the controls share N1's fresh trainings
        fresh = fresh_seeds(experiment.name if control else name, 2 if quick else one.fresh)
        try:
            scores, chosen = trial(one, sides, fresh, shift)
        except (ValueError, OSError):
            raise
        except Exception as error:  # of a loss or a task that is not ours
            raise ValueError(f"{target}: {type(error).__name__}: {error}") from error
        first = scores["N1"][:, : len(experiment.seeds)].mean((1, 2))
        found[one.name] = {
            "effects": {"N1": compare(scores, len(experiment.blocks), len(experiment.seeds))},
            "margin": one.margin,
            "diverged": one.diverged,
            "chosen": {side: settings[:FINALISTS] for side, settings in chosen.items()},
            "edge": [] if quick else _edge(chosen["N1"]),
            "coarse": [] if quick else _coarse(chosen["N1"], first, one.margin),
            "seeds": fresh,
            "fresh": {side: points(x[:FINALISTS, -len(fresh) :]) for side, x in scores.items()},
            "profile": profiled(loss, chosen["ours"][0]["options"]) if loss else "",
        }
        if one.diverged:
            print(f"{one.name}: {one.diverged} trainings diverged and score 0")
    outcome = Outcome(stem, version, found, len(attempts))
    own = {"attempts": attempts} | (
        {"code": source(loss.path), "configurations": loss.configurations} if loss else {}
    )
    record = canonical(outcome.record() | own, indent=1).encode()
    write_atomically(folder / "record.json", record)
    write_atomically(folder / "row.tex", outcome.latex.encode())
    print(*outcome.lines, folder, sep="\n")
    if quick or tasks:
        print("A rehearsal: a verdict needs all tasks and seeds.")
    if control:
        print(f"This control must come out: {control}.")


def _sides(task: Task, target: str) -> tuple[dict[str, list[Setting]], dict[str, int]]:
    """Return ours, a loss or a control, and N1, which always has its whole grid; and shifts."""
    base = task.settings("N1")
    if task.loss:
        method, several = task.loss.name, task.loss.configurations
        ours = task.at_all_rates({"method": method, "options": options} for options in several)
        return {"ours": ours, "N1": base}, {}
    if target == "identity":
        return {"ours": base, "N1": base}, {"ours": SHIFT}
    return {"ours": task.settings(target), "N1": base}, {}


def _refuse_another(path: Path, version: str, tasks: Iterable[str]) -> None:
    """Raise ValueError if a record is of another version, or of tasks that would be lost."""
    if path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        if before["protocol"] not in (version, f"{version} quick"):  # nor a verdict by a rehearsal
            raise ValueError(
                f"{path} is of {before['protocol']}, which is not compared; give another --out"
            )
        if lost := before.get("tasks", {}).keys() - {*tasks}:
            raise ValueError(
                f"{path} has {', '.join(sorted(lost))}, which would be lost; give another --out"
            )
