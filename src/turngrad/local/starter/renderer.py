"""The starter's renderer: Qwen3's control tokens and JSON calls, in the fewest tokens a tiny model can live with.

A conversation reads

    <|im_start|>system
    Tools: cat cd cp ...<|im_end|><|im_start|>user
    Show me 'log.txt'.<|im_end|><|im_start|>assistant
    <tool_call>{"name": "cat", "arguments": {"file_name": "log.txt"}}</tool_call><|im_end|><|im_start|>user
    <tool_response>{"file_content": "..."}</tool_response><|im_end|><|im_start|>assistant
    <|im_end|>

Compared with Qwen3's template: tools are named, not described (the model knows its functions, and the list only tells it
which are there); there is no thinking, so no think block; control tokens stand without newlines around them. It satisfies
`renderers.base.Renderer`: a full render of a finished conversation is a prefix of every longer one, and
`bridge_to_next_turn` keeps the sampled ids as they are.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal

from renderers.base import (
    Message,
    ParsedResponse,
    RenderedTokens,
    Tokenizer,
    ToolSpec,
    attribute_text_segments,
    extract_message_tool_names,
    reject_assistant_in_extension,
    trim_to_turn_close,
)
from renderers.configs import BaseRendererConfig
from renderers.parsing import parse_qwen3

CHAT_TEMPLATE = (
    "{%- set head = messages[0].content if messages[0].role == 'system' else '' -%}"
    "{%- if tools or messages[0].role == 'system' -%}"
    "{{- '<|im_start|>system\\n' + head -}}"
    "{%- if tools -%}"
    "{{- '\\n' if messages[0].role == 'system' else '' -}}{{- 'Tools:' -}}"
    "{%- for tool in tools -%}{{- ' ' + (tool.function or tool).name -}}{%- endfor -%}"
    "{%- endif -%}{{- '<|im_end|>' -}}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{%- if message.role == 'tool' -%}"
    "{{- '<|im_start|>user\\n<tool_response>' + message.content + '</tool_response><|im_end|>' -}}"
    "{%- elif not (loop.first and message.role == 'system') -%}"
    "{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') -}}"
    "{%- for call in message.tool_calls or [] -%}"
    "{%- set function = call.function or call -%}"
    "{{- '<tool_call>{\"name\": \"' + function.name + '\", \"arguments\": ' + (function.arguments | tojson) + '}</tool_call>' -}}"
    "{%- endfor -%}{{- '<|im_end|>' -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)
"""The same format as a Jinja template, for tools that know nothing of `renderers`. Text content and parsed arguments only."""


class CompactRendererConfig(BaseRendererConfig):
    """The compact renderer has nothing to set; thinking is always off."""

    name: Literal["turngrad-compact"] = "turngrad-compact"


class CompactRenderer:
    """Messages to tokens and back for the starter policy and models trained from it."""

    config_class: ClassVar[type[BaseRendererConfig]] = CompactRendererConfig
    is_prefix_stable = True
    effective_thinking_retention = "all"

    def __init__(self, tokenizer: Tokenizer, config: CompactRendererConfig | None = None) -> None:
        self._tokenizer = tokenizer
        self.config = config or CompactRendererConfig()
        self._im_start = self._control("<|im_start|>")
        self._im_end = self._control("<|im_end|>")
        self._endoftext = self._control("<|endoftext|>")
        self._tool_call = self._control("<tool_call>")
        self._tool_call_end = self._control("</tool_call>")
        self._tool_response = self._control("<tool_response>")
        self._tool_response_end = self._control("</tool_response>")
        self._think_end = self._control("</think>")

    def render(
        self,
        messages: list[Message],
        *,
        tools: list[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> RenderedTokens:
        """The whole conversation as tokens, each attributed to its message (-1: scaffold outside any message)."""
        if not messages:
            raise ValueError("a conversation needs at least one message to render; found none")
        out = _Emitter(self._tokenizer)
        has_system = messages[0]["role"] == "system"
        if tools or has_system:
            index = 0 if has_system else -1
            head: list[tuple[str, bool]] = [("system\n", False)]
            if has_system:
                head.append((_text(messages[0]), True))
            if tools:
                names = " ".join(_tool_name(tool) for tool in tools)
                head.append((("\n" if has_system else "") + "Tools: " + names, False))
            out.control(self._im_start, index)
            out.text(head, index)
            out.control(self._im_end, index)
        for index, message in enumerate(messages):
            if index or not has_system:
                self._emit(out, message, index)
        if add_generation_prompt:
            self._open_assistant(out)
        return out.rendered([], messages)

    def render_ids(
        self,
        messages: list[Message],
        *,
        tools: list[ToolSpec] | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """`render` without the attribution."""
        return self.render(messages, tools=tools, add_generation_prompt=add_generation_prompt).token_ids

    def parse_response(
        self,
        token_ids: list[int],
        *,
        tools: list[ToolSpec] | None = None,
        prompt_ids: list[int] | None = None,
    ) -> ParsedResponse:
        """The sampled ids as text and calls, every attempt with its status; the JSON needs neither schema nor prompt."""
        return parse_qwen3(
            self._tokenizer,
            token_ids,
            stop_ids=set(self.get_stop_token_ids()),
            tool_call_id=self._tool_call,
            tool_call_end_id=self._tool_call_end,
            reasoning_end_id=self._think_end,
        )

    def get_stop_token_ids(self) -> list[int]:
        """`<|im_end|>` and `<|endoftext|>`."""
        return [self._im_end, self._endoftext]

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: list[Message],
        *,
        tools: list[ToolSpec] | None = None,
    ) -> RenderedTokens | None:
        """The next prompt: the previous prompt and the sampled ids as they are, then `new_messages`, then the opening.

        A completion that was cut before its stop token is closed with one. None where this cannot be exact: nothing
        before, nothing new, or an assistant message among the new ones.
        """
        if not previous_prompt_ids or not new_messages or reject_assistant_in_extension(new_messages):
            return None
        previous = trim_to_turn_close(
            previous_prompt_ids,
            previous_completion_ids,
            set(self.get_stop_token_ids()),
            synthesize_close=self._im_end,
        )
        if previous is None:
            return None
        out = _Emitter(self._tokenizer)
        for index, message in enumerate(new_messages):
            self._emit(out, message, index)
        self._open_assistant(out)
        return out.rendered(previous, new_messages)

    def _emit(self, out: _Emitter, message: Message, index: int) -> None:
        role, text = message["role"], _text(message)
        out.control(self._im_start, index)
        if role == "assistant":
            out.text([("assistant\n", False)], index)
            self._emit_answer(out, message, text, index)
            out.control(self._im_end, index, sampled=True)
            return
        if role == "tool":
            out.text([("user\n", False)], index)
            out.control(self._tool_response, index)
            out.text([(text, True)], index)
            out.control(self._tool_response_end, index)
        else:
            out.text([(role + "\n", False), (text, True)], index)
        out.control(self._im_end, index)

    def _emit_answer(self, out: _Emitter, message: Message, text: str, index: int) -> None:
        out.text([(text, True)], index, sampled=True)
        for call in message.get("tool_calls") or []:
            function: Any = call.get("function") or call
            arguments = function.get("arguments", {})
            if not isinstance(arguments, str):
                arguments = json.dumps(arguments, ensure_ascii=False)
            body = f'{{"name": "{function.get("name", "")}", "arguments": {arguments}}}'
            out.control(self._tool_call, index, sampled=True)
            out.text([(body, True)], index, sampled=True)
            out.control(self._tool_call_end, index, sampled=True)

    def _open_assistant(self, out: _Emitter) -> None:
        out.control(self._im_start, -1)
        out.text([("assistant\n", False)], -1)

    def _control(self, token: str) -> int:
        token_id = self._tokenizer.convert_tokens_to_ids(token)
        if not isinstance(token_id, int) or token_id == getattr(self._tokenizer, "unk_token_id", None):
            raise ValueError(
                f"the compact renderer needs {token!r} as one token and this tokenizer has none; use the starter's tokenizer"
            )
        return token_id


class _Emitter:
    """Token ids and, parallel to them, whose they are, whether the model samples them, and whether they are content."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._indices: list[int] = []
        self._sampled: list[bool] = []
        self._content: list[bool] = []
        self._attributed = True

    def control(self, token_id: int, index: int, *, sampled: bool = False) -> None:
        self._add(token_id, index, sampled, sampled)

    def text(self, segments: list[tuple[str, bool]], index: int, *, sampled: bool = False) -> None:
        """`segments` of (text, is content), tokenized as one text."""
        # The mark of a text's first word begins, for the tokenizer, in the character before it: overlap counts as content.
        pairs = attribute_text_segments(self._tokenizer, segments, overlap_is_content=True)
        self._attributed &= pairs.has_content_attribution
        for token_id, is_content in pairs:
            self._add(token_id, index, sampled, is_content)

    def rendered(self, previous: list[int], messages: list[Message]) -> RenderedTokens:
        """Everything emitted, after the tokens of `previous`, which are nobody's."""
        before = len(previous)
        content = [False] * before + self._content
        return RenderedTokens(
            token_ids=previous + self._ids,
            message_indices=[-1] * before + self._indices,
            sampled_mask=[False] * before + self._sampled,
            is_content=content if self._attributed else [],
            message_roles=[message["role"] for message in messages],
            message_tool_names=extract_message_tool_names(messages),
        )

    def _add(self, token_id: int, index: int, sampled: bool, content: bool) -> None:
        self._ids.append(token_id)
        self._indices.append(index)
        self._sampled.append(sampled)
        self._content.append(content)


def _text(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content if part.get("type") == "text")
    return content or ""


def _tool_name(tool: Any) -> str:
    return tool.get("function", tool)["name"]
