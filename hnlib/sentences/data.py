"""Corpora, one sentence a line with an empty line between documents."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from hnlib._checks import one_of
from hnlib._files import data_folder, explain_failed_download, own_name, read_zip, write_atomically
from hnlib.sentences.config import SentenceRun, split
from hnlib.sentences.registry import DATASETS
from hnlib.texts.tokens import Corpus, cached, encode, learned
from hnlib.texts.topics import topics

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
_END = re.compile(
    r"""(?<=[.!?])(?<!\bMr\.)(?<!\bMrs\.)(?<!\bDr\.)(?<!\bSt\.)(?<!\b[A-Z]\.)"""
    r"""["'”’)\]]*\s+(?=["'“‘(\[]*[A-Z])"""
)


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
            f"{name} must be lists of at least 2 sentences; shorter are documents {short[:9]} (a "
            "file has one sentence a line, and an empty line between documents)"
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
        if not path.exists() and name != "novels":
            raise ValueError(f"{name} is not downloaded; {path} must be a text, a sentence a line")
        if not path.exists():
            _prepare_novels(path)
    text = path.read_bytes()
    digest = hashlib.sha256(text).hexdigest()
    if known is None:
        name = own_name(name)
    elif digest != known.digest:
        raise ValueError(f"{path} has another digest; delete it, then run `hnlib data {name}`")
    documents = split(text, str(path))
    cache = folder / "tokens" / f"{digest[:16]}-{vocabulary}.safetensors"
    return cached(cache, name, lambda: corpus(documents, name, vocabulary))


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
