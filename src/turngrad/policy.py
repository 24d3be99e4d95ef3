"""Sampling from one snapshot of the weights, through the Fireworks SDK.

In: exact prompt ids and a token limit. Out: the sampler's own ids with their sampling logprobs, one finite logprob per id
(C4), or an error that says whose fault it is: a bad sample or an unreachable sampler costs one rollout, a refused key ends
the run. Nothing here blocks the event loop, and every wait has an end.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from turngrad.episodes import Failure
from turngrad.errors import RolloutError, RunError
from turngrad.redaction import redacted

if TYPE_CHECKING:
    from fireworks.training.sdk.sampling import DeploymentSampler, SampledCompletion

_BAD_SAMPLE_RETRIES = 2
_BAD_SAMPLE_PAUSE = 0.5
"""Seconds before the first of them, twice that before the second."""
_CONFLICT = 409
"""A status that passes: the SDK asks again after it everywhere but in sampling."""
_FINISH_REASONS = ("stop", "length", "tool_calls")
_LARGEST_ID = 2**31 - 1
"""Ids are kept as 4-byte ints from here on."""


class _UnusableAnswer(Exception):
    """An answer that the SDK gives up on at once and that another try may better."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion: `logprobs` aligns to `output_ids`; `finish_reason` is "stop" or "length"; `seconds` is wall time."""

    output_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    cached_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """`temperature` 1 and `top_p` 1 sample the policy itself, which is what the loss assumes. `timeout` is in seconds."""

    temperature: float = 1.0
    top_p: float = 1.0
    timeout: float = 600.0


class Policy:
    """One snapshot of the weights. `snapshot` is its path on the service; `stop` are the model family's stop strings."""

    def __init__(
        self, sampler: DeploymentSampler, snapshot: str, stop: list[str], settings: SamplingSettings, *, owner: Any = None
    ) -> None:
        self.snapshot = snapshot
        self._sampler = sampler
        # The SDK's sampling client closes its sampler when it is collected: it lives as long as the policy.
        self._owner = owner
        self._stop = list(stop)
        self._settings = settings

    async def sample(self, prompt_ids: list[int], max_tokens: int, *, cache_key: str, seed: int | None = None) -> Sample:
        """Sample at most `max_tokens` tokens after `prompt_ids`.

        `cache_key` is one per episode, so that the service can reuse the prefix; `seed` makes an engine that honours it
        repeat itself.

        Raises:
            RolloutError: no usable sample within the retry budget and time (class `sampler`).
            RunError: the service refuses the key or the payment.
        """
        problem = ""
        for attempt in range(1 + _BAD_SAMPLE_RETRIES):
            await asyncio.sleep(attempt * _BAD_SAMPLE_PAUSE)
            started = time.monotonic()
            try:
                completion, cached = await self._request(prompt_ids, max_tokens, cache_key, seed)
            except _UnusableAnswer as error:
                problem = str(error)
                continue
            problem = _problem(completion, prompt_ids, max_tokens)
            if not problem:
                return Sample(
                    output_ids=completion.full_tokens[completion.prompt_len :],
                    logprobs=[float(value) for value in completion.sampling_logprobs or ()],  # type: ignore[arg-type]
                    finish_reason="length" if completion.finish_reason == "length" else "stop",
                    cached_tokens=cached,
                    seconds=time.monotonic() - started,
                )
        raise RolloutError(Failure.SAMPLER, f"{1 + _BAD_SAMPLE_RETRIES} unusable samples in a row: {problem}")

    def close(self) -> None:
        """Release the connections of this snapshot; requests in flight end first."""
        if self._owner is not None:
            self._owner.close()

    async def _request(
        self, prompt_ids: list[int], max_tokens: int, cache_key: str, seed: int | None
    ) -> tuple[SampledCompletion, int]:
        options: dict[str, Any] = {"logprobs": True, "top_p": self._settings.top_p, "top_k": 0}
        if seed is not None:
            options["seed"] = seed
        try:
            async with asyncio.timeout(self._settings.timeout):
                result = await self._sampler.sample_with_prompt_tokens_result(
                    prompt_ids,
                    max_tokens=max_tokens,
                    temperature=self._settings.temperature,
                    stop=self._stop,
                    prompt_cache_key=cache_key,
                    http_timeout=self._settings.timeout,
                    **options,
                )
        except TimeoutError as error:
            limit = f"--sample-timeout {self._settings.timeout:g} s"
            raise RolloutError(Failure.SAMPLER, f"no sample within {limit} ({len(prompt_ids)} prompt tokens)") from error
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            if status in (401, 403):
                raise RunError(f"the service refuses the API key (HTTP {status} on sampling); check FIREWORKS_API_KEY") from error
            if status == 402:
                raise RunError("the service asks for payment (HTTP 402 on sampling); the account has no credit left") from error
            said = f"HTTP {status} on a prompt of {len(prompt_ids)} tokens: {redacted(error.response.text)[:300]}"
            raise (_UnusableAnswer(said) if status == _CONFLICT else RolloutError(Failure.SAMPLER, said)) from error
        except (httpx.HTTPError, RuntimeError, ValueError) as error:
            said = f"{type(error).__name__}: {' '.join(redacted(str(error)).split())[:300]}"
            # After several attempts the SDK has tried for minutes; after one, the stream was not what it should be.
            tried = getattr(error, "attempts", 1) > 1
            raise (RolloutError(Failure.SAMPLER, said) if tried else _UnusableAnswer(said)) from error
        if len(result.completions) != 1:
            raise RolloutError(Failure.SAMPLER, f"asked for one completion, got {len(result.completions)}")
        metrics = result.server_metrics
        return result.completions[0], (metrics.cached_prompt_tokens or 0) if metrics is not None else 0


def _problem(completion: SampledCompletion, prompt_ids: list[int], max_tokens: int) -> str:
    """What makes a completion unusable for training, or an empty string."""
    output_ids = completion.full_tokens[completion.prompt_len :]
    logprobs = completion.sampling_logprobs
    if completion.full_tokens[: completion.prompt_len] != prompt_ids:
        return "the prompt came back changed"
    if completion.finish_reason not in _FINISH_REASONS:
        return f"finish_reason {completion.finish_reason!r}"
    if len(output_ids) > max_tokens:
        return f"{len(output_ids)} tokens for a limit of {max_tokens}"
    if not all(isinstance(token_id, int) and 0 <= token_id <= _LARGEST_ID for token_id in output_ids):
        return "a token id that is no id"
    if logprobs is None or len(logprobs) != len(output_ids):
        return f"{0 if logprobs is None else len(logprobs)} logprobs for {len(output_ids)} tokens"
    if any(value is None or not math.isfinite(value) for value in logprobs):
        return "a sampled token without a finite logprob"
    return ""
