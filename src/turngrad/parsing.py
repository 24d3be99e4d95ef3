"""What the policy wrote, as a message and its calls: the parsers of `renderers`, made safe for whatever a model can write.

In: the sampler's ids. Out: a `ParsedResponse` whose calls have a name that is text, or a status that says what is wrong.
Invariants: no text makes it raise (a call that its parser chokes on is a bad call, the policy's own doing); time is linear in the
ids; a closing tag inside an argument does not end the call.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from typing import Any

from renderers.base import ParsedResponse, ParsedToolCall, Renderer, ToolCallParseStatus

logger = logging.getLogger(__name__)

_CLOSES_TRIED = 8
"""Closing tags considered for one call: bounds the work on a text made of them."""


class CallParser:
    """The parser of one model family. Blocking; used by one thread at a time, as its tokenizer is."""

    def __init__(self, tokenizer: Any, renderer: Renderer) -> None:
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._tags = tuple(tokenizer.convert_tokens_to_ids(tag) for tag in ("<tool_call>", "</tool_call>"))
        self._close_in_plain_tokens = [
            token_id for part in ("</tool", "_call>") for token_id in tokenizer.encode(part, add_special_tokens=False)
        ]

    def parse(self, output_ids: list[int], prompt_ids: list[int], tools: list[dict[str, Any]]) -> ParsedResponse:
        """The assistant message in `output_ids`, sampled after `prompt_ids`."""
        try:
            parsed = self._renderer.parse_response(
                self._with_literal_closes(output_ids),
                tools=tools or None,  # type: ignore[arg-type]
                prompt_ids=prompt_ids,
            )
        except Exception as error:
            # Parsers let through what json raises beside syntax errors: too deep, or an integer of too many digits.
            logger.debug("the parser raised on %d tokens: %r", len(output_ids), error)
            raw = self._tokenizer.decode(output_ids, skip_special_tokens=False)
            return ParsedResponse("", tool_calls=[ParsedToolCall(raw, status=ToolCallParseStatus.INVALID_JSON)])
        for call in parsed.tool_calls:
            if call.name is not None and not isinstance(call.name, str):
                call.name, call.status = None, ToolCallParseStatus.MISSING_NAME
        return parsed

    def _with_literal_closes(self, ids: list[int]) -> list[int]:
        """`ids`, for parsing only, with each closing tag that stands inside an argument spelled in plain tokens.

        A tokenizer turns the characters `</tool_call>` into the control token wherever they stand, and the parsers of
        `renderers` end a call at the first of those. A JSON call ends where its JSON is whole, an XML call after
        `</function>`.
        """
        opens, closes = self._tags
        if opens is None or closes is None or opens == closes or ids.count(closes) < 2:
            return ids
        ends = [place for place, token_id in enumerate(ids) if token_id == closes]
        result, position = [], 0
        while position < len(ids):
            if ids[position] != opens:
                result.append(ids[position])
                position += 1
                continue
            first = bisect_right(ends, position)
            candidates = ends[first : first + _CLOSES_TRIED]
            end = next((i for i in candidates if self._is_whole_call(ids[position + 1 : i])), None)
            if end is None:
                return result + ids[position:]
            result.append(opens)
            for token_id in ids[position + 1 : end]:
                result += self._close_in_plain_tokens if token_id == closes else [token_id]
            position = end
        return result

    def _is_whole_call(self, body_ids: list[int]) -> bool:
        body = self._tokenizer.decode(body_ids, skip_special_tokens=False).strip()
        if body.startswith("{"):
            try:
                json.loads(body)
            except (ValueError, RecursionError):
                return False
            return True
        return body.endswith("</function>") if body.startswith("<function") else True
