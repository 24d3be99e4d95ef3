"""Completions that no sane model would write, for hypothesis: whole calls of a family, broken; control tokens; noise.

A completion is what a sampler returns: ids, with or without a stop token at the end. Whole calls are made by the family's own
renderer, so that breaking them here and there tries every parser at its own seams.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from turngrad.conversation import ModelFamily

MOST_TOKENS = 400
CHANGES = ("cut", "double", "swap", "drop", "tail")

CODE = "__import__('pathlib').Path({canary!r}).touch()"
"""What must never run, wherever it stands."""

TAGS = (
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>", "<function=echo>", "</function>",
    "<parameter=text>", "</parameter>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<minimax:tool_call>",
    "</minimax:tool_call>", '<invoke name="echo">', "</invoke>", '<parameter name="text">', "<|python_tag|>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "functions.echo:0",
    "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<｜Assistant｜>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|user|>",
    "<|observation|>", "<|assistant|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "[e~[", "]~b]",
    "<|vision_pad|>", "system\n", "assistant\n", "user\n", "tool\n",
)  # fmt: skip
PIECES = (
    "{", "}", "[", "]", '"', ":", ",", "\\", "\\u", "\\ud800", "\\udc00\\ud800", "\\u0000", "\x00", "\u2028", "\ufeff", "\ufffd",
    '{"name": "echo", "arguments": {"text": "x"}}', '{"name": "echo", "parameters": {"text": "x"}}', '{"name": "echo"',
    '{"name": ["echo"], "arguments": {}}', '{"name": {"a": 1}, "arguments": []}', '{"name": 7}', '{"name": null}', "{",
    '{"name": "echo", "arguments": "{\\"text\\": \\"x\\"}"}', '{"name": "echo", "arguments": null}', "null", "[]", "7",
    '{"name": "echo", "arguments": {"text": "\\ud800"}}', '{"name": "\\ud800", "arguments": {}}', '{"text": "\\udfff"}',
    '{"name": "store", "arguments": {"value": NaN}}', '{"name": "store", "arguments": {"value": 1e999}}', "-Infinity", "1e400",
    '{"name": "store", "arguments": {"value": ' + "9" * 5000 + "}}", "9" * 4400, "-0", "0x10", "1_000", "1" + "0" * 400 + ".5",
    '{"name": "store", "arguments": {"value": ' + "[" * 1100 + "]" * 1100 + "}}", '{"a":' * 400, "[" * 1500, "{}" * 300,
    '{"name": "__next_turn__", "arguments": {}}', '{"name": "__class__", "arguments": {"__init__": 1}}', "../../../etc/passwd",
    '{"name": "echo", "arguments": {"text": "</tool_call><tool_call>"}}', '{"name": "echo", "name": "store", "arguments": {}}',
    "{{7*7}}", "%s%s%n", "${HOME}", "$(id)", "`id`", "; import os", "<!-- -->", "<![CDATA[", "&lt;", "<a b='c'/>", "\r\n", "\t",
    " ", "é", "\u0301", "한", "😀", "👩\u200d👩\u200d👧", "a" * 300, "\n" * 50,
)  # fmt: skip
CHOKING = (
    "9" * 5000, "[" * 1100 + "]" * 1100, '{"name": ["echo"], "arguments": {}}', '{"name": {"a": 1}, "arguments": []}',
    '{"name": 7, "arguments": {}}', '{"name": "echo", "arguments": {"text": "\\ud800"}}', "\\ud800", "1e999",
)  # fmt: skip
"""What Python's json refuses by something other than a syntax error, or takes and cannot write."""
NAMES = (
    "echo",
    "store",
    "nosuch",
    "",
    "echo ",
    "Echo",
    "__next_turn__",
    "a" * 200,
    "e cho",
    "échö",
    "echo\n",
    '"',
    "</tool_call>",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.one_of(
    st.fixed_dictionaries({"text": st.text(max_size=12)}, optional={"count": st.integers(-3, 3)}),
    st.fixed_dictionaries({"value": JSON}),
    st.dictionaries(st.text(max_size=6), JSON, max_size=3),
)


class Babble:
    """One family's completions: `completions(canary)` is their strategy."""

    def __init__(self, family: ModelFamily, tools: list[dict[str, Any]]) -> None:
        self._family = family
        self._tools = tools
        self._question = [{"role": "user", "content": "?"}]
        self._prompt = self._render(self._question, prompt=True)
        whole = self._text(self._call("echo", {"text": "MARK"}))
        holes = ("MARK", '"MARK"', '{"text": "MARK"}', "echo")
        self.call = whole
        self._frames = [whole.split(hole, 1) for hole in holes if hole in whole]
        """A whole call, each with another part missing: the value, the arguments, the name."""
        self._preamble = self._ids("</think>\n\n") if "<think>" in self._text(self._prompt[-4:]) else []

    def completions(self, canary: str) -> st.SearchStrategy[list[int]]:
        code = CODE.format(canary=canary)
        fragments = st.sampled_from((*TAGS, *PIECES, code, f'{{"name": "echo", "arguments": {code}}}'))
        pieces = st.one_of(
            fragments.map(self._ids),
            st.tuples(fragments, st.integers(2, 60)).map(lambda drawn: self._ids(drawn[0] * drawn[1])),
            st.tuples(st.sampled_from(self._frames), fragments).map(lambda drawn: self._ids(drawn[1].join(drawn[0]))),
            st.tuples(st.sampled_from(NAMES), ARGUMENTS).map(lambda drawn: self._call(*drawn)),
            st.tuples(st.just("echo"), ARGUMENTS).map(lambda drawn: self._call(*drawn)),
            st.text(max_size=20).map(self._ids),
            st.lists(st.integers(0, len(self._family.tokenizer) - 1), max_size=12),
        )
        changes = st.lists(st.tuples(st.sampled_from(CHANGES), st.integers(0, 10_000)), max_size=3)
        stops = self._family.stop_ids
        # What is drawn first is drawn most, and what most samplers return ends in a stop token.
        ends = st.sampled_from([stops[:1], [], stops[-1:], stops[:1] * 2])
        starts = st.sampled_from([self._preamble, []])
        whole = st.tuples(starts, st.lists(pieces, min_size=1, max_size=4), changes, ends).map(lambda drawn: _assembled(*drawn))
        return st.one_of(whole, whole, whole, whole, whole, whole, ends)

    def broken_calls(self, pieces: Sequence[str]) -> list[list[int]]:
        """Each of `pieces` in each hole of a call, as an answer that ends."""
        end = self._family.stop_ids[:1]
        return [[*self._preamble, *self._ids(piece.join(frame)), *end] for frame in self._frames for piece in pieces]

    def tiled(self, text: str, tokens: int) -> list[int]:
        """An answer of about `tokens` tokens made of `text` over and over."""
        ids = self._ids(text)
        return [*self._preamble, *(ids * (tokens // len(ids) + 1))[:tokens], *self._family.stop_ids[:1]]

    def _ids(self, text: str) -> list[int]:
        return self._family.tokenizer.encode(text, add_special_tokens=False)

    def _text(self, ids: list[int]) -> str:
        return self._family.tokenizer.decode(ids, skip_special_tokens=False)

    def _call(self, name: str, arguments: dict[str, Any]) -> list[int]:
        """A call as the family writes one; without its stop token."""
        function = {"name": name, "arguments": arguments}
        call = {"type": "function", "id": f"functions.{name}:0", "function": function}
        ids = self._render([*self._question, {"role": "assistant", "content": "", "tool_calls": [call]}], prompt=False)
        start = next((i for i, (a, b) in enumerate(zip(ids, self._prompt, strict=False)) if a != b), len(self._prompt))
        return [token_id for token_id in ids[start:] if token_id not in self._family.stop_ids]

    def _render(self, messages: list[dict[str, Any]], *, prompt: bool) -> list[int]:
        return list(self._family.renderer.render_ids(messages, tools=self._tools, add_generation_prompt=prompt))  # type: ignore[arg-type]


def _assembled(start: list[int], pieces: list[list[int]], changes: list[tuple[str, int]], end: list[int]) -> list[int]:
    ids = [token_id for piece in pieces for token_id in piece][:MOST_TOKENS]
    for change, place in changes:
        if not ids:
            break
        at = place % len(ids)
        if change == "cut":
            del ids[at]
        elif change == "double":
            ids.insert(at, ids[at])
        elif change == "swap":
            ids[at], ids[at - 1] = ids[at - 1], ids[at]
        elif change == "drop":
            del ids[:at]
        else:
            del ids[at:]
    return [*start, *ids, *end]
