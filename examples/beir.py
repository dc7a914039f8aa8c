"""Train static embeddings of sentence-transformers on your collection and search with them.

    python examples/beir.py --dataset folder:PATH -o temperature=0.05
    python examples/beir.py --dataset generated --method hcl -o temperature=0.5 -o beta=4

PATH has corpus.jsonl, queries.jsonl, qrels/train.tsv and qrels/test.tsv (BEIR). The model starts
from the embeddings in the wheel of wordllama: nothing is downloaded. Training queries that share
judged documents with test queries are left out. Prints nDCG@10 before and after.
"""

import argparse
import json
import tempfile
from pathlib import Path

from datasets import Dataset

from hnlib.images import _torchvision  # noqa: F401, before sentence_transformers: see there
from hnlib.integrations.sentence_transformers import HardNegatives
from hnlib.retrieval import data, encoders

from sentence_transformers import (  # isort: skip
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.base.sampler import BatchSamplers  # isort: skip
from sentence_transformers.sentence_transformer.evaluation import (  # isort: skip
    InformationRetrievalEvaluator,
)
from sentence_transformers.sentence_transformer.modules import StaticEmbedding  # isort: skip


def option(text):
    """Return a name and a value of KEY=VALUE."""
    name, value = text.split("=")
    return name, json.loads(value)


def main():
    """Train and search."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="generated", help="folder:PATH, or a name")
    parser.add_argument("--method", default="simclr")
    parser.add_argument("-o", type=option, action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--save", type=Path)
    args = parser.parse_args()

    collection = data.load(args.dataset)
    documents, queries = collection.documents, collection.queries
    train, _ = collection.split()
    pairs = [(collection.titles[i], collection.texts[i]) for i in collection.titled]
    pairs += [(queries[q], documents[d]) for q, judged in train.items() for d in judged]
    judged = sum(map(len, train.values()))
    rows = Dataset.from_list([{"query": query, "answer": answer} for query, answer in pairs])

    tokenizer, weights = encoders.static_tokenizer(), encoders.static_embeddings()
    bag = StaticEmbedding(tokenizer, embedding_weights=weights.numpy())
    model = SentenceTransformer(modules=[bag], device="cpu")
    test = collection.judgements["test"]
    search = InformationRetrievalEvaluator(
        {str(q): queries[q] for q in test},
        {str(d): text for d, text in enumerate(documents)},
        {str(q): set(map(str, judged)) for q, judged in test.items()},
        show_progress_bar=False,
    )
    before = search(model)[search.primary_metric]

    arguments = SentenceTransformerTrainingArguments(
        output_dir=tempfile.mkdtemp(),
        num_train_epochs=args.epochs,
        per_device_train_batch_size=128,
        learning_rate=args.lr,
        lr_scheduler_type="constant",
        batch_sampler=BatchSamplers.NO_DUPLICATES,  # or a text is its own negative
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    loss = HardNegatives(model, args.method, **dict(args.o))
    trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=rows, loss=loss)
    trainer.train()
    after = search(model)[search.primary_metric]
    trained = f"{len(pairs)} pairs, {judged} of them judged"
    print(f"nDCG@10 {100 * before:.1f} before, {100 * after:.1f} after {trained}")
    if args.save:
        model.save(str(args.save))


if __name__ == "__main__":
    main()
