"""The completions endpoint: one request in, one server-sent event with the whole completion out.

The SDK reads a stream to its end before it looks at it, so one event with every token costs the least. Invariant: a
client that goes away cancels its request; ids and logprobs in the answer are parallel.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import orjson

from turngrad.local.engine import Engine
from turngrad.local.sampler import Sampled
from turngrad.local.transport import Receive
from turngrad.local.wire import ApiError, Completion


async def sample(engine: Engine, snapshot: str | None, request: Completion, receive: Receive) -> Sampled | None:
    """Waits for the completion; None if the client left. Raises ApiError."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Sampled | Exception] = loop.create_future()

    def done(result: Sampled | Exception) -> None:
        loop.call_soon_threadsafe(_settle, future, result)

    cancel = engine.complete(snapshot, request, done)
    gone = asyncio.ensure_future(receive())
    try:
        await asyncio.wait((future, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not future.done():
            cancel()
    if not future.done():
        return None
    result = future.result()
    if isinstance(result, ValueError):
        raise ApiError(400, str(result))
    if isinstance(result, Exception):
        raise ApiError(500, f"{type(result).__name__}: {result}")
    return result


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def answer(request: Completion, result: Sampled, *, null_logprobs: bool = False) -> bytes:
    """The JSON of a whole completion."""
    content: list[dict[str, float | None]] = [
        {"logprob": raw, "sampling_logprob": sampled}
        for raw, sampled in zip(result.logprobs, result.sampling_logprobs, strict=True)
    ]
    ids = result.output_ids
    if request.echo and result.prompt_logprobs is not None:
        # The first prompt token follows nothing: clients drop its row, but a null there would void the others.
        prompt = [{"logprob": lp or 0.0, "sampling_logprob": None} for lp in result.prompt_logprobs]
        content, ids = prompt + content, request.prompt + ids
    if null_logprobs:
        content = [{"logprob": None, "sampling_logprob": None} for _ in content]
    choice: dict[str, Any] = {
        "index": 0,
        "text": result.text,
        "finish_reason": result.finish_reason,
        "raw_output": {"completion_token_ids": ids},
    }
    if request.logprobs:
        choice["logprobs"] = {"content": content}
    sampled = len(result.output_ids)
    return orjson.dumps(
        {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "model": request.model,
            "choices": [choice],
            "usage": {
                "prompt_tokens": len(request.prompt),
                "completion_tokens": sampled,
                "total_tokens": len(request.prompt) + sampled,
                "prompt_tokens_details": {"cached_tokens": result.cached_tokens},
            },
            "perf_metrics": {
                "prompt-tokens": len(request.prompt),
                "cached-prompt-tokens": result.cached_tokens,
                "server-processing-time": result.seconds,
            },
        }
    )
