"""What the starter policy is made of and from: the size of the model, the stages of its warm start, the flags of the script.

Plain settings: nothing here needs torch, so that `scripts/make_starter.py --help` answers at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from turngrad.local.models import BFCL_STARTER_FOLDER


@dataclass(frozen=True)
class Shape:
    """The size of the model. Heads have size 64."""

    layers: int = 4
    width: int = 256
    heads: int = 4
    kv_heads: int = 2
    feed_forward: int = 640


@dataclass(frozen=True)
class Schedule:
    """How long and how fast one stage learns. Tokens count all tokens of an episode, sampled or not.

    A stage ends after `tokens`, or after `minutes` where that comes first; the rates fall to zero towards either end.
    `batch_tokens` is one step's, over all workers.
    """

    tokens: int
    minutes: float | None = None
    batch_tokens: int = 4_096
    muon_rate: float = 0.02
    adam_rate: float = 3e-3
    warm_share: float = 0.02
    cool_share: float = 0.5


@dataclass(frozen=True)
class Stage:
    """Shares of what the policy learns from, and for how long. What the shares leave is training entries as they are.

    `generated` tasks are as long as BFCL's, `short` ones are generated with two turns of one call each. `haste` is the chance
    that a turn of an episode is taken for done before all its calls are made, which ends the episode.
    """

    schedule: Schedule
    generated: float
    substituted: float
    short: float = 0.0
    haste: float = 0.0


@dataclass(frozen=True)
class Options:
    """What to make and where to put it."""

    output_dir: Path = BFCL_STARTER_FOLDER
    """The model folder to write. The default is the packaged one."""
    vocab_size: int = 4_096
    """Entries of the tokenizer, at most."""
    shape: Shape = field(default_factory=Shape)
    first: Stage = field(default_factory=lambda: Stage(Schedule(tokens=980_000), generated=0.0, substituted=0.4))
    second: Stage = field(
        default_factory=lambda: Stage(
            Schedule(tokens=4_000_000, muon_rate=0.012, adam_rate=2e-3, cool_share=0.8), generated=0.6, substituted=0.3
        )
    )
    third: Stage = field(
        default_factory=lambda: Stage(
            Schedule(tokens=1_000_000, muon_rate=0.012, adam_rate=2e-3, cool_share=0.9), generated=0.75, substituted=0.25
        )
    )
    kept: float = 0.3
    """Weight of the state before the third stage in the mean of both: more knows more entries by heart."""
    last: Stage = field(
        default_factory=lambda: Stage(
            Schedule(tokens=600_000, muon_rate=0.008, adam_rate=1.2e-3, warm_share=0.05, cool_share=0.8),
            generated=0.2,
            substituted=0.3,
            short=0.4,
            haste=0.5,
        )
    )
    """From that mean on: episodes of a hasty policy, whose haste is what reinforcement learning can take away."""
    workers: int = 1
    """Processes that share each step; with more than one, give each a thread (OMP_NUM_THREADS=1)."""
    seed: int = 0
    """Seed of the initial weights and of the order of everything."""
    samples: int = 24
    """Samples of each training entry when the result is judged at temperature 1; of other tasks 4 at most."""
    pool: int = 16
    """Training entries to list in learnable.txt: those with most headroom (`turngrad.headroom`)."""
