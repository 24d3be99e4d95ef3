"""A provider of models on loopback: a real HTTP server that speaks the protocols hud's agents speak, with a script for a model.

One path each: OpenAI's chat completions and responses, Anthropic's messages and Gemini's streamed generation. What to say is
decided from the request alone: the first user text and how many messages the model has said since.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Said = list[tuple[str, dict[str, Any]]] | str
"""What a model says: calls by name, or a text."""


@dataclass(frozen=True)
class Asked:
    """One request: the first user text, the messages the model said before, and the tools it may call.

    `one_call` says that the request forbids several calls in one message.
    """

    prompt: str
    said: int
    tools: tuple[str, ...]
    one_call: bool = False


@dataclass
class Provider:
    """A running server. `asked` and `keys` are what arrived; `faults` are (status, headers, body), one used up a request."""

    root: str
    asked: list[Asked] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    faults: list[tuple[int, dict[str, str], str]] = field(default_factory=list)

    @property
    def openai(self) -> str:
        return f"{self.root}/v1"


@contextmanager
def provider(say: Callable[[Asked], Said]) -> Iterator[Provider]:
    """A server whose model says `say(request)`, until the end of the block."""

    class Handler(_Handler):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running = Provider(f"http://127.0.0.1:{server.server_port}")
    Handler.say, Handler.provider, Handler.responses = staticmethod(say), running, {}
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # A reply in two packets waits 40 ms for the first one's acknowledgement.
    disable_nagle_algorithm = True
    wbufsize = -1
    say: Callable[[Asked], Said]
    provider: Provider
    responses: dict[str, tuple[str, int]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        bearer = (self.headers["Authorization"] or "").removeprefix("Bearer ")
        self.provider.keys.append(bearer or self.headers["x-api-key"] or self.headers["x-goog-api-key"] or "")
        if self.provider.faults:
            status, headers, text = self.provider.faults.pop(0)
            self._send(status, json.dumps({"error": {"message": text, "code": status, "type": "fault"}}), headers)
            return
        self.provider.bodies.append(body)
        path = self.path.partition("?")[0]
        if path.endswith("/chat/completions"):
            self._send(200, json.dumps(self._chat(body)))
        elif path.endswith("/responses"):
            self._send(200, json.dumps(self._response(body)))
        elif path.endswith("/messages"):
            self._send(200, "".join(self._claude(body)), {"Content-Type": "text/event-stream"})
        elif path.endswith(":streamGenerateContent"):
            self._send(200, f"data: {json.dumps(self._gemini(body))}\r\n\r\n", {"Content-Type": "text/event-stream"})
        else:
            self._send(404, json.dumps({"error": {"message": f"no {path} here", "code": 404, "status": "NOT_FOUND"}}))

    def _send(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        data = text.encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def _ask(self, asked: Asked) -> Said:
        self.provider.asked.append(asked)
        return type(self).say(asked)

    def _chat(self, body: dict[str, Any]) -> dict[str, Any]:
        messages = body["messages"]
        prompt = next(message["content"] for message in messages if message["role"] == "user")
        tools = tuple(tool["function"]["name"] for tool in body.get("tools", ()))
        said = self._ask(Asked(_text(prompt), _count(messages, "assistant"), tools))
        message: dict[str, Any] = {"role": "assistant", "content": said if isinstance(said, str) else None}
        if not isinstance(said, str):
            message["tool_calls"] = [
                {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
                for i, (name, arguments) in enumerate(said)
            ]
        reason = "stop" if isinstance(said, str) else "tool_calls"
        return {
            "id": "chat",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
        }

    def _response(self, body: dict[str, Any]) -> dict[str, Any]:
        previous = body.get("previous_response_id")
        prompt, count = self.responses[previous] if previous else (_text(body["input"][0]["content"]), 0)
        said = self._ask(Asked(prompt, count, tuple(tool["name"] for tool in body.get("tools", ()))))
        name = f"resp{len(self.responses)}"
        self.responses[name] = (prompt, count + 1)
        if isinstance(said, str):
            content = [{"type": "output_text", "text": said, "annotations": []}]
            output: list[Any] = [{"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": content}]
        else:
            output = [
                {"type": "function_call", "id": f"f{i}", "call_id": f"{name}-{i}", "name": call, "arguments": json.dumps(args)}
                for i, (call, args) in enumerate(said)
            ]
        usage = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
        usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        return {
            "id": name,
            "object": "response",
            "created_at": 0,
            "model": body["model"],
            "output": output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "status": "completed",
            "usage": usage,
        }

    def _claude(self, body: dict[str, Any]) -> Iterator[str]:
        messages = body["messages"]
        tools = tuple(tool["name"] for tool in body.get("tools", ()))
        one_call = bool(body.get("tool_choice", {}).get("disable_parallel_tool_use"))
        said = self._ask(Asked(_text(messages[0]["content"]), _count(messages, "assistant"), tools, one_call))
        usage = {"input_tokens": 100, "output_tokens": 10}
        start = {"id": "m", "type": "message", "role": "assistant", "model": body["model"], "content": [], "usage": usage}
        yield _event("message_start", message={**start, "stop_reason": None, "stop_sequence": None})
        blocks = [("", {})] if isinstance(said, str) else said
        for index, (name, arguments) in enumerate(blocks):
            if isinstance(said, str):
                block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": said}
            else:
                block = {"type": "tool_use", "id": f"toolu_{len(messages)}_{index}", "name": name, "input": {}}
                delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
            yield _event("content_block_start", index=index, content_block=block)
            yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        reason = "end_turn" if isinstance(said, str) else "tool_use"
        yield _event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)
        yield _event("message_stop")

    def _gemini(self, body: dict[str, Any]) -> dict[str, Any]:
        contents = body["contents"]
        tools = tuple(each["name"] for tool in body.get("tools", ()) for each in tool["functionDeclarations"])
        said = self._ask(Asked(_text(contents[0]["parts"]), _count(contents, "model"), tools))
        parts = [{"text": said}] if isinstance(said, str) else [{"functionCall": {"name": n, "args": a}} for n, a in said]
        usage = {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110}
        candidate = {"index": 0, "content": {"role": "model", "parts": parts}, "finishReason": "STOP"}
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted"}

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _count(messages: list[dict[str, Any]], role: str) -> int:
    return sum(message["role"] == role for message in messages)


def _event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"
