"""Models that read sequences: image rows, characters, and token ids."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from gossamer.models.parts import divides


class RowLstm(nn.Module):
    """An LSTM that reads an image row by row and classifies it from its last state."""

    def __init__(self, features: int, classes: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, layers, batch_first=True)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 4:  # a step holds the row of every channel
            x = x.transpose(1, 2).flatten(2)
        states, _ = self.lstm(x)
        logits: Tensor = self.fc(states[:, -1])
        return logits


class CharacterLstm(nn.Module):
    """An LSTM over embedded characters that predicts the one that comes next.

    It does so after the last character, or after every one.
    """

    def __init__(
        self, vocabulary: int, classes: int, width: int, hidden: int, layers: int, every: bool
    ) -> None:
        super().__init__()
        self.every = every
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(x))
        logits: Tensor = self.fc(states if self.every else states[:, -1])
        return logits


class Attention(nn.Module):
    """Self-attention whose four projections are ordinary linear layers, so they can be pruned."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=keep[:, None, None, :]
        )
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class EncoderBlock(nn.Module):
    """Attention and two linear layers, each normalised before and added to its input."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.dropout1 = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, hidden)
        self.relu = nn.ReLU()
        self.fc2 = nn.Linear(hidden, width)
        self.dropout2 = nn.Dropout(dropout)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        x = x + self.dropout1(self.attention(self.norm1(x), keep))
        out: Tensor = x + self.dropout2(self.fc2(self.relu(self.fc1(self.norm2(x)))))
        return out


class TextEncoder(nn.Module):
    """A transformer over token ids; the mean over the tokens that are not padding is classified."""

    def __init__(
        self,
        length: int,
        classes: int,
        vocabulary: int,
        width: int,
        heads: int,
        layers: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=0)
        self.positions = nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            EncoderBlock(width, heads, 2 * width, dropout) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        position = torch.arange(x.shape[1], device=x.device)
        # The first position always counts: an example of padding alone must not divide by zero.
        keep = (x != 0) | (position == 0)
        out = self.dropout(self.tokens(x) + self.positions(position))
        for block in self.blocks:
            out = block(out, keep)
        weight = keep.unsqueeze(-1).to(out.dtype)
        logits: Tensor = self.fc((self.norm(out) * weight).sum(1) / weight.sum(1))
        return logits


def lstm(shape: tuple[int, ...], classes: int, hidden: int = 128, layers: int = 2) -> nn.Module:
    """LSTM of SpaFL over image rows: gate matrices of 210 944 weights on 28x28.

    The paper prunes the gate matrices alone: prunable=["lstm.*"].
    """
    if len(shape) not in (2, 3):
        raise ValueError(
            f"lstm takes sequences (steps, features) or images (channels, height, width), but an "
            f"example of this data has shape {shape}; try char_lstm, text or mlp"
        )
    features = shape[-1] * (shape[0] if len(shape) == 3 else 1)
    return RowLstm(features, classes, hidden, layers)


def char_lstm(
    shape: tuple[int, ...],
    classes: int,
    vocabulary: int = 80,
    width: int = 8,
    hidden: int = 256,
    layers: int = 2,
    every: bool = False,
) -> nn.Module:
    """Next-character LSTM of LEAF's Shakespeare: 819 920 parameters at 80 characters.

    With `every` it predicts after each character, as the task `language` needs.
    """
    _length("char_lstm", shape)
    return CharacterLstm(vocabulary, classes, width, hidden, layers, every)


def text(
    shape: tuple[int, ...],
    classes: int,
    vocabulary: int = 10_000,
    width: int = 64,
    heads: int = 4,
    layers: int = 2,
    dropout: float = 0.1,
) -> nn.Module:
    """Small transformer encoder for sentences of token ids, where id 0 is padding."""
    divides("text", "heads", heads, "width", width)
    length = _length("text", shape)
    return TextEncoder(length, classes, vocabulary, width, heads, layers, dropout)


def _length(model: str, shape: tuple[int, ...]) -> int:
    if len(shape) != 1:
        raise ValueError(
            f"{model} takes sequences of token ids of shape (length,), but an example of this data "
            f"has shape {shape}; try {'resnet8' if len(shape) == 3 else 'lstm'} or mlp"
        )
    return shape[0]
