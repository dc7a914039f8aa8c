"""Arms at other parameters: names say what runs are, and nothing becomes another thing."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from hnlib import experiments
from hnlib.experiments import arms as making
from hnlib.training import records

TEXT = """
question = "Which?"
primary = "ndcg"
beside = ["recall100"]
seeds = "3-5"
[fields]
kind = "retrieval"
dataset = "generated"
[blocks]
small = { dimension = 16 }
large = { dimension = 32, lr = 0.02 }
[templates]
held = { method = "hcl", options = { tau_plus = 0.0 } }
[arms]
"plain t0.3" = { method = "simclr", options = { temperature = 0.3 } }
longer = { extends = "t0.1", epochs = 9 }
longest = { extends = "longer", max_steps = 99 }
other = { method = "dcl", options = { temperature = 0.1 } }
[[grids]]
name = "t{temperature}"
method = "simclr"
over = { temperature = [0.1, 0.2] }
[[grids]]
name = "t{temperature} b{beta:g}"
extends = "held"
over = { temperature = [0.1, 0.2], beta = [1.0, 4.0] }
[[grids]]
name = "t{temperature} b0"
method = "simclr"
blocks = ["large"]
over = { temperature = [0.1] }
[[grids]]
name = "unsaid"
method = "simclr"
over = { temperature = [0.7] }
[chosen]
temperature = { among = "t0.[12]", by = "ndcg_validation" }
tilt = { among = "t* b[1-8]", by = "ndcg_validation" }
edge = { among = "t0.1 b*", by = "ndcg_validation" }
[small]
arms = ["t0.1 b4", "tilt"]
"""
EXPERIMENTS = Path(__file__).resolve().parents[1] / "book/results/experiments"
BESIDE = ["map", "equal-gamma", "images-longer", "search", "search-rates"]
BESIDE += ["recipes", "recipes-tried"]
GRIDDED = [name for name in experiments.names() if making.varied(experiments.load(name).grids)]


@pytest.fixture
def load(new_checkout):
    """Load an experiment of four grids at any parameters; some of the book are beside it."""
    texts = {name: (EXPERIMENTS / f"{name}.toml").read_text() for name in BESIDE} | {"which": TEXT}
    new_checkout({f"book/results/experiments/{name}.toml": text for name, text in texts.items()})
    return lambda **given: experiments.load("which", **given)


def value(design, name, key, block):
    """A field or an option of an arm's run."""
    run = design.run(design.fixed(name, block), design.seeds[0], block).resolved()
    return run.options[key] if key in run.options else getattr(run, key)


def key(design, name, block):
    """What identifies the first run of an arm."""
    return records.key(design.run(design.fixed(name, block), design.seeds[0], block).configuration)


def drawn(rng, values):
    """Random values like these: some of them, and some that are near."""
    some = [one for one in values if rng.integers(2)]
    near = [round(one * 1.5 + 0.03, 4) for one in values[:1] if isinstance(one, float)]
    return [*some, *(one for one in near if one not in some)] or values[:1]


@pytest.mark.parametrize("draw", range(40))
def test_a_run_is_what_the_name_of_its_arm_says_at_random_grids(draw):
    """Each name is a template with values, and these are the run's. What no grid makes stays.

    A published point is the published run, so its record is found again.
    """
    rng = np.random.default_rng(draw)
    published = experiments.load(str(rng.choice(GRIDDED)))
    varied = making.varied(published.grids)
    keys = [
        one for one in varied if one not in ("extends", "method", "loudness") and rng.integers(3)
    ]
    grid = {one: drawn(rng, varied[one]) for one in keys or [*varied][-1:]}
    design = experiments.load(published.name, grid=grid)
    for block, before in published.arms.items():
        of_grids = {}
        for one in published.grids:
            if block not in one.get("blocks", published.blocks):
                continue
            over = one["over"] | {k: v for k, v in grid.items() if k in making.named(one)}
            for values in itertools.product(*over.values()):
                point = dict(zip(over, values))
                if "{gamma" in one["name"]:
                    gamma = point["beta"] / point["temperature"] + 1 / point["temperature"]
                    of_grids.setdefault(one["name"].format(**point, gamma=gamma), point)
                else:
                    of_grids.setdefault(one["name"].format(**point), point)
        old = {name for one in published.grids for name, _ in making.points((), **one)}
        assert {*design.arms[block]} == {*of_grids} | ({*before} - old)
        for name in design.arms[block]:
            if name in before:
                assert key(design, name, block) == key(published, name, block)
            if name in of_grids and name not in before:
                said = {k: v for k, v in of_grids[name].items() if k != "extends"}
                assert said == {k: value(design, name, k, block) for k in said}, name


