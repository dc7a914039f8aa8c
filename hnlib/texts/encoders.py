"""Encoders of texts: a bag of embeddings, a recurrent network, and their towers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence


class Bag(nn.Module):
    """The mean embedding of a sentence: tokens $[B,L]$, padded with 0, to $[B,d]$."""

    def __init__(self, vocabulary: int, dimension: int = 256):
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocabulary, dimension, mode="mean", padding_idx=0)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings."""
        if tokens.device.type != "cpu" or torch.compiler.is_compiling():
            return self.embedding(tokens)
        mask = tokens != 0  # on a CPU padding costs as much as tokens
        counts = mask.sum(1)
        return self.embedding(tokens[mask], counts.cumsum(0) - counts)


class GRU(nn.Module):
    """The last states of a recurrent network in both directions: tokens $[B,L]$ to $[B,d]$.

    As in Quick-Thoughts (Logeswaran & Lee, 2018).
    """

    def __init__(self, vocabulary: int, dimension: int = 256):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dimension, padding_idx=0)
        self.network = nn.GRU(dimension, dimension // 2, batch_first=True, bidirectional=True)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings."""
        lengths = (tokens != 0).sum(1).cpu()  # where PyTorch wants them
        packed = pack_padded_sequence(
            self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        return torch.cat([*self.network(packed)[1]], 1)


CLASSES = {"bag": Bag, "gru": GRU}


class Towers(nn.Module):
    """One encoder for both sentences of a pair, or one for each.

    `encoder` concatenates the outputs of all towers.
    """

    def __init__(self, encoders: list[nn.Module]):
        super().__init__()
        self.encoder = Joined(encoders)

    def forward(self, tokens: Tensor, tower: int = 0) -> Tensor:
        """Return the embeddings by one tower."""
        towers = self.encoder.towers
        return towers[tower % len(towers)](tokens)


class Joined(nn.Module):
    """Concatenate the embeddings of several encoders: tokens $[B,L]$ to $[B,kd]$."""

    def __init__(self, encoders: list[nn.Module]):
        super().__init__()
        self.towers = nn.ModuleList(encoders)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings by all towers."""
        return torch.cat([tower(tokens) for tower in self.towers], 1)


def build(name: str, vocabulary: int, dimension: int = 256, towers: int = 1) -> Towers:
    """Build towers of new encoders; "static" is a bag, too."""
    kind = CLASSES["bag" if name == "static" else name]
    return Towers([kind(vocabulary, dimension) for _ in range(towers)])


def saved(run, state: dict) -> Towers:
    """Return the model of a saved run, before its weights are loaded."""
    vocabulary, dimension = next(v for k, v in state.items() if "embedding.weight" in k).shape
    return build(run.encoder, vocabulary, dimension, run.towers)
