"""Bodies in and out of ASGI: a JSON request read whole, an answer sent whole, an error in the service's form."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson

from turngrad.local.wire import ApiError

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


async def read(receive: Receive) -> Any:
    """The request's JSON; {} where it is empty. Raises ApiError 400."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ApiError(400, "the client closed the connection before the body was complete")
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    data = b"".join(parts)
    try:
        return orjson.loads(data) if data else {}
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"the body is not JSON: {error}; NaN and infinity have no JSON form") from error


async def respond(
    send: Send,
    status: int,
    body: bytes,
    *,
    content_type: bytes = b"application/json",
    headers: Mapping[str, str] | None = None,
) -> None:
    """Sends a whole response at once."""
    lines = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    lines += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": body})


def error_body(status: int, message: str) -> bytes:
    """The body of a refused request."""
    return orjson.dumps({"error": {"message": message, "code": status, "type": "error"}, "detail": message})
