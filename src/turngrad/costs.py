"""What a run costs, by the prices it was given.

In: prices of a million tokens, and counts of tokens. Out: money, in the unit of the prices. The service's bill is its own: a
prompt token that it had cached is counted at the full price here, and storage not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turngrad.config import TrainConfig


def price(config: TrainConfig, *, sampled: float, prefill: float, trained: float) -> float | None:
    """The price of so many tokens; a kind without a price counts as nothing. None where no price is given at all."""
    parts = [(config.price_sampled, sampled), (config.price_prefill, prefill), (config.price_trained, trained)]
    known = [rate * tokens / 1e6 for rate, tokens in parts if rate is not None]
    return sum(known) if known else None


def price_of_row(config: TrainConfig, row: Mapping[str, Any]) -> float | None:
    """The price of a step's or an evaluation's row of metrics.jsonl; a KL penalty reads every trained sequence once more."""
    trained = row.get("tokens/trained", 0.0) + row.get("tokens/masked", 0.0)
    reference = trained if config.kl_coef else 0.0
    return price(config, sampled=row["sampled_tokens"], prefill=row["prompt_tokens"] + reference, trained=trained)
