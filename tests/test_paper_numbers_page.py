from dataclasses import replace

import pandas as pd

from builder import paper_numbers_page
from hnbook import paper_numbers
from hnlib.experiments import evidence
from hnlib.graphs import data as graph_sets
from hnlib.training import records


def record(cell, seed, accuracy):
    metrics = {paper_numbers.READOUTS[cell.metric]: accuracy, "linear_paper": accuracy - 0.1}
    configuration = replace(cell.run, seed=seed).resolved().configuration
    rest = dict(history=[], losses=[], environment={}, kind=cell.run.kind, seconds=1.0)
    return rest | dict(configuration=configuration, metrics=metrics)


def test_ours_stands_beside_the_printed_number_with_its_interval():
    cell = next(c for c in paper_numbers.cells() if (c.paper, c.row) == ("hcl", "Debiased"))
    frame = records.frame([record(cell, s, x) for s, x in enumerate((0.53, 0.54, 0.55))])
    text = paper_numbers_page.parts(frame)["printed"]
    assert text.count("(3 seeds)") == 1
    (line,) = [part for part in text.split("* -") if "(3 seeds" in part]
    assert (
        "53.7" in line and "54.0\u00a0±\u00a01.0" in line and "+0.3 \\[−2.2,\u00a0+2.8\\]" in line
    )
    assert "as released 44.0\u00a0±\u00a01.0" in line and "as released −9.7" in line
    assert "hnlib train images --dataset tiny-imagenet --method debiased" in line


def misprinted(row: dict) -> list[str]:
    """Return the printed statistics of a set that are not those of the set as it is loaded."""
    ours = {name: row[f"loaded_{name}"] for name in ("graphs", "classes", "nodes", "edges")}
    return [name for name, value in ours.items() if abs(row[name] - value) > 0.005 + 1e-9]


def test_graph_sets_have_the_statistics_that_hcl_prints():
    rows = pd.read_csv(evidence.path("graph_sets.csv")).to_dict("records")
    assert len(rows) == 8 and not any(map(misprinted, rows))
    assert misprinted(rows[0] | {"edges": rows[0]["edges"] + 0.01}) == ["edges"]
    published = graph_sets.downloads("graphs")
    assert all(row["digest"] == published[row["dataset"]]["digest"] for row in rows)
