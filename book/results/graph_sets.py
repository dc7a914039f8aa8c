"""Beside the statistics that HCL prints of its graph sets (Tables 3 and 4), those of the sets.

`python book/results/graph_sets.py` loads the eight sets, which takes minutes, and writes the
columns `loaded_…` of `graph_sets.csv`. Edges are counted once, in one direction.
"""

import pandas as pd

from hnlib._files import project_root
from hnlib.graphs import data


def statistics(dataset: data.GraphSet) -> dict:
    """Return the size of a set, its classes, its mean nodes and edges, and its digest."""
    graphs = dataset.graphs
    return {
        "loaded_graphs": len(dataset),
        "loaded_classes": dataset.num_classes,
        "loaded_nodes": sum(float(graph.num_nodes) for graph in graphs) / len(graphs),
        "loaded_edges": sum(graph.num_edges for graph in graphs) / 2 / len(graphs),
        "digest": dataset.digest,
    }


if __name__ == "__main__":
    path = project_root() / "book/results/graph_sets.csv"
    printed = pd.read_csv(path)[["table", "dataset", "graphs", "classes", "nodes", "edges"]]
    loaded = pd.DataFrame([statistics(data.load(name)) for name in printed["dataset"]])
    printed.join(loaded.round(6)).to_csv(path, index=False)
