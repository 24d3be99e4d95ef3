"""Episodes as pages for the browser: one page per episode file, compressed, within a budget of bytes.

In: a run's episode files. Out: `Page`s whose data is raw deflate over one JSON line per episode, and one vocabulary of token
texts that all pages share. Where not everything fits, each page keeps its extremes first (best, worst, failed, longest, most
bad calls), then one attempt after another of every task; where not even that fits for every step, the kept steps are spread
over the run, the first and the last among them.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from turngrad.episodes import Episode, Turn
from turngrad.report.blocks import blocks
from turngrad.report.decode import Decoder
from turngrad.report.folder import EpisodeFile
from turngrad.report.training import Training
from turngrad.transcript import printable

MAX_TEXT = 4000
"""Characters shown of one text beside the tokens (a call's result, an error): the tokens hold all that the model read."""

PAGE_BYTES = 64 * 1024
"""What a page may take although its even share of the budget is less."""


@dataclass(slots=True)
class Vocabulary:
    """Every (id, text) that occurs, once. Tokens of episodes are places in `entries`."""

    entries: list[tuple[int, str]] = field(default_factory=list)
    _places: dict[tuple[int, str], int] = field(default_factory=dict)
    bytes: int = 0

    def places(self, ids: Sequence[int], pieces: Sequence[str]) -> list[int]:
        found = []
        for entry in zip(ids, pieces, strict=True):
            place = self._places.get(entry)
            if place is None:
                place = self._places[entry] = len(self.entries)
                self.entries.append(entry)
                text = json.dumps(entry)
                # As `page.script_json` writes it.
                self.bytes += len(text) + 5 * sum(map(text.count, "<>&"))
            found.append(place)
        return found


@dataclass(frozen=True, slots=True)
class Page:
    """The kept episodes of one file, of `total`. `data` is raw deflate in base64, or empty where nothing was kept."""

    file: EpisodeFile
    kept: int
    total: int
    data: str


class PageWriter:
    """Writes pages until `budget` bytes of base64 and vocabulary are used."""

    def __init__(self, budget: int) -> None:
        self.vocabulary = Vocabulary()
        self._left = budget

    def write(
        self, file: EpisodeFile, episodes: Sequence[Episode], training: Sequence[Training], decoder: Decoder, pages_left: int
    ) -> Page:
        """The page of one file, in its even share of what is left for `pages_left` pages, or in PAGE_BYTES if that is more."""
        left = self._left - self.vocabulary.bytes
        limit = min(left, max(left // pages_left, PAGE_BYTES))
        stream = zlib.compressobj(9, zlib.DEFLATED, -15)
        data, prompts, kept = b"", dict[bytes, int](), 0
        for index in ranked(episodes):
            line = self._line(index, episodes[index], training[index], decoder, prompts, kept)
            grown = stream.copy()
            more = grown.compress(line) + grown.flush(zlib.Z_SYNC_FLUSH)
            if (len(data) + len(more)) * 4 / 3 > limit:
                break
            stream, data, kept = grown, data + more, kept + 1
        text = base64.b64encode(data + stream.flush()).decode() if kept else ""
        self._left -= len(text)
        return Page(file, kept, len(episodes), text)

    def _line(
        self,
        index: int,
        episode: Episode,
        training: Training,
        decoder: Decoder,
        prompts: dict[bytes, int],
        place: int,
    ) -> bytes:
        turns = [
            self._turn(turn, trained, advantage, decoder)
            for turn, trained, advantage in zip(episode.turns, training.trained, training.advantages, strict=True)
        ]
        if turns:
            # The attempts at one task open with one prompt, which is most of a large model's episode.
            prompt = episode.turns[0].context_ids.tobytes()
            first = prompts.setdefault(prompt, place)
            if first != place:
                turns[0]["like"], turns[0]["context"] = first, []
        record = {
            "index": index,
            "task": printable(episode.task_id),
            "attempt": episode.attempt,
            "reward": episode.reward,
            "shaping": episode.shaping,
            "stop": episode.stop_reason.value,
            "excluded": episode.excluded,
            "error": None if episode.error is None else shown(episode.error),
            "info": {printable(str(key)): shown(_text(value)) for key, value in episode.info.items()},
            "snapshot": printable(episode.snapshot),
            "lag": episode.lag,
            "seconds": round(episode.seconds, 2),
            "advantage": training.advantage,
            "whyNot": training.why_not,
            "turns": turns,
        }
        return json.dumps(record, separators=(",", ":")).encode() + b"\n"

    def _turn(self, turn: Turn, trained: int, advantage: float, decoder: Decoder) -> dict[str, Any]:
        context = decoder.pieces(turn.context_ids)
        output = decoder.pieces(turn.output_ids)
        return {
            "context": self.vocabulary.places(turn.context_ids, context),
            "blocks": [[block.role, block.length] for block in blocks(context)],
            "output": self.vocabulary.places(turn.output_ids, output),
            "logprobs": [round(value, 3) if value == value else None for value in turn.logprobs],
            "trained": trained,
            "advantage": round(advantage, 4),
            "finish": printable(turn.finish_reason),
            "break": turn.segment_break and turn.segment_break.value,
            "userTurn": turn.user_turn,
            "untrainable": None if turn.untrainable is None else shown(turn.untrainable),
            "seconds": round(turn.seconds, 2),
            "cached": turn.cached_tokens,
            "calls": [
                {
                    "name": None if call.name is None else shown(call.name),
                    "arguments": shown(call.raw if call.arguments is None else _text(call.arguments)),
                    "result": shown(call.result),
                    "isError": call.is_error,
                    "bad": call.bad and call.bad.value,
                    "seconds": round(call.seconds, 3),
                }
                for call in turn.tool_calls
            ],
        }


def ranked(episodes: Sequence[Episode]) -> list[int]:
    """All indices, those to keep first: extremes, then first attempts, second attempts and so on."""
    if not episodes:
        return []
    indices = range(len(episodes))
    sound = [index for index in indices if episodes[index].excluded is None]
    rewards = {index: episodes[index].reward or 0.0 for index in sound}
    extremes = [
        *([max(sound, key=rewards.__getitem__), min(sound, key=rewards.__getitem__)] if sound else []),
        *[index for index in indices if episodes[index].excluded is not None][:1],
        max(indices, key=lambda index: episodes[index].sampled_tokens + episodes[index].context_tokens),
        max(indices, key=lambda index: sum(call.bad is not None for call in episodes[index].tool_calls)),
    ]
    seen: dict[str, int] = defaultdict(int)
    rounds = []
    for index in indices:
        rounds.append((seen[episodes[index].task_id], index))
        seen[episodes[index].task_id] += 1
    return list(dict.fromkeys([*extremes, *(index for _, index in sorted(rounds))]))


def spread_out(count: int) -> list[int]:
    """0 to count - 1 so that every beginning of the list is spread over the whole: the ends, the middle, the quarters, ..."""
    order = [0, count - 1] if count > 1 else [0] * count
    parts = 1
    while len(order) < count:
        parts *= 2
        for part in range(1, parts, 2):
            place = round(part * (count - 1) / parts)
            if place not in order:
                order.append(place)
    return order


def shown(text: str) -> str:
    """`text` safe to show, its middle left out where it is long."""
    if len(text) <= MAX_TEXT:
        return printable(text)
    half = MAX_TEXT // 2
    cut = f"\n[... {len(text) - 2 * half} of {len(text)} characters not shown ...]\n"
    return printable(text[:half]) + cut + printable(text[-half:])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
