"""Runs on sentences: what is trained, and the tasks by which the embeddings are judged."""

from __future__ import annotations

import dataclasses
import statistics
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from hnlib import methods
from hnlib.sentences import data, encoders, tasks
from hnlib.sentences import evaluation as transfer
from hnlib.sentences.modality import Pairs
from hnlib.training import config, records
from hnlib.training.config import Execution, SentenceRun
from hnlib.training.loop import Course, Loop


def method_of(run: SentenceRun) -> methods.Method:
    """The method that the run names. ValueError: as in `methods.build`."""
    return methods.build(run.method, **run.options)


def saved_model(record: dict, state: dict, *modules) -> nn.Module:
    """The model of a saved run, before its weights are loaded."""
    chosen = record["configuration"]
    vocabulary, dimension = next(v for k, v in state.items() if "embedding.weight" in k).shape
    return encoders.build(chosen["encoder"], vocabulary, dimension, chosen.get("towers", 1))


def example_inputs(record: dict, encoder: nn.Module) -> tuple[tuple, tuple]:
    """Inputs of an encoder, and which of their sizes are free."""
    tokens = torch.ones(3, 7, dtype=torch.long)
    free = {0: torch.export.Dim("sentences", min=2), 1: torch.export.Dim("tokens", min=2, max=64)}
    return (tokens,), (free,)


class Task:
    """What a run of sentences trains, and what it measures; `run` says all that was chosen."""

    ROW = frozenset({"epoch", "loss"})  # what is read of a row of the history

    def __init__(
        self, run: SentenceRun, execution: Execution, own: SimpleNamespace, method, device
    ):
        root = execution.data_root
        corpus = own.dataset or data.load(run.dataset, root, run.vocabulary)
        usual = tasks.GENERATED if corpus.name == "topics" else tasks.PUBLISHED
        self.judged = [
            transfer.Judged(tasks.load(name, root), corpus.tokenizer, run.length)
            for name in dict.fromkeys(run.tasks) or usual
        ]
        parts = (run.encoder, run.dimension, run.towers)
        more = (run.views, run.both, run.length, run.train_size, device)
        self.parts = [Pairs(corpus, run.batch_size, parts, *more)]
        named = dict(dataset=corpus.name, dataset_digest=corpus.digest)
        self.run = dataclasses.replace(run, **named)

    def look(self, loop: Loop, loss: float | None, rate: float | None) -> dict | None:
        """A row of the history; the last row's scores are filled in with the final ones."""
        course, due = loop.course, loop.due(loop.course.epoch)
        if not (due or loop.last):
            return None
        row = dict(epoch=course.epoch, step=course.step, loss=loss, pairs_per_second=rate)
        row |= loop.scheduled
        return row if loop.last else row | self._scores(loop.model)[0]

    def _scores(self, model: nn.Module) -> tuple[dict, dict[str, Tensor]]:
        scores, correct = {}, {}
        for one in self.judged:
            found, right = one.scores(model.get_submodule("encoder"), self.run.seed)
            scores |= found
            correct |= right
        seen = [f"{task}_validation" for task in config.TRANSFER]
        means = {"transfer": config.TRANSFER, "transfer_validation": seen}
        for name, metrics in (means | {"sts": config.SIMILARITY}).items():
            if all(metric in scores for metric in metrics):
                scores[name] = statistics.mean(scores[metric] for metric in metrics)
        return scores, correct

    def measure(self, model: nn.Module, courses: list[Course], device) -> dict:
        """What the record says of the trained model besides the configuration."""
        (course,) = courses
        scores, correct = self._scores(model)
        course.history[-1] |= scores
        seconds = sum(course.seconds)
        rate = course.step * self.run.batch_size / seconds if course.step else None
        metrics = scores | dict(loss=course.history[-1]["loss"], steps=course.step)
        return {
            "metrics": metrics | {"pairs_per_second": rate},
            "history": course.history,
            "losses": course.losses,
            "sentences": len(self.parts[0].corpus),
            "judged": {name: len(right) for name, right in correct.items()},
            "correct": {name: records.pack(right) for name, right in correct.items()},
        }


def check(run: SentenceRun, execution: Execution, own: SimpleNamespace, method) -> None:
    """ValueError: an option that sentences do not have, a method that needs what they lack."""
    usual = SentenceRun()
    for name, value, default in (
        ("precision", run.precision, usual.precision),
        ("compile", run.compile, usual.compile),
    ):
        if value != default:
            raise ValueError(f"{name}={value!r} is not for sentences; leave it at {default!r}")
    if run.queue and run.towers > 1:
        raise ValueError(f"queue={run.queue} needs one tower for its copy to follow; use towers=1")
    if run.queue and run.both:
        raise ValueError(f"both=True means nothing with queue={run.queue}; leave it out")
    if run.views == "dropout" and (run.encoder != "transformer" or run.towers > 1):
        raise ValueError(
            "views='dropout' needs one transformer, whose noise makes them; "
            f"encoder={run.encoder!r} with towers={run.towers} is none"
        )
    if method is None:
        return
    if not isinstance(method, methods.Method):
        raise ValueError(f"{method!r} cannot train on pairs; give a method of hnlib.methods")
    eye = torch.eye(4)
    trial = method.copy()
    try:
        trial(eye, eye.roll(1, 0)) if run.views == "dropout" else trial.pairs(eye, eye)
    except ValueError as error:
        raise ValueError(f"{method.name} is not for views={run.views!r}: {error}") from error
