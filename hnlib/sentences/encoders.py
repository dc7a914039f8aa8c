"""Encoders of texts: a bag of embeddings, a recurrent network, a transformer, and their towers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
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
        if tokens.device.type == "cpu" and not torch.compiler.is_compiling():
            return self._on_cpu(tokens, lengths)
        packed = pack_padded_sequence(
            self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        return torch.cat([*self.network(packed)[1]], 1)

    def _on_cpu(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Return the embeddings without `nn.GRU`, whose backward pass is slow on a CPU.

        It fills a gradient of all inputs for each step. Here a token that occurs several times is
        multiplied by the input weights once, and both directions go together.
        """
        backwards = (lengths[:, None] - 1 - torch.arange(tokens.shape[1])).clamp_min(0)
        packed = [
            pack_padded_sequence(ids, lengths, batch_first=True, enforce_sorted=False)
            for ids in (tokens, tokens.gather(1, backwards))
        ]
        distinct, where = torch.stack([ids.data for ids in packed]).unique(return_inverse=True)
        w_input, w_hidden, b_input, b_hidden = map(torch.stack, zip(*self.network.all_weights))
        x = self.embedding(distinct).expand(2, -1, -1)
        gates = torch.baddbmm(b_input[:, None], x, w_input.mT)
        gates = torch.stack([embedding(i, table) for i, table in zip(where, gates)])
        sizes = packed[0].batch_sizes.tolist()
        h, ended = gates.new_zeros(2, sizes[0], self.network.hidden_size), []
        for given in gates.split(sizes, 1):  # longest sentences first
            h, end = h.split([given.shape[1], h.shape[1] - given.shape[1]], 1)
            ended.append(end)
            from_state = torch.baddbmm(b_hidden[:, None], h, w_hidden.mT)
            (r, z, n), (h_r, h_z, h_n) = given.chunk(3, 2), from_state.chunk(3, 2)
            update = (z + h_z).sigmoid()
            h = (n + (r + h_r).sigmoid() * h_n).tanh().lerp(h, update)
        states = torch.cat([h, *reversed(ended)], 1).transpose(0, 1).flatten(1)
        return states[packed[0].unsorted_indices]


class Transformer(nn.Module):
    """Two layers of attention with four heads, averaged over the tokens: $[B,L]$ to $[B,d]$.

    $d$ is a multiple of four. ValueError: more than 512 tokens.
    """

    def __init__(self, vocabulary: int, dimension: int = 256):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dimension, padding_idx=0)
        self.positions = nn.Parameter(0.02 * torch.randn(512, dimension))
        layer = nn.TransformerEncoderLayer(dimension, 4, 4 * dimension, 0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings."""
        if tokens.shape[1] > (most := len(self.positions)):
            raise ValueError(f"a transformer reads at most {most} tokens, got {tokens.shape[1]}")
        padding = tokens == 0
        padding[:, 0] = False  # a text without tokens is one empty token
        x = self.embedding(tokens) + self.positions[: tokens.shape[1]]
        x = self.layers(x, src_key_padding_mask=padding).masked_fill(padding[..., None], 0)
        return x.sum(1) / (~padding).sum(1, keepdim=True)


ENCODERS = {"bag": Bag, "gru": GRU, "transformer": Transformer}


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
    """The concatenated embeddings of several encoders: tokens $[B,L]$ to $[B,kd]$."""

    def __init__(self, encoders: list[nn.Module]):
        super().__init__()
        self.towers = nn.ModuleList(encoders)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings by all towers."""
        return torch.cat([tower(tokens) for tower in self.towers], 1)


def build(name: str, vocabulary: int, dimension: int = 256, towers: int = 1) -> Towers:
    """Build towers of new encoders; "static" is a bag, too."""
    kind = ENCODERS["bag" if name == "static" else name]
    return Towers([kind(vocabulary, dimension) for _ in range(towers)])


def saved(run, state: dict) -> Towers:
    """Return the model of a saved run, before its weights are loaded."""
    vocabulary, dimension = next(v for k, v in state.items() if "embedding.weight" in k).shape
    return build(run.encoder, vocabulary, dimension, run.towers)
