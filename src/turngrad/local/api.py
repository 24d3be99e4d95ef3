"""The HTTP side: Fireworks' paths and bodies on one side, the engine's operations on the other.

In: ASGI requests. Out: JSON, or server-sent events for completions. Written on bare ASGI: a routing framework would cost
more per request than the request does. Errors are `{"error": {"message", "code"}}` with the status the service would use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson

from turngrad.local.adapter import Lora
from turngrad.local.completions import answer, sample
from turngrad.local.controlplane import ROOT, ControlPlane
from turngrad.local.engine import Engine, new_model_id
from turngrad.local.faults import Dropped, Faults, Rule, before, broken, parse_rules
from turngrad.local.futures import Futures
from turngrad.local.losses import LOSSES
from turngrad.local.sessions import Sessions
from turngrad.local.store import Kind, MissingCheckpoint
from turngrad.local.transport import Receive, Send, error_body, read, respond
from turngrad.local.wire import (
    ACCOUNT,
    ApiError,
    check_name,
    field_of,
    parse_adam,
    parse_batch,
    parse_completion,
    parse_run_path,
    parse_sampling_model,
)

log = logging.getLogger("turngrad.local")
PREFIX = "/training/v1/serverless"
_SWEEP_SECONDS = 30.0
"""How often silent sessions are looked for."""


class Api:
    """Endpoints over one engine. Create it inside the running event loop."""

    def __init__(self, engine: Engine, faults: Faults | None = None) -> None:
        self._engine, self._faults = engine, faults
        self._futures = Futures()
        self._sessions = Sessions(self._unload, self._abandon)
        self._control = ControlPlane(self._sessions, engine.store)
        self._created: dict[tuple[str, int], str] = {}
        self._unloaded: dict[str, str] = {}
        self._sweep()
        self._posts: dict[str, Callable[[Any], Awaitable[bytes] | bytes]] = {
            "create_session": self._create_session,
            "session_heartbeat": self._heartbeat,
            "telemetry": lambda body: b'{"status":"accepted"}',
            # No flag differs from the SDK's own defaults.
            "client/config": lambda body: b"{}",
            "create_model": self._create_model,
            "retrieve_future": self._retrieve,
            "forward": lambda body: self._pass(body, "forward"),
            "forward_backward": lambda body: self._pass(body, "forward_backward"),
            "optim_step": self._optim_step,
            "save_weights": self._save_weights,
            "save_weights_for_sampler": self._save_for_sampler,
            "load_weights": self._load_weights,
            "load_adapter": self._load_adapter,
            "weights_info": self._weights_info,
            "unload_model": self._unload_model,
            "get_info": self._get_info,
            "create_sampling_route": self._create_sampling_route,
        }

    # -- transport ----------------------------------------------------------------------------------------------------

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Handles one HTTP request."""
        method, path = scope["method"], scope["path"]
        rule = self._faults.take(path) if self._faults is not None else None
        try:
            if rule is not None:
                await before(rule, send)
                send = broken(rule, send)
            body = await read(receive) if method == "POST" else None
            if rule is not None and rule.action == "status":
                refusal = error_body(rule.status, "a fault asked for")
                await respond(send, rule.status, refusal, headers=rule.headers)
            elif path == f"{PREFIX}/inference/v1/completions" and method == "POST":
                await self._completions(body, receive, send, null_logprobs=_nulls(rule))
            else:
                await respond(send, 200, await self._route(method, path, scope["query_string"], body))
        except Dropped:
            return
        except ApiError as error:
            await respond(send, error.status, error_body(error.status, error.message))
        except Exception as error:
            log.exception("%s %s failed", method, path)
            await respond(send, 500, error_body(500, f"{type(error).__name__}: {error}"))

    async def _route(self, method: str, path: str, query: bytes, body: Any) -> bytes:
        if path.startswith(f"{PREFIX}/api/v1/"):
            name = path[len(PREFIX) + 8 :]
            if method == "GET" and name == "list_checkpoints":
                return orjson.dumps({"checkpoints": self._states()})
            handler = self._posts.get(name) if method == "POST" else None
            if handler is None:
                raise ApiError(404, f"{method} {path} is not served here")
            answer = handler(body)
            return answer if isinstance(answer, bytes) else await answer
        if path == ROOT or path.startswith(f"{ROOT}/"):
            return self._control.answer(method, path, query)
        if method == "POST" and path == "/faults" and self._faults is not None:
            self._faults.rules = _rules(body)
            return b"{}"
        raise ApiError(404, f"{method} {path} is not served here; base_url must end in {PREFIX}")

    # -- sessions -----------------------------------------------------------------------------------------------------

    def _create_session(self, body: Any) -> bytes:
        return orjson.dumps({"type": "create_session", "session_id": self._sessions.create()})

    def _heartbeat(self, body: Any) -> bytes:
        self._sessions.beat(field_of(body, "session_id", str))
        return b'{"type":"session_heartbeat"}'

    def _unload(self, model_id: str) -> None:
        self._engine.post(lambda: self._engine.unload(model_id), lambda _: None)

    def _abandon(self, request_id: str, reason: str) -> None:
        self._futures.finish(request_id, orjson.dumps({"error": reason, "category": "user"}))

    def _sweep(self) -> None:
        self._sessions.expire()
        asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._sweep)

    # -- runs and operations ------------------------------------------------------------------------------------------

    def _create_model(self, body: Any) -> bytes:
        session = field_of(body, "session_id", str)
        self._sessions.check(session)
        key = (session, field_of(body, "model_seq_id", int, default=0))
        base_model = field_of(body, "base_model", str)
        if not self._engine.base.is_called(base_model):
            raise ApiError(404, f"base_model {base_model!r} is not served here; this engine serves {self._engine.base.name!r}")
        asked = _lora(field_of(body, "lora_config", dict, default=None))
        base_only = field_of(body, "base_only", bool, default=False)
        if key in self._created:
            return orjson.dumps({"request_id": self._created[key]})
        model_id = new_model_id()
        self._sessions.own(session, model_id)
        create = self._engine.create_model
        request_id = self._submit(lambda: create(model_id, session, base_model, None if base_only else asked, base_only))
        self._created[key] = request_id
        return orjson.dumps({"request_id": request_id, "model_id": model_id})

    def _submit(self, operation: Callable[[], Any], model_id: str | None = None, seq_id: int | None = None) -> str:
        """Queues an operation in its model's order; the request id to poll."""
        request_id = self._futures.create()

        def run() -> None:
            self._engine.post(operation, lambda result: self._futures.finish_threadsafe(request_id, result))

        if model_id is None:
            run()
        else:
            self._sessions.sequencer(model_id).add(seq_id, request_id, run)
        return request_id

    def _ordered(self, body: Any, parse: Callable[[str], Callable[[], Any]]) -> bytes:
        """One numbered operation: the same request id for a repeat; a refused one is skipped in the order."""
        model_id = field_of(body, "model_id", str)
        sequencer = self._sessions.sequencer(model_id)
        seq_id = field_of(body, "seq_id", int, default=None)
        request_id = sequencer.known(seq_id)
        if request_id is None:
            try:
                operation = parse(model_id)
            except ApiError:
                sequencer.skip(seq_id)
                raise
            request_id = self._submit(operation, model_id, seq_id)
        return orjson.dumps({"request_id": request_id, "model_id": model_id})

    def _pass(self, body: Any, name: str) -> bytes:
        spec = self._engine.base.spec
        run = getattr(self._engine, name)

        def parse(model_id: str) -> Callable[[], Any]:
            batch = parse_batch(body, f"{name}_input", LOSSES, spec.vocab, spec.max_positions)
            return lambda: run(model_id, batch)

        return self._ordered(body, parse)

    def _optim_step(self, body: Any) -> bytes:
        def parse(model_id: str) -> Callable[[], Any]:
            adam = parse_adam(body)
            return lambda: self._engine.optim_step(model_id, adam)

        return self._ordered(body, parse)

    def _save_weights(self, body: Any) -> bytes:
        def parse(model_id: str) -> Callable[[], Any]:
            name = check_name(field_of(body, "path", str))
            return lambda: self._engine.save_state(model_id, name)

        return self._ordered(body, parse)

    def _save_for_sampler(self, body: Any) -> bytes:
        def parse(model_id: str) -> Callable[[], Any]:
            name = check_name(field_of(body, "path", str))
            return lambda: self._engine.save_snapshot(model_id, name)

        return self._ordered(body, parse)

    def _load_weights(self, body: Any) -> bytes:
        def parse(model_id: str) -> Callable[[], Any]:
            run, name = parse_run_path(field_of(body, "path", str), model_id.partition(":")[0])
            self._meta(run, name, "states")
            optimizer = field_of(body, "optimizer", bool, default=False)
            return lambda: self._engine.load_state(model_id, run, name, optimizer)

        return self._ordered(body, parse)

    def _load_adapter(self, body: Any) -> bytes:
        def parse(model_id: str) -> Callable[[], Any]:
            folder = Path(field_of(body, "adapter_path", str))
            return lambda: self._engine.load_adapter(model_id, folder)

        return self._ordered(body, parse)

    def _unload_model(self, body: Any) -> bytes:
        """Has no seq_id: a repeat, for a client that lost the answer, is known by its model."""
        model_id = field_of(body, "model_id", str)
        if model_id not in self._unloaded:
            self._sessions.sequencer(model_id)
            self._sessions.forget(model_id)
            self._unloaded[model_id] = self._submit(lambda: self._engine.unload(model_id))
        return orjson.dumps({"request_id": self._unloaded[model_id], "model_id": model_id})

    async def _retrieve(self, body: Any) -> bytes:
        request_id = field_of(body, "request_id", str)
        try:
            result = await self._futures.wait(request_id)
        except KeyError:
            raise ApiError(404, f"request {request_id!r} is not known here; perhaps the engine restarted") from None
        return result or orjson.dumps({"type": "try_again", "request_id": request_id, "queue_state": "active"})

    # -- what is known of runs ----------------------------------------------------------------------------------------

    def _meta(self, run: str, name: str, kind: Kind) -> dict[str, Any]:
        try:
            return self._engine.store.meta(run, kind, name)
        except MissingCheckpoint as error:
            raise ApiError(404, str(error)) from error

    def _states(self) -> list[str]:
        store = self._engine.store
        return sorted(f"{ACCOUNT}/{run}/{name}" for run in store.runs() for name in store.names(run, "states"))

    def _weights_info(self, body: Any) -> bytes:
        run, name = parse_run_path(field_of(body, "tinker_path", str))
        meta = self._meta(run, name, "states" if name in self._engine.store.names(run, "states") else "snapshots")
        asked = meta["asked"]
        info: dict[str, Any] = {"base_model": meta["base_model"], "is_lora": asked is not None}
        if asked is not None:
            info |= {"lora_rank": asked["rank"]} | {k: asked[k] for k in ("train_unembed", "train_mlp", "train_attn")}
        info["trained_in_full"] = meta["lora"] is None
        return orjson.dumps(info)

    def _get_info(self, body: Any) -> bytes:
        model_id = field_of(body, "model_id", str)
        self._sessions.sequencer(model_id)
        base = self._engine.base
        data = {"arch": base.spec.model_type, "model_name": base.name, "tokenizer_id": str(base.folder)}
        info = {"type": "get_info", "model_data": data, "model_id": model_id, "is_lora": not self._engine.full}
        return orjson.dumps(info | {"model_name": base.name})

    def _create_sampling_route(self, body: Any) -> bytes:
        base_model = field_of(body, "base_model", str, default=None)
        run = field_of(body, "training_run", str, default=None)
        if base_model is not None and not self._engine.base.is_called(base_model):
            raise ApiError(404, f"base_model {base_model!r} is not served here; this engine serves {self._engine.base.name!r}")
        if run is not None and run.rpartition("/")[2] not in self._engine.store.runs():
            raise ApiError(404, f"training run {run!r} has no checkpoint here")
        return b"{}"

    # -- sampling -----------------------------------------------------------------------------------------------------

    async def _completions(self, body: Any, receive: Receive, send: Send, *, null_logprobs: bool) -> None:
        spec = self._engine.base.spec
        request = parse_completion(body, spec.vocab, spec.max_positions)
        snapshot = parse_sampling_model(request.model)
        if snapshot is not None:
            self._meta(*parse_run_path(snapshot), "snapshots")
        result = await sample(self._engine, snapshot, request, receive)
        if result is None:
            return
        content = answer(request, result, null_logprobs=null_logprobs)
        if request.stream:
            await respond(send, 200, b"data: " + content + b"\n\ndata: [DONE]\n\n", content_type=b"text/event-stream")
        else:
            await respond(send, 200, content)


def _lora(config: dict[str, Any] | None) -> Lora | None:
    """create_model's lora_config; None means full fine-tuning (rank 0 or absent). ApiError 422."""
    if config is None:
        return None
    rank = field_of(config, "rank", int, default=32)
    if rank == 0:
        return None
    alpha = field_of(config, "alpha", float, default=2.0 * rank)
    if rank < 0 or not 0 < alpha < float("inf"):
        raise ApiError(422, f"lora_config needs rank >= 0 and a positive alpha, found rank {rank}, alpha {alpha}")
    return Lora(
        rank,
        alpha,
        seed=field_of(config, "seed", int, default=None),
        **{key: field_of(config, key, bool, default=True) for key in ("train_mlp", "train_attn", "train_unembed")},
    )


def _nulls(rule: Rule | None) -> bool:
    return rule is not None and rule.action == "null_logprobs"


def _rules(body: Any) -> list[Rule]:
    try:
        return parse_rules(body)
    except ValueError as error:
        raise ApiError(422, str(error)) from error
