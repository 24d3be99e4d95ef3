"""Continuous batching over all open completions of one set of weights.

In: completion requests, at any time. Out: each request's tokens with raw and sampling logprobs, through its callback.
One `step` adds a token to every running sequence and a bounded chunk of prompt to those still being read, in one forward
pass without padding. Invariant: what a request gets does not depend on what else runs, beyond rounding; a seeded request
draws the same uniforms whatever its batch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from turngrad.local.decoder import CausalLM
from turngrad.local.kvcache import CacheAttention, KVCache, Shared, Slot
from turngrad.local.sampling import draw, widest
from turngrad.local.stops import Stopper, StopTable
from turngrad.local.wire import Completion

_WAIT_FOR = 16
"""A request waits for a prompt being read, a step or two, if that will save it at least this many tokens."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A finished completion. `logprobs` are the model's own, `sampling_logprobs` after temperature and filters.

    With echo, `prompt_logprobs` aligns to the prompt, its first entry None.
    """

    output_ids: list[int]
    logprobs: list[float]
    sampling_logprobs: list[float]
    finish_reason: str
    text: str
    cached_tokens: int
    prompt_logprobs: list[float | None] | None
    seconds: float


@dataclass(eq=False)
class Request:
    """One completion in flight. `done` is called once, in the worker's thread, with the result or the error."""

    body: Completion
    done: Callable[[Sampled | Exception], None]
    uniform: np.ndarray
    stopper: Stopper
    submitted: float = field(default_factory=time.monotonic)
    cancelled: bool = False
    slot: Slot | None = None
    cached: int = 0
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    sampling_logprobs: list[float] = field(default_factory=list)
    prompt_logprobs: list[float | None] | None = None

    @property
    def unread(self) -> int:
        """Prompt tokens whose keys and values are not computed yet."""
        return max(0, len(self.body.prompt) - (len(self.slot.tokens) if self.slot is not None else 0))


