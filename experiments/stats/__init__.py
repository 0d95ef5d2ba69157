"""Statistics of the engine: honest percentiles, intervals, paired ratios and comparisons of outputs.

NumPy only, so that the web process can import it. What cannot be said is a value too: functions return
:class:`Undefined` (or :class:`Insufficient`) with the reason instead of NaN or a number that misleads.
"""

from experiments.stats.blocks import block_percentile
from experiments.stats.bootstrap import (
    Estimate,
    mean,
    paired_difference,
    perplexity,
    perplexity_ratio,
    ratio_of_sums,
    windows,
)
from experiments.stats.divergence import (
    Columns,
    Divergence,
    cosine_rows,
    log_softmax,
    logits_divergence,
    shared_columns,
)
from experiments.stats.percentiles import percentile, percentile_interval, percentile_needs
from experiments.stats.proportions import mcnemar, proportion, proportion_difference
from experiments.stats.ratios import Ratio, ratio_of_medians, verdict
from experiments.stats.scores import bits_per_byte, f1_macro, spearman
from experiments.stats.undefined import Insufficient, Undefined

__all__ = [
    "Columns",
    "Divergence",
    "Estimate",
    "Insufficient",
    "Ratio",
    "Undefined",
    "bits_per_byte",
    "block_percentile",
    "cosine_rows",
    "f1_macro",
    "log_softmax",
    "logits_divergence",
    "mcnemar",
    "mean",
    "paired_difference",
    "percentile",
    "percentile_interval",
    "percentile_needs",
    "perplexity",
    "perplexity_ratio",
    "proportion",
    "proportion_difference",
    "ratio_of_medians",
    "ratio_of_sums",
    "shared_columns",
    "spearman",
    "verdict",
    "windows",
]