def test_a_point_that_two_grids_name_alike_is_that_of_the_first(load):
    """A tilt of 0 is the temperature. A name that says less than its values is refused."""
    design = load(grid={"beta": [0, 4], "temperature": [0.1]})
    assert design.names("large")[4:] == [
        *("t0.1", "t0.1 b0", "t0.1 b4", "unsaid", "temperature", "tilt", "edge")
    ]
    assert value(design, "t0.1 b0", "beta", "small") == 0.0
    assert value(design, "unsaid", "temperature", "small") == 0.7  # its name does not say it
    tilts = experiments.load("map", grid={"beta": [0, 3], "temperature": [0.07]})
    assert tilts.fixed("t0.07 b0", "CIFAR-10")["method"] == "simclr"
    with pytest.raises(ValueError, match=r"two points of the name 't0.1 b1.23457'; give fewer"):
        load(grid={"beta": [1.2345671, 1.2345672], "temperature": [0.1]})


def test_one_of_several_grids_may_have_the_values_already():
    """Those of the first grid of the search are those of the others, too, if you say so."""
    (first, *others) = [x["over"]["lr"] for x in experiments.load("search-rates").grids]
    assert any(one != first for one in others)
    names = experiments.load("search-rates", grid={"lr": first}).names("random")
    found = {float(name.partition(" lr")[2]) for name in names}
    assert found == {*first}


def test_choices_are_made_among_the_new_points_of_what_they_were_made_among(load):
    """Of all points of a grid if all were there before; else by the pattern alone."""
    design = load(grid={"temperature": [0.1, 1, 3.5], "beta": [16, 1]})
    found = {name: design.like(rule["among"], "small") for name, rule in design.chosen.items()}
    assert found == {
        "temperature": ["t0.1", "t1.0", "t3.5"],
        "tilt": [f"t{t} b{b}" for t in ("0.1", "1.0", "3.5") for b in (16, 1)],
        "edge": ["t0.1 b16", "t0.1 b1"],
    }
    with pytest.raises(ValueError, match=r"'edge' of which.toml is chosen among 't0.1 b\*'"):
        load(grid={"temperature": [0.5]})
    small = load(small=True, grid={"temperature": [0.5]})  # it is in the place of "t0.1 b4"
    assert small.names("small") == ["t0.5 b1", "t0.5 b4", "tilt"]
    assert load(arms=["t0.1 b4"], grid={"beta": [4]}).names("small") == ["t0.1 b4"]


def test_what_an_arm_extends_may_leave(load):
    published, without = load(), load(grid={"temperature": [0.2]}, arms=["long*", "t0.2"])
    assert without.names("small") == ["longer", "longest", "t0.2"]
    for name in without.names("small"):
        assert key(without, name, "small") == key(published, name, "small")
    alone = load(arms=["longest"])
    assert key(alone, "longest", "small") == key(published, "longest", "small")


def test_a_field_or_an_option_that_grids_vary_names_their_points_anew(load):
    design = load(options={"temperature": 0.4}, arms=["t*", "longer"])
    points = [f"t0.4{rest}" for rest in ("", " b1", " b4")]
    assert design.names("small") == ["longer", *points, "temperature", "tilt"]
    assert value(design, "t0.4 b4", "temperature", "small") == 0.4
    assert value(design, "t0.4 b4", "tau_plus", "small") == 0.0  # its own stays
    assert value(design, "longer", "temperature", "small") == 0.4
    tuned = experiments.load("search-rates", lr=0.02)
    names = tuned.names("random")
    assert names and all(name.endswith(" lr0.02") for name in names)
    assert {value(tuned, name, "lr", "random") for name in names} == {0.02}
    with pytest.raises(ValueError, match=r"lr is given twice, as 0.02 and in grid; give one"):
        experiments.load("search-rates", lr=0.02, grid={"lr": [0.1]})


def test_options_reach_the_arms_that_have_them(load):
    design = load(options={"tau_plus": 0.2})
    assert value(design, "t0.1 b4", "tau_plus", "small") == 0.2
    for name in ("t0.1", "other"):
        assert key(design, name, "small") == key(load(), name, "small")


