"""The lexical ranker: BM25F of the issue's words against each function's name, classes, file, body and comments.

BM25F is Robertson and Zaragoza, "The Probabilistic Relevance Framework" (2009), section 3.6: term counts are
weighted and length-normalised per field before they saturate. The weights were tuned on real issues.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from xlocal.ranking.source import FunctionSource
from xlocal.ranking.text import Issue

FloatArray = NDArray[np.float64]

_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_a-zA-Z]+|\d+")
_STOPWORDS = """
a about above after again all also although am an and any are as at be because been before being below between both
but by can cannot could did do does doing down during each either else etc even ever few for from further get gets
getting had has have having he hence her here how however i if in instead into is isn it its itself just let like
may maybe me might more most must my no nor not now of off on once one only or other our out over own please quite
rather really same see seem seems shall she should since so some still such than that the their them then there
therefore these they this those though through thus to too under until up upon use used uses using very want was way
we well were what when where whether which while who why will with within without would yes yet you your

actual actually added behavior behaviour bug code current currently description details environment error example
expected fail fails fix fixed following happens hello hi installed issue last modified nan output patch problem
report reported reproduce result results steps sure system thank thanks think tried try trying version versions
work working works wrong

assert async await break class continue def del elif except false finally global import lambda none nonlocal pass
raise return self cls true yield py print
"""
STOPWORDS = frozenset(_STOPWORDS.split())


@dataclass(frozen=True, slots=True)
class Weights:
    """The tuned constants. Field weights multiply a term's count in that field; a field of weight 0 is not read."""

    k1: float = 2.5
    b: float = 0.7
    name: float = 6.0
    class_name: float = 5.0
    file: float = 2.0
    body: float = 1.0
    comments: float = 1.0
    docstring: float = 0.0
    title: float = 2.0
    constructor: float = 0.5
    length: float = 0.05


DEFAULT = Weights()


def terms(text: str) -> list[str]:
    """Lower-case terms of a text: each identifier whole and, when it has several, its parts; no stopwords."""
    return [term for match in _IDENTIFIER.finditer(text) for term in _split(match[0])]


@lru_cache(maxsize=1 << 16)
def _split(word: str) -> tuple[str, ...]:
    parts = [part.lower() for part in _PART.findall(word)]
    kept = [part for part in parts if len(part) > 1 and part not in STOPWORDS and not part.isdigit()]
    return (*kept, word.lower().strip("_")) if len(parts) > 1 else tuple(kept)


def query(issue: Issue, *, title: float = DEFAULT.title) -> dict[str, float]:
    """Weight of every term of the issue: per section the logarithm of its count, the title's times `title`."""
    sections: list[tuple[float, Sequence[str]]] = [(title, [issue.title]), (1.0, [issue.prose])]
    sections += [(1.0, texts) for texts in (issue.inline_code, issue.code_blocks, issue.tracebacks)]
    found: dict[str, float] = {}
    for weight, texts in sections:
        for term, count in Counter(term for text in texts for term in terms(text)).items():
            found[term] = found.get(term, 0.0) + weight * math.log1p(count)
    return found


def scores(issue: Issue, sources: Sequence[FunctionSource], *, weights: Weights = DEFAULT) -> FloatArray:
    """Score of each function, shape `(n,)`: BM25F, standardised (mean 0, deviation 1), plus small priors.

    Zeros (with priors) when the issue shares no term with any function.
    """
    wanted = query(issue, title=weights.title)
    if not sources:
        return np.zeros(0)
    column = {term: i for i, term in enumerate(sorted(wanted))}
    counts = np.zeros((len(sources), len(column)))
    for weight, texts in _fields(sources, weights):
        counts += weight * _field_counts(texts, column, weights.b)
    holders = np.count_nonzero(counts, axis=0)
    idf = np.log1p((len(sources) - holders + 0.5) / (holders + 0.5))
    importance = np.array([wanted[term] for term in column]) * idf
    return standardised((counts / (weights.k1 + counts)) @ importance) + _priors(sources, weights)


def standardised(values: FloatArray) -> FloatArray:
    """Values with mean 0 and deviation 1; all zero when they do not differ."""
    spread = values.std() if len(values) else 0.0
    return (values - values.mean()) / spread if spread > 1e-12 else np.zeros(len(values))


def _fields(sources: Sequence[FunctionSource], weights: Weights) -> list[tuple[float, list[str]]]:
    fields = [
        (weights.name, [source.name for source in sources]),
        (weights.class_name, [" ".join(source.class_names) for source in sources]),
        (weights.file, [source.function.path.removesuffix(".py") for source in sources]),
        (weights.body, [source.body for source in sources]),
        (weights.comments, [source.comments for source in sources]),
        (weights.docstring, [source.docstring for source in sources]),
    ]
    return [(weight, texts) for weight, texts in fields if weight]


def _field_counts(texts: list[str], column: dict[str, int], b: float) -> FloatArray:
    """Length-normalised counts of the wanted terms in one field, shape `(functions, terms)`."""
    counts = np.zeros((len(texts), len(column)))
    lengths = np.zeros(len(texts))
    for row, text in enumerate(texts):
        found = terms(text)
        lengths[row] = len(found)
        for term in found:
            if term in column:
                counts[row, column[term]] += 1
    mean = lengths.mean()
    return counts / (1 - b + b * lengths / mean)[:, None] if mean else counts


def _priors(sources: Sequence[FunctionSource], weights: Weights) -> FloatArray:
    """Longer functions hold more faults; constructors are named by every issue that builds an object."""
    lines = np.log1p([sum(end - start + 1 for start, end in source.ranges) for source in sources])
    constructor = np.array([source.name == "__init__" for source in sources])
    return weights.length * standardised(lines) - weights.constructor * constructor
