"""What repeats or confirms never has the runs of what it follows, at any parameters."""

import itertools
import re
import tomllib
from contextlib import suppress
from functools import cache

import numpy as np
import pytest
from scripts import ROOT

from builder import ledger_pages
from hnlib import experiments
from hnlib.experiments import arms as making
from hnlib.experiments import design as reading
from hnlib.notebooks import execute
from hnlib.training import kinds, records

PAGE = ROOT / "notebooks/experiments/hardness-or-temperature.md"
FOLLOWING = [name for name in experiments.names() if experiments.load(name).after]


def test_the_runs_counted_for_the_title_page_are_those_that_it_loads():
    (names,) = re.findall(r"^names = \((.*?)^\)", PAGE.read_text("utf-8"), re.M | re.S)
    assert re.findall(r'"([\w-]+)"', names) == ledger_pages.TITLE_PAGE


def data(design):
    """The data sets of a design."""
    changed = {key: new for key, (_, new) in design.changed.items()}
    return {(design.fields | x | changed).get("dataset") for x in design.blocks.values()}


@pytest.mark.parametrize("draw", range(60))
def test_what_follows_shares_no_run_at_random_parameters(draw):
    """A seed is in the key of a run: no common seed on the same data, no common run."""
    rng = np.random.default_rng(draw)
    name = str(rng.choice(FOLLOWING))
    given = {
        "seeds": [None, int(rng.integers(1, 15))][rng.integers(2)],
        "dataset": [None, "digits", "cifar10", "cifar100", "stl10"][rng.integers(5)],
        "small": bool(rng.integers(2)),
        "epochs": [None, 3][rng.integers(2)],
    }
    one = experiments.load(name, **given)
    for other in (experiments.load(x, **given) for x in one.after):
        if data(one) & data(other):
            assert not {*one.seeds} & {*other.seeds}, (name, other.name, given)
    if given["seeds"] and not given["small"]:
        assert len(one.seeds) == given["seeds"]


# --- what chooses or is followed, and what confirms or repeats, at random parameters

PAGES = [*tomllib.loads((ROOT / "book/beside.toml").read_text("utf-8"))]
DRAWS = dict.fromkeys(PAGES, 8) | {"no page": 2}


@cache
def following():
    """The experiments that follow another, or have arms that another chooses."""
    every = map(experiments.load, experiments.names())
    return {one.name for one in every if one.after or one.choosers()}


@cache
def page(name):
    """The parameters of a page, and the experiments that it loads which follow something."""
    if name == "no page":
        rest = following().difference(*(page(one)[1] for one in PAGES))
        return page("experiments/hardness-or-temperature")[0], sorted(rest)
    read = execute.read(ROOT / f"notebooks/{name}.md")
    code = "\n".join(cell.source for cell in read.cells if cell.cell_type == "code")
    return execute.parameters_of(read), sorted({*re.findall(r'"([\w-]+)"', code)} & following())


def parameters(rng, known, design):
    """Draw parameters that a page has, each in every second draw."""
    kind = kinds.run_class((design.fields | next(iter(design.blocks.values())))["kind"])
    over = making.varied([grid for x in (design, *design.choosers()) for grid in x.grids])
    key = str(rng.choice(sorted(over))) if over else ""
    first = int(rng.choice([0, *design.seeds, *(s for x in design.choosers() for s in x.seeds)]))
    drawn = {
        "seeds": [int(rng.integers(1, 15)), f"{first}-{first + 1}"][int(rng.integers(4)) == 0],
        "dataset": str(rng.choice(sorted(kind.datasets))),
        "small": True,
        "epochs": int(rng.integers(1, 60)),
        "batch_size": int(rng.integers(8, 64)),
        "lr": float(rng.choice([0.001, 0.03])),
        "grid": {key: over[key][: int(rng.integers(1, 3))]} if over else None,
    }
    return {k: v for k, v in drawn.items() if k in known and v is not None and rng.integers(2)}


def possible(design, name, block):
    """Yield the fields that an arm may have: of one that is chosen, those of all candidates."""
    if name in design.chosen:
        source = design.choosing(rule := design.chosen[name])
        for one in source.matching(rule["among"], block):
            yield from possible(source, one, block)
        return
    own = design.own(name, block)
    bases = possible(design, own["extends"], block) if "extends" in own else [{}]
    yield from (making.merged(base, own) for base in bases)


@cache
def keys(design):
    """The keys of all runs that a design may have, whatever other collections are searched then."""
    arms = [(block, name) for block in design.blocks for name in design.names(block)]
    every = [(x, fields) for x, name in arms for fields in possible(design, name, x)]
    runs = [design.run(fields, design.seeds[0], x).configuration for x, fields in every]
    return {
        records.key(one | {"seed": seed, "transfer": None}) for one in runs for seed in design.seeds
    }


def shared(name, given):
    """Return designs that an experiment at some parameters follows and whose runs it may have."""
    design = experiments.load(name, **given)
    others = [experiments.load(x, **given) for x in design.after] + design.choosers()
    return design, [other for other in others if keys(design) & keys(other)]


