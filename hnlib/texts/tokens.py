"""Texts as token ids, and the tokenizers that make them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from hnlib._files import write_atomically

PAD, UNKNOWN = "[PAD]", "[UNK]"


@dataclass(frozen=True, eq=False)
class Corpus:
    """Sentences as token ids, int16 or int32, of which only the first may be zero.

    Those of sentence $i$ are `ids[ends[i]:ends[i + 1]]`. `documents` $[N]$ int64 counts up by one
    where a document begins. The digest covers all three and the tokenizer.
    """

    name: str
    ids: Tensor = field(repr=False)
    ends: Tensor = field(repr=False)
    documents: Tensor = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    digest: str

    def __len__(self) -> int:
        """Return the number of sentences."""
        return len(self.documents)

    @property
    def vocabulary(self) -> int:
        """Return the number of tokens."""
        return self.tokenizer.get_vocab_size()

    @property
    def neighbours(self) -> Tensor:
        """Return the sentences that another of their document follows."""
        return (self.documents[1:] == self.documents[:-1]).nonzero()[:, 0]

    def rows(self, index: Tensor, length: int) -> Tensor:
        """Return the first `length` tokens of some sentences $[B,L]$ int64, padded with zeros."""
        start, stop = self.ends[index], self.ends[index + 1]
        reach = torch.arange(min(length, int((stop - start).max())))
        where = start[:, None] + reach
        return self.ids[where.clamp_max(len(self.ids) - 1)].long() * (where < stop[:, None])


def learned(sentences: Iterable[str], vocabulary: int = 16384) -> Tokenizer:
    """Learn a byte-pair encoding, a function of the sentences and of `vocabulary` alone."""
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    plain = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    tokenizer.normalizer = normalizers.Sequence(plain)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[PAD, UNKNOWN], show_progress=False
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, sentences: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Return the token ids of all sentences in a row, and their `ends` $[N+1]$, from 0."""
    counts, ids = [0], []
    kind = np.int16 if tokenizer.get_vocab_size() < 2**15 else np.int32
    for part in range(0, len(sentences), 10000):  # encodings are large
        for one in tokenizer.encode_batch_fast(sentences[part : part + 10000]):
            if not one.ids:
                raise ValueError(f"sentence {len(counts) - 1} is empty; leave it out")
            counts.append(len(one.ids))
            ids.append(np.array(one.ids, kind))
    return torch.from_numpy(np.concatenate(ids)), torch.from_numpy(np.cumsum(counts))


def texts(name: str, sentences: Sequence[str], tokenizer: Tokenizer) -> Corpus:
    """Return sentences that do not follow each other, in the tokens of another corpus."""
    ids, ends = encode(tokenizer, sentences)
    return Corpus(name, ids, ends, torch.arange(len(sentences)), tokenizer, name)


def cached(path: Path, name: str, make: Callable[[], Corpus]) -> Corpus:
    """Read a corpus from a file of tokens, which is written first if it is missing."""
    if not path.exists():
        from safetensors.torch import save

        made = make()
        tensors = {part: getattr(made, part) for part in PARTS}
        metadata = {"tokenizer": made.tokenizer.to_str(), "digest": made.digest}
        write_atomically(path, save(tensors, metadata=metadata), private=True)  # as the text may be
    return _read(path, name)


PARTS = ("ids", "ends", "documents")


@functools.cache
def _read(path: Path, name: str) -> Corpus:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        about = file.metadata()
        ids, ends, documents = (file.get_tensor(part) for part in PARTS)
    tokenizer = Tokenizer.from_str(about["tokenizer"])
    return Corpus(name, ids, ends, documents, tokenizer, about["digest"])