class Sampler:
    """All open completions of one frozen model."""

    def __init__(
        self,
        model: CausalLM,
        cache: KVCache,
        stops: StopTable,
        device: torch.device,
        *,
        max_running: int = 64,
        chunk_tokens: int = 512,
    ) -> None:
        self._model, self.cache, self.stops, self._device = model, cache, stops, device
        self._max_running, self._chunk_tokens = max_running, chunk_tokens
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._entropy = np.random.default_rng()

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running)

    def submit(self, body: Completion, done: Callable[[Sampled | Exception], None]) -> Request:
        """Queues a request. Raises ValueError for stop strings without a tokenizer."""
        rng = self._entropy if body.seed is None else np.random.default_rng(body.seed % 2**64)
        request = Request(body, done, rng.random(max(body.max_tokens, 1)), Stopper(self.stops, body.stop))
        self._waiting.append(request)
        return request

    def fail_all(self, error: Exception) -> None:
        """Ends every open request with `error`."""
        for request in [*self._running, *self._waiting]:
            request.done(error)
        self._running.clear()
        self._waiting.clear()
        for slot in self.cache.slots:
            slot.busy = False
            self.cache.release(slot)

    # -- one step -----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def step(self) -> None:
        """One forward pass over everything that can advance."""
        self._drop_cancelled()
        self._admit()
        decoding = [r for r in self._running if not r.unread]
        decoding.sort(key=_slot_index)
        chunks = self._chunks(room=self._chunk_tokens)
        if not decoding and not chunks:
            return
        tokens = [r.output_ids[-1] for r in decoding]
        positions = [len(_slot(r).tokens) for r in decoding]
        keep = list(range(len(decoding)))
        scored: list[Request] = list(decoding)
        echoes: list[tuple[Request, int, int]] = []
        for request, length in chunks:
            start = len(_slot(request).tokens)
            if request.body.echo:
                echoes.append((request, len(keep), length))
                keep.extend(range(len(tokens), len(tokens) + length))
            if length == request.unread and request.body.max_tokens:
                keep.append(len(tokens) + length - 1)
                scored.append(request)
            tokens.extend(request.body.prompt[start : start + length])
            positions.extend(range(start, start + length))
        attention = CacheAttention(self.cache, [_slot(r) for r in decoding], [(_slot(r), n) for r, n in chunks])
        logits = self._model(self._tensor(tokens), self._tensor(positions), attention, self._tensor(keep))
        for request in decoding:
            _slot(request).tokens.append(request.output_ids[-1])
        for request, start, length in echoes:
            self._score_prompt(request, logits[start : start + length])
        finished_prompts = {id(r) for r, length in chunks if length == r.unread}
        for request, length in chunks:
            done = len(_slot(request).tokens)
            _slot(request).tokens.extend(request.body.prompt[done : done + length])
        rows = self._scored_rows(len(decoding), echoes, keep, logits)
        if scored:
            self._draw(scored, rows)
        self._finish(finished_prompts)

    def _scored_rows(self, decoding: int, echoes: list[tuple[Request, int, int]], keep: list[int], logits: Tensor) -> Tensor:
        if not echoes:
            return logits
        echoed = {row for _, start, length in echoes for row in range(start, start + length)}
        return logits[[row for row in range(len(keep)) if row not in echoed]]

    def _tensor(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

    def _score_prompt(self, request: Request, logits: Tensor) -> None:
        """Logprobs of the prompt tokens that follow each position of this chunk."""
        start, prompt = len(_slot(request).tokens), request.body.prompt
        following = prompt[start + 1 : start + 1 + len(logits)]
        logprobs = logits[: len(following)].log_softmax(-1).gather(1, self._tensor(following).unsqueeze(1))
        if request.prompt_logprobs is None:
            request.prompt_logprobs = [None]
        request.prompt_logprobs.extend(logprobs.squeeze(1).tolist())

    def _draw(self, scored: list[Request], logits: Tensor) -> None:
        bodies = [r.body for r in scored]
        temperature = torch.tensor([b.temperature for b in bodies], device=self._device)
        uniform = torch.tensor([float(r.uniform[len(r.output_ids)]) for r in scored], dtype=widest(self._device)).to(self._device)
        drawn = draw(logits, temperature, [b.top_k for b in bodies], [b.top_p for b in bodies], uniform)
        for request, token, raw, sampled in zip(scored, *(x.tolist() for x in drawn), strict=True):
            request.output_ids.append(token)
            request.logprobs.append(raw)
            request.sampling_logprobs.append(sampled)

    def _finish(self, finished_prompts: set[int]) -> None:
        still = []
        for request in self._running:
            reason = None
            if request.output_ids and not request.unread:
                if request.stopper.ends(request.output_ids):
                    reason = "stop"
                elif len(request.output_ids) >= request.body.max_tokens:
                    reason = "length"
            elif id(request) in finished_prompts and not request.body.max_tokens:
                reason = "length"
            if reason is None:
                still.append(request)
            else:
                self._close(request, reason)
        self._running = still

    def _close(self, request: Request, reason: str) -> None:
        slot = _slot(request)
        slot.busy = False
        self.cache.touch(slot)
        now = time.monotonic()
        request.done(
            Sampled(
                output_ids=request.output_ids,
                logprobs=request.logprobs,
                sampling_logprobs=request.sampling_logprobs,
                finish_reason=reason,
                text=self.stops.text(request.output_ids),
                cached_tokens=request.cached,
                prompt_logprobs=request.prompt_logprobs,
                seconds=now - request.submitted,
            )
        )

    # -- admission ----------------------------------------------------------------------------------------------------

    def _drop_cancelled(self) -> None:
        for request in self._running:
            if request.cancelled:
                _slot(request).busy = False
        self._running = [r for r in self._running if not r.cancelled]
        if any(r.cancelled for r in self._waiting):
            self._waiting = deque(r for r in self._waiting if not r.cancelled)

    def _chunks(self, room: int) -> list[tuple[Request, int]]:
        chunks = []
        for request in self._running:
            if request.unread and room:
                length = min(request.unread, room)
                room -= length
                chunks.append((request, length))
        return chunks

    def _admit(self) -> None:
        held: list[Request] = []
        while self._waiting and len(self._running) < self._max_running:
            request = self._waiting.popleft()
            admitted = self._place(request)
            if not admitted:
                held.append(request)
        self._waiting.extendleft(reversed(held))

    def _place(self, request: Request) -> bool:
        prompt = request.body.prompt
        source, common = self._best_source(request)
        if self._better_soon(prompt, common):
            return False
        slot = self._continue(request, source, common)
        if slot is None:
            slot = self.cache.free_slot() if source is None else self._free_other_than(source)
            if slot is None:
                return False
            if source is not None and common:
                self.cache.adopt(slot, source, common)
        if not self.cache.reserve(len(prompt) + request.body.max_tokens - slot.base):
            self.cache.release(slot)
            if self._running or not self.cache.shrink_to(len(prompt) + request.body.max_tokens):
                return False
            slot = self.cache.slots[0]
        slot.busy, slot.cache_key = True, request.body.cache_key
        self.cache.touch(slot)
        request.slot = slot
        request.cached = len(slot.tokens)
        self._running.append(request)
        return True

    def _free_other_than(self, source: Slot | Shared) -> Slot | None:
        """A free slot that is not the one about to be read from."""
        if not isinstance(source, Slot) or source.busy:
            return self.cache.free_slot()
        source.busy = True
        slot = self.cache.free_slot()
        source.busy = False
        return slot

    def _continue(self, request: Request, source: Slot | Shared | None, common: int) -> Slot | None:
        """The idle slot this prompt extends (or, within its own episode, rewrites the end of), cut to the common part."""
        if not isinstance(source, Slot) or source.busy or common < source.base:
            return None
        own = request.body.cache_key is not None and source.cache_key == request.body.cache_key
        if common < len(source.tokens) and not own:
            return None
        self.cache.truncate(source, common)
        return source

    def _best_source(self, request: Request) -> tuple[Slot | Shared | None, int]:
        """What holds the longest beginning of the prompt; at least one prompt token is left to compute."""
        prompt, key = request.body.prompt, request.body.cache_key
        limit = 0 if request.body.echo else len(prompt) - 1
        best: Slot | Shared | None = None
        longest = 0
        for slot in self.cache.slots:
            if key is not None and slot.cache_key == key and not slot.busy:
                common = min(common_prefix(slot.tokens, prompt), limit)
                if common == len(slot.tokens) and common:
                    return slot, common
        sources: list[Slot | Shared] = [*self.cache.shared, *self.cache.slots]
        for source in sources:
            if min(len(source.tokens), limit) <= longest:
                continue
            common = min(common_prefix(source.tokens, prompt), limit)
            if common > longest:
                best, longest = source, common
        return best, longest

    def _better_soon(self, prompt: list[int], common: int) -> bool:
        """Whether a prompt being read now will cover much more of this one than anything does yet."""
        for other in self._running:
            if other.unread and len(_slot(other).tokens) < len(other.body.prompt):
                soon = min(common_prefix(other.body.prompt, prompt), len(prompt) - 1)
                if soon >= common + _WAIT_FOR and soon > len(_slot(other).tokens):
                    return True
        return False


def common_prefix(a: list[int], b: list[int]) -> int:
    """Length of the longest common beginning."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _slot(request: Request) -> Slot:
    if request.slot is None:
        raise RuntimeError("the request runs without a slot")
    return request.slot


def _slot_index(request: Request) -> int:
    return _slot(request).index
