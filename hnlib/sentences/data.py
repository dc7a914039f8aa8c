"""Corpora, one sentence a line with an empty line between documents, and tokenizers learned on
them."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor

from hnlib import _archives
from hnlib._files import data_folder, write_atomically

KNOWN = ("topics", "novels")
PREFIX = "text:"  # before the path of a corpus of one's own
#: 100 English novels, 1839–1937, as collected by Eder and Rybicki; two are not in the public domain
NOVELS = (
    "https://codeload.github.com/computationalstylistics/100_english_novels/zip/"
    "143e601875d70e195f2cc5ebd8b034609271194d"
)
PROTECTED = ("Galsworthy_River_1933.txt", "Woolf_Years_1937.txt")
NOVELS_DIGEST = "d96b7d2ec2f6a389295d436ccdc9853a98c028ceded2320d5ee3f9c9df48cf13"
LARGEST = 2**28  # bytes of texts; the novels have 77 million
PAD, UNKNOWN = "[PAD]", "[UNK]"
_END = re.compile(
    r"""(?<=[.!?])(?<!\bMr\.)(?<!\bMrs\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\b[A-Z]\.)"""
    r"""["'”’)\]]*\s+(?=["'“‘(\[]*[A-Z])"""
)


@dataclass(frozen=True, eq=False)
class Corpus:
    """Sentences as token ids: those of sentence $i$ are `ids[ends[i]:ends[i + 1]]`, int16, none is
    zero. `documents` $[N]$ int64 counts up by one where a document begins. The digest is that of
    all three and of the tokenizer."""

    name: str
    ids: Tensor = field(repr=False)
    ends: Tensor = field(repr=False)
    documents: Tensor = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)
    digest: str

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def vocabulary(self) -> int:
        return self.tokenizer.get_vocab_size()

    @property
    def neighbours(self) -> Tensor:
        """The sentences that another of their document follows."""
        return (self.documents[1:] == self.documents[:-1]).nonzero()[:, 0]

    def rows(self, index: Tensor, length: int) -> Tensor:
        """The first `length` tokens of some sentences $[B,L]$ int64, filled up with zeros."""
        start, stop = self.ends[index], self.ends[index + 1]
        reach = torch.arange(min(length, int((stop - start).max())))
        where = start[:, None] + reach
        return self.ids[where.clamp_max(len(self.ids) - 1)].long() * (where < stop[:, None])


def corpus(
    documents: Sequence[Sequence[str]], name: str = "corpus", vocabulary: int = 16384
) -> Corpus:
    """Documents of one's own, each a list of sentences, with a tokenizer learned on them.

    The tokenizer is byte-pair encoding of lower-case words without accents, with at most
    `vocabulary` tokens; id 0 fills up, 1 is an unknown character. ValueError: a document of fewer
    than two sentences, an empty sentence, the name of another corpus.
    """
    if name in KNOWN:
        raise ValueError(f"{name} is the name of a known corpus; give your own another")
    return _corpus(documents, name, vocabulary)


def _corpus(documents: Sequence[Sequence[str]], name: str, vocabulary: int) -> Corpus:
    if not documents:
        raise ValueError(f"{name} has no document; give lists of sentences that follow each other")
    for i, document in enumerate(documents):
        if isinstance(document, str) or len(document) < 2:
            raise ValueError(
                f"document {i} of {name} has fewer than two sentences, and so no neighbours; give "
                "a list of sentences, or leave it out"
            )
    sentences = list(itertools.chain.from_iterable(documents))
    ids, ends = encode(tokenizer := learned(sentences, vocabulary), sentences)
    belongs = np.repeat(np.arange(len(documents)), [len(document) for document in documents])
    return _whole(name, ids, ends, torch.from_numpy(belongs), tokenizer)


def _whole(name: str, ids: Tensor, ends: Tensor, documents: Tensor, tokenizer) -> Corpus:
    digest = hashlib.sha256(tokenizer.to_str().encode())
    for part in (ids, ends, documents):
        digest.update(part.numpy().tobytes())
    return Corpus(name, ids, ends, documents, tokenizer, digest.hexdigest()[:12])


