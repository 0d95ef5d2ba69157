"""Quality of a language model: perplexity and bits per byte under a named protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from experiments import stats
from experiments.parts.readings import reading
from experiments.protocols import Metric, MetricDefinition, Observations
from experiments.records import Measurement
from experiments.stats import Undefined

PERPLEXITY = MetricDefinition(
    name="perplexity",
    title="Perplexity",
    unit="",
    higher_is_better=False,
    definition="exp(-sum log p / scored tokens), natural logarithm; the protocol is in the note.",
    source="Jelinek et al. (1977).",
    group="quality",
)
RATIO = MetricDefinition(
    name="perplexity_ratio",
    title="Perplexity to the baseline's",
    unit="x",
    higher_is_better=False,
    definition="Perplexity of the candidate over that of the baseline on the same tokens; above 1 is worse.",
    source="PPL(Q)/PPL(base) of llama.cpp's perplexity tool.",
    group="quality",
)
BITS = MetricDefinition(
    name="bits_per_byte",
    title="Bits per byte",
    unit="bits/byte",
    higher_is_better=False,
    definition="-sum log p / (bytes of the scored text x ln 2); comparable between tokenizers.",
    source="Gao et al., The Pile, arXiv:2101.00027, section 3.1.",
    group="quality",
)


class Perplexity(Metric):
    """How well the model predicts the evaluation text; whole windows are resampled for the intervals."""

    definitions: ClassVar[tuple[MetricDefinition, ...]] = (PERPLEXITY, RATIO, BITS)
    tasks: ClassVar[frozenset[str]] = frozenset({"text-generation"})

    def measure(self, seen: Observations) -> list[Measurement]:
        """Every scored token counts once; padding never does."""
        mine, seed = seen.candidate.token_log_probs, seen.spec.seed
        if mine is None or len(mine) == 0:
            missing = Undefined("no text was scored")
            return [reading(definition, missing) for definition in self.definitions]
        expected = seen.pack.get("n_tokens")
        if expected is not None and int(expected) != len(mine):
            wrong = Undefined(f"{len(mine):,} tokens were scored, but the protocol has {int(expected):,}")
            return [reading(definition, wrong) for definition in self.definitions]
        lengths: Sequence[int] | None = seen.pack.get("window_tokens")
        note, n = protocol(seen), len(mine)
        theirs = mine if seen.is_baseline and seen.baseline is None else None
        if seen.baseline is not None:
            theirs = seen.baseline.token_log_probs
        ratio = (
            Undefined("the baseline's scores are not there")
            if theirs is None
            else stats.perplexity_ratio(mine, theirs, lengths, seed)
        )
        bits = stats.bits_per_byte(mine, int(seen.pack.get("n_bytes") or 0), lengths, seed)
        return [
            reading(PERPLEXITY, stats.perplexity(mine, lengths, seed), n=n, note=note),
            reading(RATIO, ratio, n=n, note=note),
            reading(BITS, bits, n=n, note=note),
        ]


def protocol(seen: Observations) -> str:
    """The protocol in words: windows, dataset and tokenizer."""
    parts = [str(seen.pack["protocol"])] if seen.pack.get("protocol") else []
    for key, word in (("dataset_sha256", "dataset"), ("tokenizer_sha256", "tokenizer")):
        if seen.pack.get(key):
            parts.append(f"{word} {str(seen.pack[key])[:12]}")
    return "; ".join(parts) or "protocol not stated"