def drawn(name):
    """Yield experiments of a page at random parameters, and which of their runs are shared."""
    known, following = page(name)
    for draw, one in itertools.product(range(DRAWS[name]), following):
        rng = np.random.default_rng([draw, *one.encode()])
        given = parameters(rng, known, experiments.load(one)) if draw else {}
        with suppress(ValueError):  # such as a batch that is larger than a data set
            yield given, *shared(one, given)


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWS)
def test_what_follows_has_no_run_of_what_it_follows_at_random_parameters(name, monkeypatch):
    """Named seeds that are new to both are refused where they are trained."""
    monkeypatch.setattr("hnlib.experiments.runner.train", lambda runs, **how: 1 / 0)
    count = 0
    for given, one, others in drawn(name):
        count += 1
        for other in others:
            assert isinstance(given.get("seeds"), str) and other.name in one.after, given
            with pytest.raises(ValueError, match="would have its runs"):
                experiments.train_all([other, one], device="cpu")
        if isinstance(given.get("seeds"), int) and not given.get("small"):
            assert len(one.seeds) == given["seeds"]
    assert count >= DRAWS[name] // 2 * len(page(name)[1])


def test_runs_that_are_shared_are_seen(monkeypatch):
    """The near miss: without what keeps them apart."""
    chooser = experiments.load("search-tilts").choosers()[0]
    monkeypatch.setattr(reading, "_apart", lambda made, *_: made)
    monkeypatch.setattr(reading, "_changed", reading._changed.__wrapped__)  # kept by nobody
    for name, given in (("equal-gamma", {"seeds": 5}), ("search-tilts", {"seeds": chooser.seeds})):
        assert shared(name, given)[1], name
    assert not shared("search-tilts", {"seeds": "900-901"})[1]


# --- seeds


def test_every_experiment_that_follows_another_is_named_here():
    """By what their pages say of them; the published seeds are apart already."""
    follows = {name: experiments.load(name).after for name in FOLLOWING}
    assert follows == {
        "equal-gamma": ("map",),
        "hundred-edge": ("images-longer",),
        "images-longer-hundred": ("images-longer",),
        "made-up-again": ("made-up",),
        "resnet18-confirmed": ("resnet18", "resnet18-temperatures"),
        "resnet18-hundred-epochs": ("resnet18", "resnet18-temperatures", "resnet18-confirmed"),
        "resnet18-temperatures": ("resnet18",),
    }


def test_seeds_are_how_many_or_which():
    seeds = lambda name, **given: experiments.load(name, **given).seeds  # noqa: E731
    assert seeds("map", seeds=2) == (0, 1) and seeds("map", seeds="2") == (2,)
    assert seeds("equal-gamma", seeds=3) == (3, 4, 5) and seeds("map", seeds=3) == (0, 1, 2)
    assert seeds("equal-gamma", seeds=4) == (4, 5, 6, 7)  # the map has seed 3 then
    assert seeds("map", seeds=[4, 6]) == (4, 6)
    with pytest.raises(ValueError, match="equal-gamma repeats or confirms map, which has seed 2"):
        experiments.load("equal-gamma", seeds="2-4")
    for wrong in (0, -1, True):
        with pytest.raises(ValueError, match="seeds must be at least one"):
            experiments.load("map", seeds=wrong)


SMALL = [name for name in experiments.names() if experiments.load(name).small]


@pytest.mark.parametrize("draw", range(20))
def test_what_is_typed_wins_over_small_or_is_refused(draw):
    """Also where it is the published value, and over what fits the data set of `small`."""
    rng = np.random.default_rng(draw)
    name = str(rng.choice(SMALL))
    published = experiments.load(name)
    fields = published.fields | {"seeds": len(published.seeds)}
    of_arms = {key for arms in published.arms.values() for arm in arms.values() for key in arm}
    apart = of_arms | {key for block in published.blocks.values() for key in block}
    plain = [k for k, v in fields.items() if isinstance(v, int | float | str) and k not in apart]
    typed = {k: fields[k] for k in plain if rng.integers(2) and k not in ("kind", "experiment")}
    try:
        design = experiments.load(name, small=True, **typed)
    except ValueError as refused:
        assert any(x in str(refused) for x in ("1,437 training images", "1740 pairs", "699 pairs"))
        return
    assert len(design.seeds) == typed.pop("seeds", len(design.seeds))
    for *_, run in design.runs():
        assert {key: getattr(run, key) for key in typed} == typed


def test_the_published_number_of_seeds_is_the_published_experiment():
    assert experiments.load("map", seeds=3) is experiments.load("map")


def test_a_part_of_the_published_seeds_is_the_published_experiment():
    """Its name is in the records; a seed more, or another field, makes it another."""
    part = experiments.recorded("resnet18-confirmed", seeds="7-8")
    run = part.run("released", 7)
    assert part.design.is_part and run.experiment == "resnet18-confirmed"
    whole = experiments.recorded("resnet18-confirmed")
    assert records.name(run.configuration) == whole.run("released", 7).name
    for more in (dict(seeds="7-12"), dict(seeds="7-8", epochs=2)):
        other = experiments.load("resnet18-confirmed", **more)
        assert not other.is_part
        assert experiments.found(other).run("released", 7).experiment.endswith("-changed")
    assert experiments.load("map", blocks=["CIFAR-100"]).is_part


def test_experiments_of_a_page_that_would_share_runs_are_refused(monkeypatch):
    """Named seeds that are new to both; a number is moved past."""
    monkeypatch.setattr("hnlib.experiments.runner.train", lambda runs, **how: 1 / 0)
    few = dict(dataset="digits", arms=["t0.5 b4*"], epochs=1)
    both = [experiments.load(name, seeds="100-101", **few) for name in ("map", "equal-gamma")]
    fields = [experiments.found(one).planned().keys() for one in both]
    assert fields[0] & fields[1]
    with pytest.raises(ValueError, match="equal-gamma repeats or confirms map and would have its"):
        experiments.train_all(both, device="cpu")
