"""Batch: graded episodes become training datums. The mask and the shift live here and nowhere else.

In: the episodes of each group with their advantages. Out: a `Batch` of `Segment`s, and from it the SDK's datums.
Invariants:

- C1: under the mask lie the sampler's ids, turn by turn, in order; nothing is tokenized here.
- C2: for a segment t of n tokens the model reads t[:-1]; targets, logprobs and advantages have n - 1 entries aligned to t[1:].
- C3: everything else (prompts, tool results, template scaffold, turns that may not train) has advantage 0 and logprob 0.
  The service takes no mask key: all of importance_sampling, ppo and cispo multiply by the advantage, so 0 removes a token.
- C5: a turn that extends the one before joins its segment; a turn with `segment_break` opens the next.
- C6: an episode weighs the same however many segments it has.

An episode has one advantage, or with credit by user turn (`turngrad.advantages`) one per turn; the mask is the same.

Normalisation. Write A_e for the advantage of episode e, T_e for its trained tokens over all its segments, M for the episodes
of one optimizer step, a_t for the advantage sent with token t and g_t for that token's gradient at advantage 1. The service
sums a_t g_t and divides by what `grad_accumulation_normalization` names:

    --normalize   a_t             optim_step divides by           gradient
    token         A_e             num_loss_tokens (N)             sum_e A_e sum_t g_t / N: every token weighs the same
    episode       A_e / (T_e M)   none                            mean over e of A_e times the mean over t of g_t
    none          A_e             none                            sum_e A_e sum_t g_t

N counts the tokens whose advantage is not zero; M counts every episode of the step, one exactly at its baseline too. None of
the three depends on how an episode's tokens are spread over segments: `num_sequences`, which counts datums, would, and is
not used. A step over part of a batch (`Batch.split`) has an N and M of its own.

A batch costs time and memory linear in the tokens it sends: each segment is assembled once from its turns' own arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self, cast, get_args

import numpy as np
from fireworks.training.sdk import Datum, EncodedTextChunk, ModelInput, TensorData
from numpy.typing import NDArray

from turngrad.advantages import GroupAdvantages
from turngrad.episodes import Episode, Turn

Normalize = Literal["token", "episode", "none"]

_LARGEST = float(np.finfo(np.float32).max)


class TokenIds(array):
    """The ids of a chunk as an array of 4-byte ints: a sequence of ints that is not a list of objects.

    One argument, ints or their bytes, because pydantic rebuilds a sequence of this type from a list where it validates one.
    """

    def __new__(cls, ids: Iterable[int] | bytes) -> Self:
        return cast(Self, super().__new__(cls, "i", ids))


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """One training sequence: turns of one episode of which each extends the one before.

    `ids` are its n tokens (int32), cut after the last trained one. `target_mask` (bool) and `target_logprobs` (float32, the
    sampler's, 0 off the mask) have n - 1 entries aligned to `ids[1:]`; `trained` counts the mask. `episode` is the index into
    `Batch.episodes`. `advantages` (float32, aligned to `ids[1:]`, 0 off the mask) are the episode's or its turns', `weight` what
    the normalisation multiplies them by, and `penalty` (float32, aligned likewise) what a KL term takes off them.
    """

    ids: NDArray[np.int32]
    target_mask: NDArray[np.bool_]
    target_logprobs: NDArray[np.float32]
    trained: int
    episode: int
    advantages: NDArray[np.float32]
    weight: float = 1.0
    penalty: NDArray[np.float32] | None = None

    @property
    def target_advantages(self) -> NDArray[np.float32]:
        """a_t as the service gets it: float32, n - 1 entries aligned to `ids[1:]`, 0 off the mask."""
        advantages = self.advantages
        if self.penalty is not None:
            advantages = np.where(self.target_mask, advantages - self.penalty, np.float32(0))
        return advantages if self.weight == 1.0 else (advantages * self.weight).astype(np.float32)

    @property
    def loss_mask(self) -> NDArray[np.bool_]:
        """Where the loss has a gradient (bool, n - 1): what the service counts as loss tokens. A part of `target_mask`."""
        return self.target_mask & (self.target_advantages != 0)

    @property
    def has_gradient(self) -> bool:
        """False where every advantage is zero: such a segment costs the price of its tokens and changes nothing."""
        return self.penalty is not None or bool(self.advantages.any())

    def datum(self) -> Datum:
        """The segment as the SDK's wire object.

        Everything in it is a compact array until the SDK writes the request, on a thread of its own. The ids are ints already,
        so pydantic's check of every one is left out: it costs more than all the rest.
        """
        chunk = EncodedTextChunk.model_construct(tokens=TokenIds(self.ids[:-1].tobytes()), type="encoded_text")
        shape = [len(self.ids) - 1]
        return Datum(
            model_input=ModelInput.model_construct(chunks=[chunk]),
            loss_fn_inputs={
                "target_tokens": TensorData(self.ids[1:].astype(np.int64), "int64", shape),
                "logprobs": TensorData(self.target_logprobs, "float32", shape),
                "advantages": TensorData(self.target_advantages, "float32", shape),
            },
        )


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What one update trains on.

    `episodes` are those with at least one trained token, `segments` theirs in order. `untrained` counts sound episodes
    of training groups that are left out because no turn of theirs may train; `cut_tokens` counts the sampled tokens beyond
    `max_seq_len`, whose gradient is lost.
    """

    episodes: tuple[Episode, ...]
    segments: tuple[Segment, ...]
    normalize: Normalize
    untrained: int = 0
    cut_tokens: int = 0

    @property
    def grad_accumulation_normalization(self) -> Literal["num_loss_tokens", "none"]:
        """What `optim_step` must be told for `normalize` to mean what the module docstring says."""
        return "num_loss_tokens" if self.normalize == "token" else "none"

    @property
    def sent(self) -> tuple[Segment, ...]:
        """The segments that go to the service, in the order of `datums`: those with any gradient."""
        return tuple(segment for segment in self.segments if segment.has_gradient)

    def datums(self) -> list[Datum]:
        """One datum per segment with any gradient."""
        return [segment.datum() for segment in self.sent]

    def split(self, parts: int) -> list[Batch]:
        """At most `parts` batches of whole episodes with about equally many trained tokens, none empty.

        Each has the weights of an optimizer step of its own. Which episode goes where depends on the batch alone. Raises
        ValueError unless `parts` is positive.
        """
        if parts < 1:
            raise ValueError(f"--minibatches {parts}; it must be 1 or more")
        if parts == 1:
            return [self]
        trained = _trained_tokens(len(self.episodes), self.segments)
        loads, shares = [0] * parts, [list[int]() for _ in range(parts)]
        for episode in sorted(range(len(self.episodes)), key=lambda index: (-trained[index], index)):
            lightest = loads.index(min(loads))
            loads[lightest] += trained[episode]
            shares[lightest].append(episode)
        return [self._part(sorted(share)) for share in shares if share]

    def _part(self, share: list[int]) -> Batch:
        place = {episode: index for index, episode in enumerate(share)}
        segments = [replace(segment, episode=place[segment.episode]) for segment in self.segments if segment.episode in place]
        return Batch(
            episodes=tuple(self.episodes[episode] for episode in share),
            segments=_weighted(len(share), segments, self.normalize),
            normalize=self.normalize,
        )


def build_batch(
    groups: Sequence[tuple[Sequence[Episode], GroupAdvantages]], *, normalize: Normalize, max_seq_len: int | None = None
) -> Batch:
    """The batch of all groups that train something.

    A segment of more than `max_seq_len` tokens is cut there: what stays is exact, since no token depends on a later one.
    Raises ValueError when a group's advantages are not parallel to its episodes, when an advantage does not fit float32, or
    when a sampled token has nothing before it.
    """
    if normalize not in get_args(Normalize):
        raise ValueError(f"--normalize {normalize!r} is none of {', '.join(get_args(Normalize))}")
    episodes: list[Episode] = []
    segments: list[Segment] = []
    untrained = cut_tokens = 0
    for episode, advantages in _training_episodes(groups):
        before = len(segments)
        for start, turns in _stretches(episode.turns):
            segment, cut = _merge(turns, advantages[start : start + len(turns)], max_seq_len, len(episodes), episode)
            cut_tokens += cut
            if segment is not None:
                segments.append(segment)
        if len(segments) > before:
            episodes.append(episode)
        else:
            untrained += 1
    return Batch(tuple(episodes), _weighted(len(episodes), segments, normalize), normalize, untrained, cut_tokens)


def _training_episodes(
    groups: Sequence[tuple[Sequence[Episode], GroupAdvantages]],
) -> Iterator[tuple[Episode, list[float]]]:
    """The episodes that train, each with the advantages of its turns."""
    for members, group in groups:
        if len(members) != len(group.advantages):
            raise ValueError(f"a group of {len(members)} episodes came with {len(group.advantages)} advantages")
        if group.reason is not None:
            continue
        for member, episode in enumerate(members):
            if group.advantages[member] is None:
                continue
            advantages = group.per_turn(member, episode)
            for advantage in advantages:
                if not abs(advantage) <= _LARGEST:
                    raise ValueError(
                        f"episode {episode.attempt} of {episode.task_id} has advantage {advantage}, more than float32 holds; "
                        "keep rewards near 1, or use --advantage group-zscore"
                    )
            yield episode, advantages


def _stretches(turns: Sequence[Turn]) -> Iterator[tuple[int, Sequence[Turn]]]:
    """The turns cut before each that opens a segment (C5), each stretch with its place."""
    start = 0
    for index, turn in enumerate(turns):
        if index > start and turn.segment_break is not None:
            yield start, turns[start:index]
            start = index
    yield start, turns[start:]


def _merge(
    turns: Sequence[Turn], advantages: Sequence[float], max_seq_len: int | None, place: int, episode: Episode
) -> tuple[Segment | None, int]:
    """One segment of the turns, or None when none of its tokens trains; and the sampled tokens that the limit cut."""
    tokens = array("i")
    spans: list[tuple[int, Turn, float]] = []
    for turn, advantage in zip(turns, advantages, strict=True):
        tokens.extend(turn.context_ids)
        if turn.untrainable is None and len(turn.output_ids):
            spans.append((len(tokens), turn, advantage))
        tokens.extend(turn.output_ids)
    if not spans:
        return None, 0
    if spans[0][0] == 0:
        raise ValueError(
            f"episode {episode.attempt} of {episode.task_id} has a segment that begins with a sampled token: "
            "nothing predicts it; the first turn of a segment needs its whole prompt as context_ids"
        )

    last_start, last, _ = spans[-1]
    length = last_start + len(last.output_ids)
    if max_seq_len is not None:
        length = min(length, max_seq_len)
    ids = np.frombuffer(tokens, dtype=np.int32)[:length]
    mask = np.zeros(max(length - 1, 0), dtype=np.bool_)
    logprobs = np.zeros(max(length - 1, 0), dtype=np.float32)
    target_advantages = np.zeros(max(length - 1, 0), dtype=np.float32)
    trained = cut = 0
    for start, turn, advantage in spans:
        kept = min(len(turn.output_ids), max(length - start, 0))
        # Token i of the segment is target i - 1.
        mask[start - 1 : start - 1 + kept] = True
        logprobs[start - 1 : start - 1 + kept] = turn.logprobs[:kept]
        target_advantages[start - 1 : start - 1 + kept] = advantage
        trained += kept
        cut += len(turn.output_ids) - kept
    if trained == 0:
        return None, cut
    return Segment(ids, mask, logprobs, trained, place, target_advantages), cut


def _trained_tokens(episodes: int, segments: Sequence[Segment]) -> list[int]:
    """T_e: the trained tokens of each episode, over all its segments."""
    trained = [0] * episodes
    for segment in segments:
        trained[segment.episode] += segment.trained
    return trained


def _weighted(episodes: int, segments: Sequence[Segment], normalize: Normalize) -> tuple[Segment, ...]:
    """The segments with the weight that makes them one optimizer step over `episodes` episodes."""
    if normalize != "episode":
        return tuple(segments)
    trained = _trained_tokens(episodes, segments)
    return tuple(replace(segment, weight=1.0 / (trained[segment.episode] * episodes)) for segment in segments)
