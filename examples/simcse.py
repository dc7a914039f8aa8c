"""Train SimCSE or ADNCE on a pretrained transformer and print Spearman on seven sets of STS.

    python examples/simcse.py --sentences wiki1m.txt --method simclr -o temperature=0.05
    python examples/simcse.py --sentences wiki1m.txt --method adnce -o temperature=0.07 -o mu=0.4

A sentence and itself are a pair: dropout makes the two views. Needs sentence-transformers and
the weights of `--model`, which sentence-transformers downloads, a file of one sentence a line, and
the sets of similarity under $HNLIB_DATA/sentences (`hnlib data` says where to get them).
"""

import argparse
import json

import torch
from torch.nn import functional

from hnlib.images import _torchvision  # noqa: F401, before sentence_transformers: see there
from hnlib.integrations.sentence_transformers import HardNegatives
from hnlib.sentences import benchmarks
from hnlib.sentences.evaluation import spearman

from sentence_transformers import SentenceTransformer  # isort: skip
from sentence_transformers.sentence_transformer.modules import (  # isort: skip
    Dense,
    Pooling,
    Transformer,
)
from sentence_transformers.util import batch_to_device  # isort: skip

SETS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sick")


def option(word: str) -> tuple[str, object]:
    """Read NAME=VALUE, the value as JSON."""
    name, _, value = word.partition("=")
    return name, json.loads(value)


def main() -> None:
    """Train for the epochs asked for and evaluate the first token's embedding."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="bert-base-uncased")
    parser.add_argument("--sentences", required=True, help="a file of one sentence a line")
    parser.add_argument("--method", default="simclr")
    parser.add_argument("-o", type=option, action="append", default=[], help="NAME=VALUE")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=3e-5)
    parser.add_argument("--sets", nargs="*", default=SETS)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    body = Transformer(args.model, max_seq_length=32)
    width = body.get_embedding_dimension()
    head = Dense(width, width, activation_function=torch.nn.Tanh())  # for training only
    model = SentenceTransformer(modules=[body, Pooling(width, "cls"), head])
    loss = HardNegatives(model, args.method, **dict(args.o))
    optimiser = torch.optim.AdamW(model.parameters(), lr=args.lr)
    with open(args.sentences, encoding="utf-8") as file:
        texts = [line.strip() for line in file if line.strip()]

    model.train()
    for _ in range(args.epochs):
        for part in torch.randperm(len(texts)).split(args.batch_size):
            batch = batch_to_device(model.tokenize([texts[i] for i in part]), model.device)
            value = loss([dict(batch), dict(batch)])
            optimiser.zero_grad()
            value.backward()
            optimiser.step()

    reader = SentenceTransformer(modules=[body, Pooling(width, "cls")]).eval()
    for name in args.sets:
        task = benchmarks.load(name)
        first, second = (
            functional.normalize(reader.encode(text, convert_to_tensor=True).cpu(), dim=1)
            for text in (task.first, task.second)
        )
        print(f"{name}: {100 * spearman(first, second, task.y):.2f}", flush=True)


if __name__ == "__main__":
    main()
