"""The first cell of a page that trains: what can be varied there, and what is refused there."""

import ast
import contextlib
import random
import re
import shutil
from pathlib import Path

import jupytext
import matplotlib.pyplot as plt
import pytest

from builder import own_data
from hnlib import experiments
from hnlib.notebooks import execute, two_texts
from hnlib.retrieval.config import RetrievalRun

ROOT = Path(__file__).resolve().parents[1]
PAGES = {}
for path in sorted((ROOT / "notebooks").rglob("*.md")):
    notebook = execute.read(path)
    values = execute.parameters_of(notebook)
    if "small" in values and two_texts.trains(notebook.cells):
        PAGES[path.stem] = notebook, values
SMALL = "\nsmall = False"
ONLY_FLOAT32 = {"graphs", "pairs"}  # their kinds of data know no other precision
WITHOUT_GRIDS = {
    "anatomy",
    "graphs",
    "ground-cost",
    "large-batches",
    "made-up",
}  # their files have none
KINDS = {"graphs": "graphs", "pairs": "text"}  # of what a page trains on, if not images
KINDS |= dict.fromkeys(("real-encoder", "retrieval", "two-towers"), "search")
KINDS |= {"soft-targets-schedules-batches": "search"}
OF_RATES = {"rates-and-lengths"}  # it compares rates
OF_LOSSES = {"hardness-or-temperature", "retrieval", "real-encoder"}


class Loaded(Exception):
    """A page has loaded its experiments, and would train now."""


def designs(page, monkeypatch, **given):
    """Return the designs that a page would train at some parameters."""
    return training(page, monkeypatch, **given)[0]


def training(page, monkeypatch, **given):
    """Return the designs that a page would train at some parameters, and how."""

    def stop(several, **how):
        raise Loaded([several] if isinstance(several, experiments.Design) else [*several], how)

    monkeypatch.setattr(experiments, "train", stop)
    monkeypatch.setattr(experiments, "train_all", stop)
    notebook, values = PAGES[page]
    assert {*given} <= {*values}
    names = dict(values)
    try:
        for cell in notebook.cells:
            if cell.cell_type == "code":
                exec(compile(cell.source, page, "exec"), names)
                if "parameters" in cell.metadata.get("tags", []):
                    names |= given
    except Loaded as found:
        return found.args
    finally:
        plt.close("all")
    raise AssertionError(f"{page} trains nothing")


def shown_for(page, name):
    """Return the first list or dictionary that a comment of the first cell proposes."""
    (line,) = (
        line
        for cell in PAGES[page][0].cells
        for line in cell.source.splitlines()
        if line.startswith(f"{name} = None")
    )
    first = re.search(r"[\[{]", line)
    for end in range(first.end(), len(line)):
        with contextlib.suppress(SyntaxError):
            return ast.literal_eval(line[first.start() : end + 1])
    raise AssertionError(line)


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch):
    monkeypatch.chdir(ROOT)


def test_the_log_of_a_training_folds_and_its_code_does_not():
    """A reader of the published page waits for no run, and sees the line that makes one."""
    for name, (notebook, _) in PAGES.items():
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        trains = [cell for cell in cells if "experiments.train" in cell.source]
        assert trains, name
        assert all(cell.metadata.get("tags") == ["hide-output"] for cell in trains), name


def test_every_page_with_a_small_form_trains_what_is_recorded_and_planned():
    """A model that is trained past the records is in no plan, and is trained at every call."""
    small = {path.stem for path in (ROOT / "notebooks").rglob("*.md") if SMALL in path.read_text()}
    assert small == {*PAGES}
    code = {page: "\n".join(x.source for x in node.cells) for page, (node, _) in PAGES.items()}
    assert [x for x in code if "hnlib.training" in code[x]] == []


