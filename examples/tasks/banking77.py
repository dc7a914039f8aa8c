"""Your own task for `hnlib null`, an example: pretrained embeddings, trained on Banking77.

    hnlib null my_loss.py --task examples/tasks/banking77.py

`hnlib data banking77` says where the data come from; they lie in $HNLIB_DATA or the cache. Another
encoder goes where `RetrievalRun` and `train` stand: whatever trains with `loss(a, b)` of the
embeddings of queries and their answers, and returns a score from 0 to 1 for each test query. The
loss has its `options` already.
"""

from hnlib.retrieval.config import RetrievalRun
from hnlib.training.train import train as train_run

RATES = [0.005, 0.01, 0.02, 0.05]
STEPS = 150
MARGIN = 0.2  # points of nDCG@10


def train(loss, options, lr, steps, seed):
    """Train static embeddings with pairs of questions; return the nDCG@10 of the test questions."""
    run = RetrievalRun(
        dataset="banking77",
        encoder="static",
        leak=True,
        batch_size=64,
        pairs_only=True,
        epochs=30,
        max_steps=steps,
        lr=lr,
        seed=seed,
    )
    trained = train_run(run, method=loss, device="cpu", progress=False, evaluate_every=0)
    return trained.record["correct"]["ndcg"]