def test_two_arms_never_become_one_run_and_no_name_becomes_false(load):
    with pytest.raises(
        ValueError, match=r"'hcl' and 'hcl, twice as long' of recipes.toml would be"
    ):
        experiments.load("recipes", epochs=3)
    assert experiments.load("recipes", epochs=3, arms=["hcl"]).names() == ["hcl"]
    with pytest.raises(
        ValueError, match=r"temperature = 0.4 .* name of 'plain t0.3' in which.toml"
    ):
        load(options={"temperature": 0.4})
    assert load(options={"temperature": 0.3}, arms=["pl*"]).names("small") == ["plain t0.3"]
    with pytest.raises(ValueError, match=r"lr = 0.005 would make the name of '.*lr 0.001' in"):
        experiments.load("recipes-tried", lr=0.005)


@pytest.mark.parametrize("draw", range(20))
def test_a_name_is_false_if_it_says_the_number_that_was(draw):
    rng = np.random.default_rng(draw)
    before, after, beside = rng.choice([0.05, 0.1, 0.25, 1.0, 4.0, 16.0], 3, replace=False).tolist()
    for words in (f"t{before} b{beside}", f"{before:g}", f"a {beside}, b = {before:g}"):
        assert making.false_name(words, before, after)
        assert not making.false_name(words, before, before)
        assert not making.false_name(words, 7.5, after)  # which it does not say
    assert not making.false_name(f"t{before} b{after}", before, after)  # it says this one, too
    assert making.false_name("t1/29", 1 / 29, 0.1) and not making.false_name("t1/29", 29.5, 0.1)
    assert not making.false_name("held", before, after)
    assert not making.false_name("b1", True, False)


def test_arms_of_your_own_stand_in_all_blocks_beside_the_others(load):
    mine = {"mine": {"method": "hcl", "options": {"beta": 2.0}}, "far": {"extends": "longer"}}
    design = load(add=mine, arms=["t0.1"], lr=0.01)
    assert design.names("small") == design.names("large") == ["t0.1", "far", "mine"]
    run = design.run(design.fixed("mine", "large"), 3, "large")
    assert (run.method, run.lr, run.dimension) == ("hcl", 0.01, 32)
    assert value(design, "far", "epochs", "small") == 9
    cold = load(add={"t0.19": {"method": "simclr", "options": {"temperature": 0.19}}})
    assert cold.like("t0.*", "small")[-1] != "t0.19"  # choices are made among the arms of the file
    assert cold.matching(["t0.19", "t0.2"], "small") == ["t0.19", "t0.2"]
    assert not design.is_part and run.experiment == "which-changed"
    for wrong, words in {
        "mine": "add must be like ",
        ("t0.1", "dcl"): "add has 't0.1', which is an arm already; give it another name",
        ("tilt", "dcl"): "add has 'tilt', which is an arm already",
        ("mine", "dlc"): "method 'dlc' is unknown",
    }.items():
        name, method = (wrong, "") if isinstance(wrong, str) else wrong
        with pytest.raises(ValueError, match=words):
            load(add={name: {"method": method}} if method else wrong)
    with pytest.raises(
        ValueError, match="arm 'mine' has no field 'metod'; the nearest is 'method'"
    ):
        load(add={"mine": {"metod": "dcl"}})


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"grid": [0.1]}, r"grid must be like \{.*\}, got \[0.1\]"),
        ({"grid": {"temperatur": [0.1]}}, "no grid here varies 'temperatur'; the nearest is 'temp"),
        ({"grid": {"temperature": 0.1}}, "grid must have a list of values of temperature, got 0.1"),
        ({"grid": {"temperature": [0.1, 0.1]}}, "grid has temperature = 0.1 twice"),
        ({"grid": {"temperature": ["warm"]}}, "values of temperature like 0.1, .*, got 'warm'"),
        ({"grid": {"temperature": [-1]}}, "temperature must be .*, got -1"),
        ({"grid": {"beta": [0, -1]}}, "grid must have beta above -1, got -1: "),
        ({"options": 3}, "options must be like .*, got 3"),
        (
            {"options": {"beeta": 1.0}},
            "no method here has an option 'beeta'; the nearest is 'beta'",
        ),
        ({"lr": -1.0}, "^lr must be greater than 0, got -1.0$"),
        ({"batch_size": 1}, "^batch_size must be greater than or equal to 2, got 1$"),
        ({"precision": "fp8"}, "^precision must be '32-true' or 'bf16-mixed', got 'fp8'$"),
        ({"encoder": "gpt"}, "^encoder must be one of "),
        ({"dataset": "nowhere"}, "^dataset must be one of "),
    ],
)
def test_a_bad_value_is_refused_before_anything_is_trained(load, parameters, words):
    with pytest.raises(ValueError, match=words) as found:
        load(**parameters)
    assert "\n" not in str(found.value)


