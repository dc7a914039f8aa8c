"""The model that a run on sentences trains, and its measurements."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch import Tensor, nn

from hnlib.sentences import data, evaluation
from hnlib.sentences.config import SentenceRun, trained_pairs
from hnlib.sentences.registry import DATASETS
from hnlib.texts import benchmarks, encoders
from hnlib.texts.evaluation import EncodedBenchmark
from hnlib.texts.registry import SIMILARITY, TRANSFER
from hnlib.training import records, task


class Task(task.Task):
    """Pairs of neighbours of a corpus."""

    unit = "pair"

    def __init__(self, run: SentenceRun, method=None, device="cpu", data_root=None, dataset=None):
        if run.queue and run.towers > 1:
            raise ValueError(f"queue={run.queue} requires towers=1")
        name = dataset.name if dataset else run.dataset
        known = None if dataset else DATASETS.get(name)
        tasks = [*dict.fromkeys(run.tasks)] or (known.tasks if known else ["next"])
        # before the corpus, whose tokenizer takes minutes the first time
        asked = [benchmarks.load(task, data_root) for task in tasks if task != "next"]
        self.corpus = dataset or data.load(run.dataset, data_root, run.vocabulary)
        super().__init__(run, self.corpus, device)
        self.first, last = self.corpus.neighbours, []
        if "next" in tasks:
            train = trained_pairs(len(self.first))
            last = [evaluation.NextSentence(self.corpus, self.first[train + 1 :], run.length)]
            self.first = self.first[:train]
        if run.train_size is not None and run.train_size < len(self.first):
            generator = torch.Generator().manual_seed(0)  # the same pairs for all seeds
            chosen = torch.randperm(len(self.first), generator=generator)[: run.train_size]
            self.first = self.first[chosen.sort().values]
        self.examples = len(self.first)
        if self.examples < (run.train_size or 0):
            raise ValueError(
                f"train_size must be at most the {self.examples} pairs of {self.corpus.name}, "
                f"got {run.train_size}"
            )
        self.benchmarks = [
            EncodedBenchmark(one, self.corpus.tokenizer, run.length) for one in asked
        ] + last

    def model(self) -> encoders.Towers:
        """Return a model with random weights."""
        run = self.run
        return encoders.build(run.encoder, self.corpus.vocabulary, run.dimension, run.towers)

    def views(self, batch: Tensor, generator: torch.Generator, share: slice) -> task.Views:
        """Return the tokens of the first sentences and of the second."""
        first = self.first[batch[share]]
        tokens = (self.corpus.rows(index, self.run.length) for index in (first, first + 1))
        return task.Views(*(part.to(self.device) for part in tokens))

    def loss(self, model: nn.Module, method, views: task.Views, labels, gather: Callable) -> Tensor:
        """Return the loss of the whole batch; `gather` collects the rows of all processes."""
        queries, keys = gather(model(views.first, 0)), gather(model(views.second, 1))
        return method.pairs(queries, keys)

    def _scores(self, model: nn.Module) -> tuple[dict, dict]:
        encoder, scores, correct = model.get_submodule("encoder"), {}, {}
        for benchmark in self.benchmarks:
            more_scores, more_correct = benchmark.scores(encoder, self.run.seed)
            scores |= more_scores
            correct |= more_correct
        validation = [f"{task}_validation" for task in TRANSFER]
        means = {"transfer": TRANSFER, "transfer_validation": validation, "sts": SIMILARITY}
        for name, metrics in means.items():
            if all(metric in scores for metric in metrics):
                scores[name] = statistics.mean(scores[metric] for metric in metrics)
        return scores, {
            "sentences": len(self.corpus),
            "judged": {name: len(right) for name, right in correct.items()},
            "correct": {name: records.pack(right) for name, right in correct.items()},
        }

    @staticmethod
    def saved_model(record: dict, state: dict, encoder=None) -> nn.Module:
        """Return the model of a saved run, before its weights are loaded."""
        return encoders.saved(SentenceRun.read(record["configuration"]), state)
