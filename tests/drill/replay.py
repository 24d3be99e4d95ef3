"""A proxy before an engine that records its samples, and answers the same request of a later run with the same sample.

A request is the same when prompt, seed, limits and number of optimizer steps behind its weights are: the name of the snapshot
holds that number. In `replay` nothing is sampled: a request that was never recorded is counted in `misses`, and refused.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from typing import Any

from aiohttp import web

from tests.drill.between import Between, running

Key = tuple[Any, ...]


class Recorder(Between):
    """`samples` by request, in the engine's own bytes; `asked` are the samples asked for, `paths` all requests.

    With `echo`, every twelfth request for a sample is refused with the key it came with.
    """

    def __init__(self, upstream: str) -> None:
        super().__init__(upstream)
        self.replay = False
        self.echo = False
        self.samples: dict[Key, tuple[bytes, str]] = {}
        self.asked: set[Key] = set()
        self.paths: list[str] = []
        self.misses = 0

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        data = await request.read()
        self.paths.append(request.path)
        if not request.path.endswith("/completions"):
            return await self._pass_on(request, data)
        if self.echo and sum(path.endswith("/completions") for path in self.paths) % 12 == 0:
            return web.json_response({"error": {"message": f"refused: {_keys_of(request)}"}}, status=400)
        key = _key(json.loads(data))
        self.asked.add(key)
        if not self.replay:
            answer = await self._pass_on(request, data)
            if answer.status == 200:
                assert isinstance(answer.body, bytes)
                self.samples[key] = answer.body, answer.content_type
            return answer
        if key not in self.samples:
            self.misses += 1
            return web.json_response({"error": {"message": "this was never sampled", "code": 400}}, status=400)
        body, kind = self.samples[key]
        return web.Response(body=body, content_type=kind)


def _keys_of(request: web.Request) -> list[str]:
    return [value for name, value in request.headers.items() if "key" in name.lower() or "auth" in name.lower()]


def _key(body: dict[str, Any]) -> Key:
    # The SDK ends the name with a random part of its own.
    snapshot = body["model"].rpartition("/")[2].rpartition("-")[0]
    return snapshot, body["seed"], tuple(body["prompt"]), body["max_tokens"], body["temperature"], body["top_p"]


def recorder(upstream: str) -> AbstractContextManager[Recorder]:
    """A recorder before the engine at `upstream`, until the end of the block."""
    return running(Recorder(upstream))