def learned(sentences: Iterable[str], vocabulary: int = 16384) -> Tokenizer:
    """Byte-pair encoding learned on sentences: a function of them and of `vocabulary` alone, at
    least 3. ValueError: more tokens than int16 can number."""
    if not 3 <= vocabulary < 2**15:
        raise ValueError(f"vocabulary={vocabulary} must lie in [3, {2**15 - 1}]")
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
    """Token ids of all sentences behind each other, int16, and their `ends` $[N+1]$, from 0.
    ValueError: an empty sentence."""
    counts, ids = [0], []
    for part in range(0, len(sentences), 10000):  # encodings are large
        for one in tokenizer.encode_batch_fast(list(sentences[part : part + 10000])):
            if not (found := one.ids):
                raise ValueError(f"sentence {len(counts) - 1} is empty; leave it out")
            counts.append(len(found))
            ids.append(np.array(found, np.int16))
    whole = np.concatenate(ids) if ids else np.zeros(0, np.int16)
    return torch.from_numpy(whole), torch.from_numpy(np.cumsum(counts))


def load(name: str = "topics", root: Path | str | None = None, vocabulary: int = 16384) -> Corpus:
    """The corpus "topics" (made here), "novels" (98 English novels), or "text:PATH", a text file
    of one sentence a line with an empty line between documents.

    The novels lie in `root/sentences/novels.txt`, split here, from `root/sentences/novels/*.txt` or
    downloaded; `root` defaults to `$HNLIB_DATA`, else the user's cache. What the tokenizer made of
    a corpus is kept in `root/sentences/tokens`, under the digest of its text. ValueError: an
    unknown name; a text that cannot be read, is damaged, or has an empty document.
    """
    if name == "topics":
        return _corpus(topics(), name, vocabulary)
    if name != "novels" and not name.startswith(PREFIX):
        known = ", ".join((*KNOWN, f"{PREFIX}PATH"))
        raise ValueError(f"unknown corpus {name!r}; known: {known}")
    path = location(root) / "novels.txt"
    if name == "novels" and not path.exists():
        _prepare_novels(path)
    elif name != "novels":
        path = Path(name.removeprefix(PREFIX)).expanduser()
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); name a text file") from None
    digest = hashlib.sha256(text).hexdigest()
    if name != "novels":
        name = f"{PREFIX}{path.stem}-{digest[:8]}"
    elif digest != NOVELS_DIGEST:
        raise ValueError(
            f"{path} is damaged (its digest is {digest}); delete it, then run `hnlib data novels`"
        )
    kept = location(root) / "tokens" / f"{digest[:16]}-{vocabulary}.safetensors"
    if not kept.exists():
        made = _corpus(_documents(text, path), name, vocabulary)
        _keep(made, kept)
        return made
    return _kept(kept, name)


def _documents(text: bytes, path: Path) -> list[list[str]]:
    try:
        words = text.decode("utf-8-sig").replace("\r\n", "\n").strip("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}); convert it") from None
    return [part.split("\n") for part in re.split(r"\n{2,}", words)]


PARTS = ("ids", "ends", "documents")


def _keep(made: Corpus, path: Path) -> None:
    from safetensors.torch import save

    _archives.check_folder(path.parent)
    about = {"tokenizer": made.tokenizer.to_str(), "digest": made.digest}
    write_atomically(path, save({part: getattr(made, part) for part in PARTS}, metadata=about))


def _kept(path: Path, name: str) -> Corpus:
    """What `_keep` wrote. ValueError: it is damaged."""
    from safetensors import safe_open

    try:
        with safe_open(path, "pt") as file:
            about = file.metadata()
            ids, ends, documents = (file.get_tensor(part) for part in PARTS)
        found = _whole(name, ids, ends, documents, Tokenizer.from_str(about["tokenizer"]))
        if found.digest != about["digest"]:
            raise ValueError("its content is not what its digest says")
    except Exception as error:  # the library of tokenizers raises plain ones
        fault = _archives.said(error)
        raise ValueError(f"{path} is damaged ({fault}); delete it, it is made anew") from error
    return found


