"""A small deterministic encoder for tests: counts of words, hashed into a few dimensions."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class WordEncoder:
    """Vectors of hashed word counts; equal texts have equal vectors, shared words bring vectors together."""

    identity = "words"

    def __init__(self, dimension: int = 64) -> None:
        self.dimension = dimension
        self.encoded: list[str] = []

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.encoded.extend(texts)
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for word in re.findall(r"[a-z]+", text.lower()):
                row[zlib.crc32(word.encode()) % self.dimension] += 1
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors / np.where(lengths > 0, lengths, 1)
