"""Your own task for `hnlib null`, an example: a real encoder, fine-tuned on Banking77.

    hnlib null my_loss.py --task examples/tasks/banking77.py

With a GPU the encoder is all-MiniLM-L6-v2; a CPU would take a quarter of an hour for each training,
and gets pretrained embeddings of words. `hnlib data banking77` says where the data come from; they
lie in $HNLIB_DATA or the cache. Another encoder goes where `RetrievalRun` and `train` stand:
whatever trains with `loss(a, b)` of the embeddings of queries and their answers, and returns a
score from 0 to 1 for each test query. The loss has its `options` already.
"""

import torch

from hnlib.retrieval.config import RetrievalRun
from hnlib.training.train import train as train_run

GPU = torch.cuda.is_available()
ENCODER, RATES = "static", [0.005, 0.01, 0.02, 0.05]
if GPU:
    ENCODER, RATES = "minilm", [0.00005, 0.0001, 0.0002, 0.0004]
STEPS = 150
MARGIN = 0.2  # points of nDCG@10


def train(loss, options, lr, steps, seed):
    """Train with pairs of questions; return the nDCG@10 of the test questions."""
    run = RetrievalRun(
        dataset="banking77",
        encoder=ENCODER,
        precision="bf16-mixed" if GPU else "32-true",
        leak=True,
        batch_size=64,
        pairs_only=True,
        epochs=30,
        max_steps=steps,
        lr=lr,
        seed=seed,
    )
    trained = train_run(run, method=loss, progress=False, evaluate_every=0)
    return trained.record["correct"]["ndcg"]