def shown():
    """Return the page that CONTRIBUTING shows."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    page = re.search(r"^````md\n(.*?)^````", text, re.M | re.S)[1]
    return jupytext.reads(page, fmt="md:myst")


def test_every_page_that_trains_has_what_readers_want_to_vary():
    """The page that CONTRIBUTING shows, too: who follows it is not stopped here."""
    example = shown(), execute.parameters_of(shown())
    for page, (notebook, values) in (PAGES | {"as shown": example}).items():
        assert ("lr" in values) == (page not in OF_RATES), page
        assert {"batch_size", "seeds", "epochs"} <= {*values}, page
        assert ("precision" in values) == (page not in ONLY_FLOAT32), page
        assert ("grid" in values) == (page not in WITHOUT_GRIDS), page
        first = next(x.source for x in notebook.cells if "parameters" in x.metadata.get("tags", []))
        assert ("# There is no grid: " in first) == (page in WITHOUT_GRIDS), page
        assert ("loss" in values) == (page in OF_LOSSES), page
    assert {*PAGES} >= ONLY_FLOAT32 | WITHOUT_GRIDS | OF_LOSSES and len(PAGES) >= 15


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_carried_out_as_its_parameters_say(page, monkeypatch):
    asked = {"device": "cpu", "minutes": 5, "engine": {"engine": "ray", "gpus": 0.5}}
    how = training(page, monkeypatch, **asked)[1]
    assert {key: how[key] for key in asked} == asked


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_published_parameters_are_those_of_the_cell(page, monkeypatch):
    assert not [one.name for one in designs(page, monkeypatch) if one.changed]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_page_asks_for_what_its_parameters_say(page, monkeypatch):
    """Each number reaches a run, and every run where its experiments leave it open."""
    values = PAGES[page][1]
    given = dict(batch_size=40) | ({"lr": 0.004} if "lr" in values else {})
    given |= {"validation": 250} if "validation" in values else {}
    given |= {"precision": "32-true"} if "precision" in values else {}
    for one in designs(page, monkeypatch, **given, small=True):
        runs = [run for *_, run in one.runs()] or [
            run for x in one.choosers() for *_, run in x.runs()
        ]
        for name, value in given.items():
            assert {getattr(run, name, value) for run in runs} == {value}, (one.name, name)
    if "grid" in values:
        every = designs(page, monkeypatch, grid=shown_for(page, "grid"))
        assert [one.name for one in every if "grid" in one.changed]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_bad_value_is_refused_by_the_cell_that_loads_in_one_sentence(page, monkeypatch):
    values = PAGES[page][1]
    bad = dict(lr=-0.1, batch_size=1, precision="fp8", grid={"nothing": [1]}, add={"x": 1})
    bad |= dict(loss="nowhere.py", validation=-1, encoder="nothing", dataset="nothing", epochs=0)
    for name, value in bad.items():
        if name in values:
            with pytest.raises(ValueError, match=r"\w") as found:
                designs(page, monkeypatch, **{name: value})
            assert "\n" not in str(found.value) and len(str(found.value)) < 400, found.value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "given", "kept"),
    [
        (
            "hardness-or-temperature",
            {"arms": ["t0.1*", "t0.25"]},
            {"arms": ["t0.[12]*", "released", "temperature"]},
        ),
        (
            "hardness-or-temperature",
            {"grid": {"beta": [-1, 2]}},  # a sharpness of zero is on no logarithmic axis
            {"grid": {"beta": [-0.5, 2]}},
        ),
        (
            "hardness-or-temperature",
            {"arms": ["released", "temperature", "t0.25"]},
            {"arms": ["released", "temperature", "t0.25", "t0.1*"]},
        ),
        ("retrieval", {"grid": {"beta": [0, 3]}}, {"grid": {"beta": [1, 3]}}),
        ("real-encoder", {"grid": {"beta": [0, 3]}}, {"grid": {"beta": [3]}}),
        ("two-towers", {"grid": {"best_of": [1, 4]}}, {"grid": {"temperature": [0.3]}}),
        ("corrections", {"grid": {"beta": [0.5, 3]}}, {"grid": {"eta": [0.5, 3]}}),
        ("how-hard", {"grid": {"beta": [0, 4]}}, {"grid": {"beta": [0, 4, 9]}}),
        ("how-hard", {"grid": {"beta": [-2, 4]}}, {"grid": {"beta": [-2, 1, 4]}}),
        ("images", {"grid": {"method": ["dcl"]}}, {"grid": {"method": ["dcl", "simclr"]}}),
        (
            "images",
            {"grid": {"method": ["simclr", "untrained"]}},
            {"grid": {"method": ["simclr", "hcl-exact"]}},
        ),
    ],
)
def test_what_a_page_compares_with_is_kept_or_it_refuses_before_it_trains(
    page, given, kept, monkeypatch
):
    with pytest.raises(ValueError, match=r"^(arms|grid)( must (keep|have|vary) |: beta = 0)"):
        designs(page, monkeypatch, **given)
    assert designs(page, monkeypatch, **kept)


#: What a reader may type beside the data, by parameter
TYPED = {
    "epochs": (1, 3, 30),
    "train_size": (40, 300, 5000),
    "validation": (0, 100, 1000),
    "batch_size": (2, 33, 512, 2048),
    "lr": (0.01, 0.0003),
    "seeds": (1, 3, 12, "5-6"),
    "precision": ("32-true", "bf16-mixed"),
    "folds": (2, 5),
    "dimension": (24, 128),
    "add": ({"mine": {"method": "dcl"}}, {"mine": {"method": "scl"}}),
    "loss": ("examples/losses/amplifier.py", "examples/losses/warp.py"),
    "small": (True,),
}
OFFLINE = {"images": "digits", "graphs": "motifs", "text": "topics", "search": "generated"}
TO_ARMS = re.compile(r"add '.*' to arms|to arms, or all by '.*'")
REMEDY = re.compile(r"(\w+) (?:must be )?at most (?:the )?([\d,]+)")


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_any_few_parameters_are_planned_or_refused_with_a_remedy_that_works(
    page, monkeypatch, tmp_path
):
    """Random ones together, on data of yours or not; a limit that is named is followed."""
    rng, values = random.Random(page), PAGES[page][1]
    kind = KINDS.get(page, "images")
    name, make = own_data.KINDS[kind]
    possible = {key: typed for key, typed in TYPED.items() if key in values}
    possible |= {key: (shown_for(page, key),) for key in ("arms", "grid") if key in values}
    possible["dataset"] = (make(tmp_path / name), OFFLINE[kind])
    for _ in range(4):
        given = {key: rng.choice(possible[key]) for key in rng.sample(sorted(possible), 3)}
        for _ in range(5):
            try:
                every = designs(page, monkeypatch, **given)
            except ValueError as refused:
                said = str(refused)
            else:  # here a run that cannot be is no refusal any more
                [run.resolved() for one in every for *_, run in one.runs()]
                break
            assert "\n" not in said and len(said) < 400, (given, said)
            words = {*re.findall(r"\w+", str(given))}
            assert words & {*re.findall(r"\w+", said.replace(",", ""))}, (given, said)
            if limit := REMEDY.search(said):
                given[limit[1]] = int(limit[2].replace(",", ""))
            elif added := TO_ARMS.search(said):
                given["arms"] = [*given["arms"], *re.findall("'([^']+)'", added[0])]
            else:
                break  # what is wrong is neither a number nor a missing arm
        else:
            pytest.fail(f"{given} is refused after five remedies: {said}")


@pytest.mark.slow
def test_a_limit_is_the_lowest_of_all_experiments_of_a_page(monkeypatch):
    """Else the remedy of one refusal would be refused for the next experiment."""
    for page, given, most in (
        ("with-labels", {"small": True}, 800),
        ("rates-and-lengths", {"dataset": "digits"}, 200),
        ("soft-targets-schedules-batches", {"dataset": "generated"}, 500),
    ):
        with pytest.raises(ValueError, match=f"batch_size must be at most the {most} .* got 1,024"):
            designs(page, monkeypatch, **given, batch_size=1024)
        assert designs(page, monkeypatch, **given, batch_size=most)


@pytest.mark.slow
def test_all_points_of_a_grid_that_was_given_are_trained_or_it_is_refused(monkeypatch):
    """A tilt of 0, which is an arm of another grid, and points that arms leave out."""
    for page in ("pairs", "hardness-or-temperature"):
        every = designs(page, monkeypatch, small=True, grid={"beta": [0, 5]})
        (one,) = (x for x in every if "grid" in x.changed)
        tilts = [re.fullmatch(r"t([\d.]+) b(\d+)", x) for x in one.names(next(iter(one.blocks)))]
        found = {(tilt[1], tilt[2]) for tilt in tilts if tilt}
        assert found == {(t, b) for t, _ in found for b in ("0", "5")} and len(found) >= 8
    page, grid = "hardness-or-temperature", {"temperature": [0.07, 0.2], "beta": [0, 3]}
    arms = ["t0.1*", "t0.5*", "t0.25", "released", "temperature"]
    few, rounds = ["t0.25", "released", "temperature"], 0
    while rounds < 4:  # what each refusal proposes is added
        try:
            designs(page, monkeypatch, arms=few, grid={"temperature": [0.5, 0.25]})
            break
        except ValueError as refused:
            few += re.findall("'([^']+)'", TO_ARMS.search(str(refused))[0])
            rounds += 1
    assert rounds == 2
    for kept, asked, at in (
        ([], ["t0.07 b0", "t0.2 b3"], "temperature = 0.07"),
        (["t0.07 b0", "t0.2 b0"], ["t0.07 b3"], "beta = 3.0"),
    ):
        sentence = rf"^arms must keep points at {at}, .* add {', '.join(map(repr, asked))} to arms"
        with pytest.raises(ValueError, match=sentence):
            designs(page, monkeypatch, arms=[*arms, *kept], grid=grid)
        first, *_ = designs(page, monkeypatch, arms=[*arms, *kept, *asked], grid=grid)
        assert {*asked} <= {*first.names("CIFAR-10")}  # what it proposes loads


@pytest.mark.slow
def test_ground_cost_calls_no_untrained_model_a_trained_one():
    names = {}
    with pytest.raises(ValueError, match="epochs must be at least 1, got 0"):
        for cell in execute.read(ROOT / "notebooks/appendix/ground-cost.md").cells:
            if cell.cell_type == "code":
                exec(compile(cell.source, "ground-cost", "exec"), names)
                if "parameters" in cell.metadata.get("tags", []):
                    names["epochs"] = 0


@pytest.mark.slow
def test_two_towers_draw_harder_items_of_yours_if_there_are_enough(monkeypatch, tmp_path):
    for count, linked, drawn in (
        (600, False, []),
        (600, True, []),
        (601, False, ["of 1", "of 16"]),
    ):
        folder = tmp_path / f"{count} {linked}"
        name = own_data.collection(folder, count)
        if linked:  # to the test queries, as all are; then all are trained on
            shutil.copy(folder / "qrels/train.tsv", folder / "qrels/test.tsv")
        (one,) = designs("two-towers", monkeypatch, dataset=name)
        assert [name for name in one.names() if name.startswith("of ")] == drawn
        assert {"off t0.2", "on t0.2", "refined t0.2", "corrected", "uncorrected"} <= {*one.names()}


@pytest.mark.slow
def test_what_a_page_cannot_measure_is_refused_before_it_trains(tmp_path, monkeypatch):
    """The pull of a loss that needs labels, and a choice by validation queries that are not there."""
    with pytest.raises(ValueError, match=r"add: the pull of 'mine' .* from labels; leave it out$"):
        designs("anatomy", monkeypatch, add={"mine": {"method": "scl"}})
    name = own_data.collection(tmp_path / "texts")
    assert designs("retrieval", monkeypatch, dataset=name)
    (tmp_path / "texts/qrels/dev.tsv").unlink()
    for page in ("retrieval", "real-encoder"):
        with pytest.raises(ValueError, match="must have validation queries"):
            designs(page, monkeypatch, dataset=name)


@pytest.mark.slow
def test_each_collection_of_the_real_encoder_shows_a_task_that_its_runs_have(tmp_path, monkeypatch):
    """Yours has no STS-B, and the captions beside it, whose runs were recorded, have nothing else."""
    name = own_data.collection(tmp_path / "texts")
    given = dict(dataset=name, also=True, encoder="bag", lr=0.01)
    every = designs("real-encoder", monkeypatch, **given)
    source = next(x.source for x in PAGES["real-encoder"][0].cells if "def shown(" in x.source)
    (body,) = (x for x in ast.parse(source).body if getattr(x, "name", "") == "shown")
    names = {"task": "alike"}
    exec(ast.unparse(body), names)
    tasks = {one.name: names["shown"](experiments.found(one))[-1] for one in every}
    own, others = {"banking77-noise", "banking77-rates", "banking77"}, {*tasks}
    assert {tasks[one] for one in own} == {"alike"}
    assert {tasks[one] for one in others - own} == {"stsb"} and len(others) == 6


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_page_on_data_of_yours_asks_for_no_others(page, monkeypatch, tmp_path):
    """Unless they are named, as by `also` and `images`."""
    name, make = own_data.KINDS[KINDS.get(page, "images")]
    own = make(tmp_path / name)
    every = designs(page, monkeypatch, dataset=own, batch_size=20)
    runs = [run for one in every for x in (one, *one.choosers()) for *_, run in x.runs()]
    assert {run.dataset for run in runs} == {own}
    assert {x for run in runs for x in getattr(run, "transfer", ())} <= {"generated"}


@pytest.mark.slow
def test_another_collection_is_trained_on_without_the_leak(monkeypatch):
    """The questions of the bank share intents with the test questions; other queries validate."""
    for one in designs("real-encoder", monkeypatch, dataset="scifact", also=False):
        assert not any(run.leak for *_, run in one.runs())
    published = designs("real-encoder", monkeypatch, also=False)
    assert any(run.leak for one in published for *_, run in one.runs()), "control"


@pytest.mark.slow
def test_a_vocabulary_of_films_searches_no_texts(monkeypatch):
    searched = {}
    for dataset in "ml-100k", "flickr8k":
        every = designs("retrieval", monkeypatch, dataset=dataset)
        runs = [run for one in every for x in (one, *one.choosers()) for *_, run in x.runs()]
        searched[dataset] = {name for run in runs for name in run.transfer}
    assert searched["ml-100k"] <= {"generated"}
    assert "cranfield" in searched["flickr8k"], "control"


@pytest.mark.slow
def test_anchors_without_a_negative_are_left_out_where_a_batch_may_be_of_one_class(
    monkeypatch, tmp_path
):
    """Not at published values, of which the runs are recorded."""
    own = own_data.pictures(tmp_path / "mine")
    for given, left_out in (
        ({"dataset": "cifar10", "batch_size": 256}, "raise"),
        ({"batch_size": 16}, "skip"),
        ({"dataset": own}, "skip"),
    ):
        every = designs("with-labels", monkeypatch, **given)
        runs = [run.resolved() for one in every for *_, run in one.runs()]
        found = {run.options.get("on_empty") for run in runs if run.method in ("scl", "h-scl")}
        assert found == {left_out}
    for given, left_out in (({"batch_size": 128}, "raise"), ({"batch_size": 3}, "skip")):
        first, *_ = designs("graphs", monkeypatch, **given)
        runs = [run.resolved() for *_, run in first.runs()]
        found = {run.options["on_empty"] for run in runs if run.method in ("scl", "h-scl")}
        assert found == {left_out}


@pytest.mark.slow
def test_your_arm_trains_as_long_as_those_beside_it_and_at_the_one_rate_of_a_grid(monkeypatch):
    mine = {"method": "dcl", "options": {"temperature": 0.2}}
    file = "examples/losses/amplifier.py"
    for page, experiment, beside, given in (
        ("retrieval", "search", "t0.1", {"loss": file}),
        ("retrieval", "search", "t0.1", {"epochs": 2}),
        ("real-encoder", "banking77-rates", "t0.05 lr0.02", {"grid": {"lr": [0.02]}}),
    ):
        every = designs(page, monkeypatch, add={"mine": mine}, **given)
        (one,) = (x for x in every if x.name == experiment)
        for block in one.blocks:
            runs = (one.run(one.fixed(x, block), 0, block) for x in (beside, *one.added))
            lengths = {(x.resolved().epochs, x.max_steps, x.resolved().lr) for x in runs}
            assert len(lengths) == 1 and one.added


@pytest.mark.slow
def test_a_changed_page_trains_no_arm_that_it_does_not_show(monkeypatch):
    """The map's other arms serve published predictions; they stay there, and where one asks."""
    asked = ["t*", "ot e1", "released"]
    for given, there in (
        ({"seeds": 1}, True),
        ({"lr": 0.01}, False),
        ({"grid": {"beta": [0, 3]}}, False),
        ({"lr": 0.01, "arms": asked}, True),
    ):
        first, *_ = designs("hardness-or-temperature", monkeypatch, **given)
        assert any(name.startswith("ot ") for name in first.names("CIFAR-10")) == there
        assert first.like("t* b*", "CIFAR-10")
    for given, there in (({"small": True}, False), ({"lr": 0.01}, True)):  # in two epochs of small
        (one,) = designs("how-hard", monkeypatch, **given)
        assert {"rising", "falling"} <= {*one.names()} or not there
        assert not {"rising", "falling"} & {*one.names()} or there


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["static", "minilm"])
def test_films_keep_their_encoder_where_search_has_one_of_words(encoder, monkeypatch):
    *search, films = designs("retrieval", monkeypatch, encoder=encoder)
    assert {run.encoder for one in search for *_, run in one.runs()} == {encoder}
    assert {run.encoder for one in films.choosers() for *_, run in one.runs()} == {"bag"}
    with pytest.raises(ValueError, match="dimension must be 256 with static vectors, got 64"):
        RetrievalRun(encoder="static", dimension=64)