def _prepare_novels(path: Path) -> None:
    """Write the novels, a sentence a line. ValueError: they are not to be had."""
    folder, names = path.with_suffix(""), "*_*_*.txt"
    _archives.check_folder(path.parent)
    if folder.is_dir():
        texts = {file.name: file.read_bytes() for file in folder.glob(names)}
    else:
        instead = f"put the novels of its folder corpus into {folder}"
        with _archives.downloaded("novels", NOVELS, instead, largest=LARGEST) as archive:
            archive = archive.rename(archive.with_suffix(".zip"))
            wanted = re.compile(r"corpus/\w+_\w+_\d+\.txt").fullmatch
            found = _archives.unpacked(archive, wanted, LARGEST)
            texts = {name.removeprefix("corpus/"): text for name, text in found.items()}
    kept = [texts[name].decode("utf-8-sig") for name in sorted(texts) if name not in PROTECTED]
    content = "\n\n".join("\n".join(sentences(text)) for text in kept) + "\n"
    if (digest := hashlib.sha256(content.encode()).hexdigest()) != NOVELS_DIGEST:
        raise ValueError(
            f"{len(kept)} novels of digest {digest} are not the 98 that are known; fetch them anew"
        )
    write_atomically(path, content.encode())


def sentences(text: str) -> list[str]:
    """Prose cut after ".", "!" or "?" with closing quotes, where a capital follows; not after a
    single capital, Mr., Mrs., Dr. or St. Lines are joined first."""
    text = " ".join(text.split())
    ends = [match.end() for match in _END.finditer(text)]
    return [text[a:b].strip() for a, b in itertools.pairwise([0, *ends, len(text)]) if a < b]


def location(root: Path | str | None = None) -> Path:
    """The folder of the corpora and of the evaluation sets."""
    return data_folder(root) / "sentences"


def describe(found: Corpus) -> str:
    """Sizes of a corpus, a line each."""
    lengths = found.ends.diff().double()
    said = {
        "sentences": f"{len(found):,} in {int(found.documents[-1]) + 1} documents",
        "pairs": f"{len(found.neighbours):,} of neighbours",
        "tokens": f"{lengths.mean():.1f} on average, {lengths.max():.0f} at most",
        "vocabulary": f"{found.vocabulary:,}",
        "digest": found.digest,
    }
    return "\n".join(f"{name:13}{value}" for name, value in said.items())


# The generated corpus. Nouns and verbs of a topic, adjectives of a mood, and what all share.
TOPICS = {
    "sea": "ship sail wave harbour captain anchor tide mast storm sailor | sails drifts sinks",
    "garden": "rose gardener bee hedge soil seed blossom path lawn spade | grows blooms withers",
    "kitchen": "bread cook oven butter knife soup plate salt kettle flour | bakes boils burns",
    "court": "judge law witness verdict lawyer jury trial oath clerk thief | rules pleads accuses",
    "music": "violin song singer piano drum chord tune choir flute concert | plays sings echoes",
    "school": "teacher lesson pupil book chalk desk exam page poem slate | reads learns writes",
}
MOODS = ("bright fine lovely calm proud happy", "dark grim bitter cold weary sad")
PATTERNS = (
    "the {a} {n} {v} near the {m}",
    "{n} and {m} were {a} that {w}",
    "every {w} the {n} {v} beside a {a} {m}",
    "was the {m} {a} when the {n} {v} ?",
)
WHEN = ("morning", "evening", "day", "night", "winter", "summer")


def sentence(rng: np.random.Generator, topic: int, mood: int) -> str:
    """One made sentence of a topic, in a mood. A word may be of any topic: alone it says little."""

    def word(part: int, given: int, share: float = 0.6) -> str:
        said = given if rng.random() < share else rng.integers(len(TOPICS))
        return str(rng.choice(list(TOPICS.values())[said].split("|")[part].split()))

    n, m, v = word(0, topic), word(0, topic), word(1, topic)
    a, w = rng.choice(MOODS[mood].split()), rng.choice(WHEN)
    return str(rng.choice(PATTERNS)).format(n=n, m=m, a=a, v=v, w=w)


def topics(documents: int = 60, length: int = 30, seed: int = 0) -> list[list[str]]:
    """Generated documents, each of one of the `TOPICS`; the mood changes every few sentences."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(documents):
        moods = np.cumsum(rng.random(length) < 0.2) % 2
        made.append([sentence(rng, i % len(TOPICS), int(mood)) for mood in moods])
    return made
