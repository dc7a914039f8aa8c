"""Corpora, one sentence a line with an empty line between documents, and their tokenizers."""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from hnlib._checks import one_of
from hnlib._files import data_folder, explain_failed_download, own_name, read_zip, write_atomically
from hnlib.sentences.config import SentenceRun
from hnlib.sentences.registry import DATASETS

PREFIX = "text:"  # before the path of a text file
#: 100 English novels, 1839–1937, as collected by Eder and Rybicki; two are not in the public domain
NOVELS = (
    "https://codeload.github.com/computationalstylistics/100_english_novels/zip/"
    "143e601875d70e195f2cc5ebd8b034609271194d"
)
PROTECTED = ("Galsworthy_River_1933.txt", "Woolf_Years_1937.txt")
#: The files of that archive, and the digest of their names, sizes and checksums; GitHub packs it
#: anew, so the archive has no digest of its own
FILE = rf"[^/]+/corpus/(?!{'|'.join(PROTECTED)})\w+_\d+\.txt"
NOVELS_LISTING = "6194d010439a49e632c3f2c5022de76d59dfb8bf136eb01e5453525a1cb997fa"
PAD, UNKNOWN = "[PAD]", "[UNK]"
_END = re.compile(
    r"""(?<=[.!?])(?<!\bMr\.)(?<!\bMrs\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\b[A-Z]\.)"""
    r"""["'”’)\]]*\s+(?=["'“‘(\[]*[A-Z])"""
)


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


def corpus(
    documents: Sequence[Sequence[str]], name: str = "corpus", vocabulary: int = 16384
) -> Corpus:
    """Make a corpus of your own documents, each a list of sentences.

    A tokenizer is learned on them: byte-pair encoding of lower-case words without accents, with at
    most `vocabulary` tokens; id 0 is padding, 1 an unknown character.
    """
    short = [i for i, document in enumerate(documents) if len(document) < 2]
    if not documents or short or isinstance(documents[0], str):
        raise ValueError(
            f"{name} must be lists of at least 2 sentences; shorter are documents {short[:9]}"
        )
    sentences = list(itertools.chain.from_iterable(documents))
    tokenizer = learned(sentences, vocabulary)
    ids, ends = encode(tokenizer, sentences)
    belongs = np.repeat(np.arange(len(documents)), [len(document) for document in documents])
    documents_of = torch.from_numpy(belongs)
    digest = hashlib.sha256(tokenizer.to_str().encode())
    for part in (ids, ends, documents_of):
        digest.update(part.numpy().tobytes())
    return Corpus(name, ids, ends, documents_of, tokenizer, digest.hexdigest()[:12])


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


def load(name: str = "topics", root: Path | str | None = None, vocabulary: int = 16384) -> Corpus:
    """Load "topics" (made here), "novels" (98 English novels), or "text:PATH".

    A text file has one sentence a line and an empty line between documents. The novels are in
    `root/sentences/novels.txt`, split here, from `root/sentences/novels/*.txt` or downloaded;
    `root` defaults to `$HNLIB_DATA`, else the user's cache. The token ids of a corpus are cached in
    `root/sentences/tokens`, under the digest of its text.
    """
    if name == "topics":
        return corpus(topics(), name, vocabulary)
    folder, known = data_folder(root, "sentences"), DATASETS.get(name)
    if name.startswith(PREFIX):
        path = Path(name.removeprefix(PREFIX)).expanduser()
    else:
        one_of("dataset", name, (*SentenceRun.datasets, *SentenceRun.own_datasets))
        path = folder / f"{name}.txt"
        if not path.exists():
            _prepare_novels(path)
    text = path.read_bytes()
    digest = hashlib.sha256(text).hexdigest()
    if known is None:
        name = own_name(name)
    elif digest != known.digest:
        raise ValueError(f"{path} has another digest; delete it, then run `hnlib data {name}`")
    words = text.decode("utf-8-sig").replace("\r\n", "\n").strip("\n")
    documents = [part.split("\n") for part in re.split(r"\n{2,}", words)]
    cache = folder / "tokens" / f"{digest[:16]}-{vocabulary}.safetensors"
    return cached(cache, name, lambda: corpus(documents, name, vocabulary))


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


def _prepare_novels(path: Path) -> None:
    """Write the novels, one sentence per line."""
    folder = path.with_suffix("")
    if folder.is_dir():
        texts = {file.name: file.read_bytes() for file in folder.glob("*_*_*.txt")}
    else:
        archive = folder.with_suffix(".zip")
        archive.parent.mkdir(parents=True, exist_ok=True)
        with explain_failed_download("novels", f"the folder corpus of {NOVELS} at {folder}"):
            torch.hub.download_url_to_file(NOVELS, str(archive), progress=False)
            texts = read_zip(archive, FILE, listing=NOVELS_LISTING)
    chosen = [texts[name].decode("utf-8-sig") for name in sorted(texts) if name not in PROTECTED]
    content = "\n\n".join("\n".join(sentences(text)) for text in chosen) + "\n"
    if hashlib.sha256(content.encode()).hexdigest() != DATASETS["novels"].digest:
        raise ValueError(f"{len(chosen)} novels are not the 98 expected ones; download them again")
    write_atomically(path, content.encode())


def sentences(text: str) -> list[str]:
    """Cut prose into sentences.

    A sentence ends after ".", "!" or "?" with closing quotes, where a capital follows; not after a
    single capital, Mr., Mrs., Dr. or St. Lines are joined first.
    """
    text = " ".join(text.split())
    ends = [match.end() for match in _END.finditer(text)]
    return [text[a:b].strip() for a, b in itertools.pairwise([0, *ends, len(text)]) if a < b]


WORDS = tomllib.loads(Path(__file__).with_name("topics.toml").read_text("utf-8"))
TOPICS = tuple(WORDS["topics"].values())


def sentence(rng: np.random.Generator, topic: int, mood: int) -> str:
    """Make a sentence of a topic, in a mood. A word may be of any topic: alone it says little."""

    def pick(texts: Sequence[str]) -> str:  # as `rng.choice`, which is slow
        return texts[int(rng.integers(len(texts)))]

    def word(part: int, given: int, share: float = 0.6) -> str:
        drawn = given if rng.random() < share else rng.integers(len(TOPICS))
        return pick(TOPICS[drawn].split("|")[part].split())

    n, m, v = word(0, topic), word(0, topic), word(1, topic)
    a, w = pick(WORDS["moods"][mood].split()), pick(WORDS["when"])
    return pick(WORDS["patterns"]).format(n=n, m=m, a=a, v=v, w=w)


def topics(documents: int = 60, length: int = 30, seed: int = 0) -> list[list[str]]:
    """Generate documents, each on one of the `TOPICS`; the mood changes every few sentences."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(documents):
        moods = np.cumsum(rng.random(length) < 0.2) % 2
        made.append([sentence(rng, i % len(TOPICS), int(mood)) for mood in moods])
    return made
