"""The model that a run on retrieval trains, and its measurements."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hnlib._files import data_folder
from hnlib.contrast import Contrast
from hnlib.retrieval import data, encoders, metrics, mining
from hnlib.retrieval.config import RetrievalRun
from hnlib.texts import benchmarks
from hnlib.texts import encoders as of_texts
from hnlib.texts.evaluation import EncodedBenchmark, embed
from hnlib.texts.tokens import Corpus
from hnlib.training import task

SEARCHED = 512  # tokens of a text
#: Scores documents [k] for the queries of pairs [r], [r, k]
Scorer = Callable[[Tensor, Tensor], Tensor]


def _guided(s: Tensor, margin: float, excluded: Tensor) -> Tensor:
    """Return what scores above the answer, except for queries that would have no negative left."""
    above = s > s.diagonal()[:, None] + margin
    left = ~(above | excluded)
    return above & left.fill_diagonal_(False).any(1, keepdim=True)


@dataclasses.dataclass
class PairBatch:
    """Pairs of a batch, ready for the model.

    `tokens` are those of B queries, their B documents and, if any, mined documents. The m keys are
    all documents: `excluded` [B, m] are not negatives, `mined_for` [B, m] were mined for the query,
    `log_frequency`, [B, m] or [1, m], is the correction of `logq`, and `teacher`, [B, m], are the
    scores of a teacher, if any.
    """

    tokens: list[Tensor]
    excluded: Tensor
    mined_for: Tensor
    log_frequency: Tensor
    teacher: Tensor | None = None


class Task(task.Task):
    """Pairs of queries, or titles, and documents of a collection."""

    unit = "pair"

    def __init__(self, run: RetrievalRun, method=None, device="cpu", data_root=None, dataset=None):
        if run.queue:
            raise ValueError(f"queue={run.queue} does not apply to retrieval; use mined=…")
        self.collection, self.data_root = dataset or data.load(run.dataset, data_root), data_root
        super().__init__(run, self.collection, device)
        self.decoupled = run.is_transformer
        self.train, self.validation = self.collection.split(run.leak)
        self._folder = data_folder(data_root, "retrieval") / "cache"
        self.texts = self._tokens(self.collection)
        self.benchmarks = [
            EncodedBenchmark(benchmarks.load(name, data_root), self.texts.tokenizer, SEARCHED)
            for name in run.tasks
        ]
        self._set_pairs()
        self.counts = self.document.bincount(minlength=len(self.collection.texts))
        self._model: Any = None
        self.scorer = functools.cache(self._scorer)
        topics = self.collection.topics
        self.topics = torch.tensor(topics) if topics else None
        run.check_distinct(self._once().tolist(), bool(topics))
        self.candidates: Tensor | None = None

    def _tokens(self, collection: data.Collection) -> Corpus:
        """Return all texts of a collection in our tokens."""
        vocabulary, ours = self.run.vocabulary, self.collection
        if self.run.is_transformer:
            own = encoders.transformer_tokenizer(self.run)
            name = hashlib.sha256(own.to_str().encode()).hexdigest()[:12]
            tokenizer = lambda: own  # noqa: E731
        elif self.run.encoder == "static":
            name, tokenizer = "static", encoders.static_tokenizer
        elif collection is ours:
            name, tokenizer = str(vocabulary), lambda: data.tokenizer_of(ours, vocabulary)
        else:
            name, tokenizer = f"{ours.digest}-{vocabulary}", lambda: self.texts.tokenizer
        return data.tokenised(collection, tokenizer, name, self._folder)

    def _set_pairs(self) -> None:
        """Set the rows `asked` and `answers` of `texts` and the `document` of each pair."""
        collection, which = self.collection, self.run.pairs
        titled = [] if which == "judged" else collection.titled
        judged = {} if which == "titles" else self.train
        n = len(collection.texts)
        titles = n + len(collection.queries)
        # a title asks for its text, which then comes without it
        pairs = [(titles + i, titles + len(titled) + i, d, [d]) for i, d in enumerate(titled)]
        pairs += [(n + query, d, d, [*of]) for query, of in judged.items() for d in of]
        rows = torch.tensor([pair[:3] for pair in pairs], dtype=torch.long)
        self.asked, self.answers, self.document = rows.view(-1, 3).T.contiguous()
        texts = collection.all_texts
        self.asked_texts = [texts[i] for i in self.asked]
        relevant = [i * n + d for i, pair in enumerate(pairs) for d in pair[3]]
        self.relevant = torch.tensor(relevant, dtype=torch.long).sort().values
        self.examples = len(pairs)

    def model(self) -> nn.Module:
        """Return a model with random or pretrained weights."""
        run = self.run
        self._model = encoders.build(run, self.texts.vocabulary).to(self.device)
        if run.mined and not run.refresh:
            self.candidates = self._mined()
        return self._model

    def _scorer(self, name: str) -> Scorer:
        """Return the scores of BM25 or of the static embeddings."""
        if name == "bm25":
            scores = mining.BM25(self.collection.documents).scores(self.asked_texts)
            return lambda pairs, documents: scores[pairs[:, None], documents]
        tokens = encoders.static_tokenizer
        texts = data.tokenised(self.collection, tokens, "static", self._folder)
        static = encoders.build(RetrievalRun(encoder="static"), texts.vocabulary).to(self.device)
        return self._cosines(static, texts)

    def _cosines(self, model: nn.Module, texts: Corpus) -> Scorer:
        """Return the cosines of a model's embeddings."""
        asked, place = self.asked.unique(return_inverse=True)  # a query may have several answers
        q, d = self._unit(model, texts, asked, len(self.collection.texts))
        return lambda pairs, documents: q[place[pairs]] @ d[documents].T

    def _unit(
        self, model: nn.Module, texts: Corpus, queries: Tensor, documents: int
    ) -> tuple[Tensor, Tensor]:
        """Return unit embeddings of the rows `queries` of texts and of the first `documents`."""
        towers: Any = model.get_submodule("encoder.towers")
        q = embed(towers[0], texts, SEARCHED, queries)
        d = embed(towers[-1], texts, SEARCHED, torch.arange(documents))
        return functional.normalize(q, dim=1), functional.normalize(d, dim=1)

    def _judged(
        self, model: nn.Module, collection: data.Collection, asked: list[int]
    ) -> tuple[Tensor, Tensor]:
        """Return unit embeddings of queries, zero where they are not `asked`, and of documents."""
        texts = self.texts if collection is self.collection else self._tokens(collection)
        n, rows = len(collection.texts), torch.tensor(asked)
        q, d = self._unit(model, texts, n + rows, n)
        return q.new_zeros(len(collection.queries), q.shape[1]).index_copy(0, rows, q), d

    def _mined(self) -> Tensor:
        """Return candidates for mined negatives of each pair, [P, last − first]."""
        run = self.run
        if run.mined == "bm25":
            bm25 = mining.BM25(self.collection.documents)
            scores = lambda rows: bm25.scores([self.asked_texts[i] for i in rows])  # noqa: E731
        else:
            cosines, every = self._cosines(self._model, self.texts), torch.arange(len(self.counts))
            scores = lambda rows: cosines(rows, every)  # noqa: E731
        return mining.candidates(scores, self.document, self.relevant, run.ranks, run.margin)

    def batches(self, generator: torch.Generator) -> Sequence[Tensor]:
        """Return a permutation in batches, dropping those that are not full."""
        if self.run.refresh:
            self.candidates = self._mined()
        if self.run.composition == "random":
            return super().batches(generator)
        order = torch.randperm(self.examples, generator=generator)
        return self._similar(order) if self.run.composition == "similar" else self._distinct(order)

    def _similar(self, left: Tensor) -> list[Tensor]:
        """Fill each batch with the first pair that is left and those nearest to it."""
        batches, size = [], self.run.batch_size
        while len(left) >= size:
            scores = self.scorer("static")(left[:1], self.document[left])[0]
            scores[0] = torch.inf  # itself
            chosen = torch.zeros(len(left), dtype=torch.bool)
            chosen[scores.topk(size).indices] = True
            batches.append(left[chosen])
            left = left[~chosen]
        return batches

    def _once(self) -> Tensor:
        """Return of each pair what a distinct batch has once: its topic if known, or document."""
        return self.document if self.topics is None else self.topics[self.document]

    def _distinct(self, order: Tensor) -> list[Tensor]:
        """Put each pair into the first batch with room that lacks its document, or its topic."""
        size = self.run.batch_size
        batches: list[dict[int, int]] = [{} for _ in range(self.examples // size)]
        for pair, key in zip(order.tolist(), self._once()[order].tolist()):
            room = (one for one in batches if len(one) < size and key not in one)
            next(room, {})[key] = pair
        return [torch.tensor([*one.values()]) for one in batches if len(one) == size]

    def views(self, batch: Tensor, generator: torch.Generator, share: slice) -> PairBatch:
        """Return the tokens of this process's `share` of the batch, and what each key is."""
        run, keys = self.run, self.document[batch]
        ends = (self.asked[batch[share]], self.answers[batch[share]])
        tokens = [self.texts.rows(rows, run.length) for rows in ends]
        own = torch.eye(len(batch), dtype=torch.bool)
        mined_for = torch.zeros_like(own)
        if self.candidates is not None:
            mined = self._draw(self.candidates[batch], generator)
            tokens.append(self.texts.rows(mined[share].flatten(), run.length))
            keys = torch.cat([keys, mined.flatten()])
            mined_for = torch.cat([mined_for, own.repeat_interleave(mined.shape[1], 1)], 1)
        return PairBatch(
            [view.to(self.device) for view in tokens],
            self._excluded(batch, keys).to(self.device),
            mined_for.to(self.device),
            self._log_frequency(keys, len(batch)).to(self.device),
            self.scorer(run.teacher)(batch, keys).to(self.device) if run.teacher else None,
        )

    def _draw(self, candidates: Tensor, generator: torch.Generator) -> Tensor:
        """Return mined negatives, [B, negatives]; candidates [B, c] are ordered, the best first."""
        run = self.run
        drawn = torch.rand(candidates.shape, generator=generator).argsort(1)
        groups = drawn[:, : run.negatives * run.best_of].view(-1, run.best_of, run.negatives)
        return candidates.gather(1, groups.amin(1).sort(1).values).long()

    def _excluded(self, batch: Tensor, keys: Tensor) -> Tensor:
        """Return which keys are not negatives of a query: they answer it, or its guide says so."""
        codes = batch[:, None] * len(self.collection.texts) + keys
        where = torch.searchsorted(self.relevant, codes).clamp_max(len(self.relevant) - 1)
        excluded = self.relevant[where] == codes
        if self.topics is not None:
            excluded |= self.topics[self.document[batch], None] == self.topics[keys]
        if self.run.guide in (None, "self"):
            return excluded
        s = self.scorer(self.run.guide)(batch, keys)
        return excluded | _guided(s, self.run.guide_margin, excluded)

    def _log_frequency(self, keys: Tensor, queries: int) -> Tensor:
        """Return what logQ subtracts from the log-weights, [B, m], or [1, m] if refined."""
        log_q = (self.counts[keys].clamp_min(1) / len(self.asked)).log()[None]
        if self.run.logq == "on":  # the positive's logit is corrected as well
            return log_q - log_q[0, :queries, None]
        return log_q + math.log(len(keys))  # it was not sampled; the others were, in m draws

    def loss(self, model: nn.Module, method, views: PairBatch, labels, gather: Callable) -> Tensor:
        """Return the loss of the whole batch; `gather` collects the rows of all processes.

        A query whose candidates are all excluded is left out and counted.
        """
        run = self.run
        queries, *keys = map(gather, self._forward(model, views.tokens))
        if run.pairs_only:
            return method.pairs(queries, *keys)
        contrast = Contrast.from_pairs(queries, torch.cat(keys))
        s, excluded = contrast.similarity.detach(), views.excluded
        if run.guide == "self":
            excluded = excluded | _guided(s, run.guide_margin, excluded)
        contrast = contrast.without(excluded).rescaled()  # each that is left counts once
        contrast = dataclasses.replace(contrast, teacher=views.teacher)
        if not (run.hardness_strength or run.logq):
            return method.loss(contrast, skip=True)
        log_prior = torch.zeros_like(s)
        if run.hardness_strength:
            modes = {"all": True, "mined": views.mined_for, "in-batch": ~views.mined_for}
            log_prior = log_prior + run.hardness_strength * s * modes[run.hardness_mode]
        if run.logq:
            log_prior = log_prior - views.log_frequency
        return method.loss(contrast, skip=True, log_prior=log_prior)

    def _forward(self, model: nn.Module, tokens: list[Tensor]) -> list[Tensor]:
        """Return the embeddings of queries and of keys."""
        if self.run.towers > 1:
            return [model(view, min(tower, 1)) for tower, view in enumerate(tokens)]
        longest = max(view.shape[1] for view in tokens)  # one backward costs half as much as two
        padded = [functional.pad(view, (0, longest - view.shape[1])) for view in tokens]
        return list(model(torch.cat(padded)).split([len(view) for view in tokens]))

    def _scores(self, model: nn.Module) -> tuple[dict, dict]:
        """Return mean scores, and the nDCG of each test query."""
        collection, seen = self.collection, None
        test = collection.judgements["test"]
        z = self._judged(model, collection, [*test, *self.validation])
        if collection.repeated:
            seen = {q: {**self.train.get(q, {}), **self.validation.get(q, {})} for q in test}
        ranked, by_query = metrics.judged_rankings(*z, test, seen)
        scores = {name: float(values.mean()) for name, values in by_query.items()}
        if self.validation:
            seen = self.train if collection.repeated else None
            again, values = metrics.judged_rankings(*z, self.validation, seen)
            scores |= {f"{name}_validation": float(x.mean()) for name, x in values.items()}
            if collection.repeated:
                shares = metrics.tail_share(again, self.counts)
                scores |= {f"{name}_validation": x for name, x in shares.items()}
        if collection.repeated:
            scores |= metrics.tail_share(ranked, self.counts)
        for name in self.run.transfer:
            other = data.load(name, self.data_root)
            judged = other.judgements["test"]
            _, values = metrics.judged_rankings(*self._judged(model, other, [*judged]), judged)
            scores[f"{other.name}_ndcg"] = float(values["ndcg"].mean())
        for benchmark in self.benchmarks:
            scores |= benchmark.scores(model.get_submodule("encoder"), self.run.seed)[0]
        ndcg = [round(value, 5) for value in by_query["ndcg"].tolist()]
        return scores, {"judged": {"ndcg": len(ndcg)}, "correct": {"ndcg": ndcg}}

    @staticmethod
    def saved_model(record: dict, state: dict, encoder=None) -> nn.Module:
        """Return the model of a saved run, before its weights are loaded."""
        run = RetrievalRun.read(record["configuration"])
        return encoders.build(run, 0) if run.is_transformer else of_texts.saved(run, state)
