"""The token-exact conversation of one episode: opens, extends, parses.

In: messages and tools in OpenAI's shapes, and the sampler's own token ids. Out: the exact prompt for the next sample, and
the parsed assistant message. Invariants: assistant text is never tokenized again while a segment lasts (C1); the next
prompt starts with the previous prompt + output or a new segment opens with a named reason (C5); a tokenizer is used by one
thread at a time, and never by the event loop's for more than a few short messages, so rendering a long prompt stalls nobody.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeVar

from renderers import create_renderer
from renderers.base import MODEL_RENDERER_MAP, ParsedResponse, Renderer, ToolCallParseStatus, load_tokenizer
from renderers.configs import _CONFIG_BY_NAME, BaseRendererConfig, CustomRendererConfig, DefaultRendererConfig

from turngrad.episodes import Break
from turngrad.errors import UserError
from turngrad.parsing import CallParser

logger = logging.getLogger(__name__)

History = Literal["keep", "template"]
ToolUpdates = Literal["append", "rewrite"]
Message = dict[str, Any]
ToolSpec = dict[str, Any]
T = TypeVar("T")

_BYTES_PER_TOKEN_KEPT = 6
"""How much text of each end is tokenized, per token of the cap, before a tool result is cut: bounds the work on 5 MB."""

_SHORT = 2_000
"""Characters or tokens that may be read between two events: about half a millisecond."""

_PROMPT_SHARE = 8
"""So many tokens of a prompt cost what one new one does: they are copied, not read."""


class ModelFamily:
    """One model family: its tokenizer and renderer, and the lock under which one thread at a time uses them.

    `stop` are the stop strings to send with every sample; `name` is for messages and logs.
    """

    def __init__(self, tokenizer: Any, renderer: Renderer, *, name: str) -> None:
        self.tokenizer = tokenizer
        self.renderer = renderer
        self.name = name
        self.stop_ids = list(renderer.get_stop_token_ids())
        self.stop = [tokenizer.decode([token_id], skip_special_tokens=False) for token_id in self.stop_ids]
        self._parser = CallParser(tokenizer, renderer)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer")
        self._in_use = threading.Lock()

    async def work(self, function: Callable[[], T], *, size: int | None = None) -> T:
        """Run `function` on the tokenizer's thread, or here and now where `size`, the text or tokens it reads, is small."""
        if size is not None and size <= _SHORT and self._in_use.acquire(blocking=False):
            try:
                return function()
            finally:
                self._in_use.release()
        return await asyncio.get_running_loop().run_in_executor(self._worker, self._exclusively, function)

    def _exclusively(self, function: Callable[[], T]) -> T:
        with self._in_use:
            return function()

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, control tokens included. Blocking; for reports and debug output."""
        return self._exclusively(lambda: self.tokenizer.decode(list(ids), skip_special_tokens=False))

    async def cap_text(self, text: str, max_tokens: int) -> str:
        """`text`, or its head and tail with the cut named, in about `max_tokens` tokens.

        A token covers at least one byte, so a text of at most `max_tokens` bytes passes untouched, and of a longer one only
        a few bytes per kept token are ever tokenized.
        """
        if len(text) <= max_tokens and len(text.encode("utf-8", "replace")) <= max_tokens:
            return text
        return await self.work(lambda: self._cap_text(text, max_tokens), size=len(text))

    def parse(self, output_ids: list[int], prompt_ids: list[int], tools: list[ToolSpec]) -> ParsedResponse:
        """The assistant message in `output_ids`. Blocking, on the tokenizer's thread."""
        return self._parser.parse(output_ids, prompt_ids, tools)

    def _cap_text(self, text: str, max_tokens: int) -> str:
        reach = max_tokens * _BYTES_PER_TOKEN_KEPT
        if len(text) <= 2 * reach:
            ids = self.tokenizer.encode(text, add_special_tokens=False)
            if len(ids) <= max_tokens:
                return text
            head_ids, tail_ids = ids[: max_tokens // 2], ids[len(ids) - max_tokens // 2 :]
        else:
            head_ids = self.tokenizer.encode(text[:reach], add_special_tokens=False)[: max_tokens // 2]
            tail_ids = self.tokenizer.encode(text[-reach:], add_special_tokens=False)[-(max_tokens // 2) :]
        # A cut inside a multi-byte character decodes to replacement marks at the seam: drop them.
        head = self.tokenizer.decode(head_ids, skip_special_tokens=False).rstrip("\ufffd")
        tail = self.tokenizer.decode(tail_ids, skip_special_tokens=False).lstrip("\ufffd")
        return f"{head}\n[... {len(text) - len(head) - len(tail)} of {len(text)} characters cut ...]\n{tail}"


class Conversation:
    """The tokens and messages of one episode.

    `prompt_ids` is the prompt of the next sample; `segment_break` is why it does not extend what was there before (None
    where it does, and in the first turn). `history` decides what happens to reasoning across user turns: `keep` extends
    the exact tokens, `template` follows the model's own template and opens a segment where that rewrites history.
    """

    def __init__(
        self,
        family: ModelFamily,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        history: History = "keep",
        tool_updates: ToolUpdates = "append",
    ) -> None:
        self.family = family
        self.messages: list[Message] = list(messages)
        self.tools: list[ToolSpec] = list(tools)
        self.history: History = history
        self.tool_updates: ToolUpdates = tool_updates
        self.prompt_ids: list[int] = []
        self.output_ids: list[int] = []
        self.segment_break: Break | None = None
        self._rendered_tools: list[ToolSpec] = list(tools)

    async def open(self) -> None:
        """Render the first prompt."""
        self.prompt_ids = await self.family.work(self._render)

    async def answer(self, output_ids: Sequence[int]) -> ParsedResponse:
        """Take the sampler's ids as the assistant's message and parse them; `output_ids` are kept as they are (C1)."""
        self.output_ids = list(output_ids)
        parsed = await self.family.work(
            lambda: self.family.parse(self.output_ids, self.prompt_ids, self.tools), size=self._size(len(self.output_ids))
        )
        self.messages.append(_assistant_message(parsed))
        return parsed

    async def extend(self, messages: Sequence[Message], *, tools: Sequence[ToolSpec] | None = None) -> None:
        """Append tool results or user messages and make the next prompt; `tools` is the new list where it changed."""
        new_messages = list(messages)
        rewrite = False
        if tools is not None and list(tools) != self.tools:
            known = {_tool_name(tool) for tool in self.tools}
            added = [tool for tool in tools if _tool_name(tool) not in known]
            self.tools = list(tools)
            if self.tool_updates == "rewrite":
                self._rendered_tools = self.tools
                rewrite = True
            elif added:
                new_messages = _announce_tools(new_messages, added)
        self.messages.extend(new_messages)
        previous = self.prompt_ids + self.output_ids
        size = self._size(sum(len(str(message.get("content"))) for message in new_messages))
        next_ids = None if rewrite else await self.family.work(lambda: self._bridge(new_messages), size=size)
        if next_ids is None:
            next_ids = await self.family.work(self._render)
        if next_ids[: len(previous)] == previous:
            self.segment_break = None
        else:
            self.segment_break = (
                Break.CONTRACT_CHANGE if rewrite else Break.HISTORY_REWRITE if self.history == "template" else Break.TOKEN_DRIFT
            )
            if logger.isEnabledFor(logging.DEBUG):
                await self.family.work(lambda: self._log_break(previous, next_ids))
        self.prompt_ids, self.output_ids = next_ids, []

    def _size(self, new: int) -> int:
        """How much there is to read, for `ModelFamily.work`."""
        return new + len(self.prompt_ids) // _PROMPT_SHARE

    def _render(self) -> list[int]:
        return list(
            self.family.renderer.render_ids(
                self.messages,  # type: ignore[arg-type]
                tools=self._rendered_tools or None,  # type: ignore[arg-type]
                add_generation_prompt=True,
            )
        )

    def _bridge(self, new_messages: list[Message]) -> list[int] | None:
        bridged = self.family.renderer.bridge_to_next_turn(
            self.prompt_ids,
            self.output_ids,
            new_messages,  # type: ignore[arg-type]
            tools=self._rendered_tools or None,  # type: ignore[arg-type]
        )
        return None if bridged is None else list(bridged.token_ids)

    def _log_break(self, previous: list[int], next_ids: list[int]) -> None:
        index = next((i for i, (a, b) in enumerate(zip(previous, next_ids, strict=False)) if a != b), len(next_ids))
        decode = self.family.tokenizer.decode
        logger.debug(
            "segment break %s at token %d of %d: had %r, has %r",
            self.segment_break,
            index,
            len(previous),
            decode(previous[max(0, index - 5) : index + 20], skip_special_tokens=False),
            decode(next_ids[max(0, index - 5) : index + 20], skip_special_tokens=False),
        )


def load_family(
    tokenizer_model: str,
    *,
    renderer: str = "auto",
    renderer_config: dict[str, Any] | None = None,
    thinking: bool = False,
    history: History = "keep",
) -> ModelFamily:
    """Load the tokenizer and renderer of a model: a hub id or a folder.

    `renderer` is a name of the `renderers` library or `auto` (by the tokenizer's name; a model it does not know renders by
    its own chat template). `renderer_config` is what a model folder says about itself and wins over `auto`.

    Raises:
        UserError: no tokenizer there, an unknown renderer, or a renderer that cannot do what is asked.
    """
    try:
        tokenizer = load_tokenizer(tokenizer_model)
    except Exception as error:
        where = "the folder" if Path(tokenizer_model).exists() else "the hub id"
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"no tokenizer could be loaded from {where} {tokenizer_model!r} ({first_line[:160]}); "
            "--tokenizer-model names a folder with tokenizer.json, or a hub id"
        ) from error
    if not tokenizer.encode("a", add_special_tokens=False):
        # transformers builds an empty tokenizer from a folder that holds a config and nothing else.
        raise UserError(f"{tokenizer_model!r} holds no tokenizer files; --tokenizer-model names a folder with tokenizer.json")
    try:
        config = _renderer_config(tokenizer_model, renderer, renderer_config, thinking=thinking, history=history)
        built = create_renderer(tokenizer, config)  # type: ignore[arg-type]
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"renderer {renderer!r} does not fit the tokenizer of {tokenizer_model!r}: {error}") from error
    return ModelFamily(tokenizer, built, name=config.name)  # type: ignore[attr-defined]


def _renderer_config(
    tokenizer_model: str, name: str, folder_config: dict[str, Any] | None, *, thinking: bool, history: History
) -> BaseRendererConfig:
    settings: dict[str, Any] = {}
    if name == "auto" and folder_config is not None:
        settings = dict(folder_config)
        name = settings.pop("name")
    if name == "custom":
        return CustomRendererConfig(**settings)
    if name == "auto":
        name = MODEL_RENDERER_MAP.get(tokenizer_model, "default")
    if name not in _CONFIG_BY_NAME:
        raise UserError(f"unknown renderer {name!r}; --renderer takes one of {', '.join(sorted(_CONFIG_BY_NAME))}")
    config_class = _CONFIG_BY_NAME[name]
    if config_class is DefaultRendererConfig:
        return DefaultRendererConfig(**settings)
    if "enable_thinking" in config_class.model_fields:
        settings.setdefault("enable_thinking", thinking)
    if history == "keep":
        settings.setdefault("thinking_retention", "all")
    return config_class(**settings)


def _assistant_message(parsed: ParsedResponse) -> Message:
    """The parsed answer as a message, for the case that a template has to render it again.

    Calls that did not parse stay in the text as the model wrote them, so that nothing disappears from history.
    """
    calls = [call for call in parsed.tool_calls if call.status == ToolCallParseStatus.OK and call.name]
    broken = [call.raw for call in parsed.tool_calls if call.status != ToolCallParseStatus.OK or not call.name]
    message: Message = {"role": "assistant", "content": "\n".join([parsed.content, *broken]) if broken else parsed.content}
    if parsed.reasoning_content:
        message["reasoning_content"] = parsed.reasoning_content
    if calls:
        message["tool_calls"] = [
            {
                "type": "function",
                "id": call.id or f"call_{index}",
                "function": {"name": call.name, "arguments": call.arguments if isinstance(call.arguments, dict) else {}},
            }
            for index, call in enumerate(calls)
        ]
    return message


def _announce_tools(messages: list[Message], added: list[ToolSpec]) -> list[Message]:
    """Put newly available tools before the text of the last user message, as BFCL's prompting mode does."""
    listing = json.dumps([tool.get("function", tool) for tool in added], ensure_ascii=False)
    for index in range(len(messages) - 1, -1, -1):
        if messages[index]["role"] == "user":
            text = f"{listing}\n{messages[index]['content']}"
            return [*messages[:index], {**messages[index], "content": text}, *messages[index + 1 :]]
    return [*messages, {"role": "user", "content": listing}]


def _tool_name(tool: ToolSpec) -> str:
    return tool.get("function", tool)["name"]
