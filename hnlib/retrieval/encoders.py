"""Encoders of queries and documents: those of sentences, and a bag that others have trained."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, processors
from torch import Tensor

from hnlib.sentences import encoders


def _wordllama() -> Path:
    spec = find_spec("wordllama")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            "encoder, guide or teacher 'static' and composition 'similar' need wordllama; "
            "pip install 'hnlib[retrieval]'",
            name="wordllama",
        )
    return Path(spec.submodule_search_locations[0])


def static_tokenizer() -> Tokenizer:
    """Return the tokenizer of the static embeddings, without tokens of its own around a text."""
    path = _wordllama() / "tokenizers" / "l2_supercat_tokenizer_config.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.post_processor = processors.Sequence([])
    return tokenizer


def static_embeddings() -> Tensor:
    """Return the static embeddings of 32,000 tokens, trained by others with in-batch negatives."""
    weights = load_file(_wordllama() / "weights" / "l2_supercat_256.safetensors")
    return weights["embedding.weight"].float()


def build(name: str, vocabulary: int, dimension: int = 256, towers: int = 1) -> encoders.Towers:
    """Build towers of encoders; those of "static" are trained already."""
    model = encoders.build(name, vocabulary, dimension, towers)
    if name == "static":
        with torch.no_grad():
            for embeddings in model.parameters():
                embeddings.copy_(static_embeddings())
    return model