def test_several_designs_have_the_same_parameters_where_these_concern_them(load):
    names = ("equal-gamma", "map", "images-longer")
    every = experiments.load_all(names, grid={"beta": [3.0]}, add={"mine": {"method": "dcl"}})
    assert [bool(one.changed) for one in every] == [True, True, False]
    assert "mine" in every[0].names() and "t0.1 b3" in every[1].names("CIFAR-10")
    assert experiments.load_all(names) == [experiments.load(name) for name in names]
    with pytest.raises(ValueError, match="no grid here varies 'beta'"):
        experiments.load_all(["equal-gamma", "images-longer"], grid={"beta": [3.0]})
    same = {"beta": [1.0, 2, 4.0, 8], "temperature": [1.0, 0.5, 0.3, 0.2, 0.1, 0.05]}
    assert experiments.load("map", grid=same) is experiments.load("map")


def test_what_a_grid_is_told_helps():
    """It names no word of files, and points of one sharpness are not told apart by digits."""
    with pytest.raises(ValueError, match=r"^no grid here varies 'extend'; the nearest is 'lr'$"):
        experiments.load("labels-rates", grid={"extend": ["x"]})
    with pytest.raises(
        ValueError, match=r"name 'tilt40 .*'; \(1 \+ beta\)/temperature is the same"
    ):
        experiments.load("banking77-rates", grid={"temperature": [0.05, 0.1], "beta": [1.0, 3.0]})


def test_a_number_leaves_the_blocks_that_still_differ(load):
    """A rate for both bags of words; one encoder for both would be two blocks of one run."""
    assert [*experiments.load("search", lr=0.03).blocks] == ["static", "random"]
    assert [*experiments.load("search", lr=0.1).blocks] == ["static", "random"]
    assert [*experiments.load("search", encoder="gru").blocks] == ["static"]
    rates = experiments.load("search", lr=0.1, arms=["t0.1"])
    assert {value(rates, "t0.1", "lr", block) for block in rates.blocks} == {0.1}


def test_a_name_may_say_the_sharpness_of_temperature_and_tilt():
    """Then both may have other values; a tilt alone has no temperature to say it of."""
    grid = dict(name="tilt{gamma:g} lr{lr}", method="hcl", over=dict(lr=[0.1]))
    grid["over"] |= dict(temperature=[0.5, 0.1], beta=[4.0])
    made = dict(making.points({"lr", "method"}, **grid))
    assert {x: arm["options"] for x, arm in made.items()} == {
        "tilt10 lr0.1": {"temperature": 0.5, "beta": 4.0},
        "tilt50 lr0.1": {"temperature": 0.1, "beta": 4.0},
    }
    assert sorted(making.named(grid)) == ["beta", "lr", "temperature"]
    assert making.named(grid | {"name": "tilt lr{lr}"}) == ["lr"]


def test_a_grid_of_a_real_encoder_varies_temperature_tilt_and_rate():
    """What was too soft to be chosen from is no place that a new temperature takes."""
    grid = {"temperature": [0.3, 0.07], "beta": [3], "lr": [0.001]}
    for name in ("banking77", "captions"):
        (rates,) = experiments.load(name, grid=grid).choosers()
        for chosen, wanted in (
            ("temperature", {"t0.3 lr0.001", "t0.07 lr0.001"}),
            ("tilt", {"tilt13.3333 lr0.001", "tilt57.1429 lr0.001"}),
        ):
            among = experiments.load(name).chosen[chosen]["among"]
            assert {*rates.matching(among, "")} == wanted
    small = experiments.load("banking77-rates", small=True, grid={"lr": [0.002]})
    assert {run.lr for *_, run in small.runs()} == {0.002}  # not also the rate of its small runs
