"""The compact renderer: stable prefixes, exact bridges, and a verdict on every call the policy attempts."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from renderers import create_renderer
from renderers.base import Renderer, load_tokenizer
from renderers.configs import CustomRendererConfig
from transformers import AutoTokenizer

from turngrad.local.models import BFCL_STARTER, renderer_for, resolve_model
from turngrad.local.starter.renderer import CHAT_TEMPLATE, CompactRenderer

TOOLS: Any = [
    {"type": "function", "function": {"name": "cat", "description": "Show a file.", "parameters": {"type": "object"}}},
    {"name": "send_message", "description": "Send.", "parameters": {"type": "object"}},
]


@cache
def renderer() -> CompactRenderer:
    return CompactRenderer(AutoTokenizer.from_pretrained(resolve_model(BFCL_STARTER)))


def ids_of(text: str) -> list[int]:
    return renderer()._tokenizer.encode(text, add_special_tokens=False)


def text_of(ids: list[int]) -> str:
    return renderer()._tokenizer.decode(ids, skip_special_tokens=False)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def tool(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text}


def assistant(text: str, *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    functions = [{"type": "function", "function": {"name": name, "arguments": given}} for name, given in calls]
    return {"role": "assistant", "content": text, **({"tool_calls": functions} if functions else {})}


plain = st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=30)
scalars = st.one_of(plain, st.integers(-1000, 1000), st.booleans(), st.none(), st.lists(plain, max_size=2))
calls = st.lists(st.tuples(st.sampled_from(["cat", "send_message"]), st.dictionaries(plain, scalars, max_size=2)), max_size=2)
later = st.one_of(plain.map(user), plain.map(tool), st.tuples(plain, calls).map(lambda pair: assistant(pair[0], *pair[1])))
conversations = st.tuples(plain.map(user), st.lists(later, max_size=5)).map(lambda pair: [pair[0], *pair[1]])
silent = st.one_of(plain.map(user), plain.map(tool), calls.map(lambda made: assistant("", *made)))
silent_conversations = st.tuples(plain.map(user), st.lists(silent, max_size=5)).map(lambda pair: [pair[0], *pair[1]])
"""Those in which the assistant calls and says nothing: what the starter does. Text of its own is tokenized as it is sampled,
apart from the role before it, and a template's text cannot say that."""


def test_the_packaged_folder_names_this_renderer() -> None:
    folder = resolve_model(BFCL_STARTER)
    settings = renderer_for(folder)
    assert settings is not None
    settings.pop("name")
    built = create_renderer(load_tokenizer(str(folder)), CustomRendererConfig(**settings))
    assert isinstance(built, CompactRenderer)
    assert isinstance(built, Renderer)


def test_a_conversation_reads_as_documented() -> None:
    messages: Any = [
        user("Show me 'log.txt'."),
        assistant("", ("cat", {"file_name": "log.txt"})),
        tool('{"file_content": "x"}'),
        assistant(""),
    ]
    assert text_of(renderer().render_ids(messages, tools=TOOLS)) == (
        "<|im_start|>system\nTools: cat send_message<|im_end|>"
        "<|im_start|>user\nShow me 'log.txt'.<|im_end|>"
        '<|im_start|>assistant\n<tool_call>{"name": "cat", "arguments": {"file_name": "log.txt"}}</tool_call><|im_end|>'
        '<|im_start|>user\n<tool_response>{"file_content": "x"}</tool_response><|im_end|>'
        "<|im_start|>assistant\n<|im_end|>"
    )


@settings(max_examples=100, deadline=None)
@given(silent_conversations, st.booleans(), st.booleans())
def test_the_chat_template_says_the_same(messages: Any, with_tools: bool, opened: bool) -> None:
    tokenizer = renderer()._tokenizer
    tools = TOOLS if with_tools else None
    text = tokenizer.apply_chat_template(  # type: ignore[attr-defined]
        messages, tools=tools, add_generation_prompt=opened, tokenize=False, chat_template=CHAT_TEMPLATE
    )
    assert ids_of(text) == renderer().render_ids(messages, tools=tools, add_generation_prompt=opened)


@settings(max_examples=100, deadline=None)
@given(conversations, st.lists(later, max_size=3))
def test_a_finished_conversation_is_a_prefix_of_every_longer_one(messages: Any, more: Any) -> None:
    finished = [*messages, assistant("done")]
    short = renderer().render_ids(finished, tools=TOOLS)
    assert renderer().render_ids([*finished, *more], tools=TOOLS)[: len(short)] == short


@settings(max_examples=100, deadline=None)
@given(
    conversations, st.lists(st.integers(0, 500), max_size=12), st.booleans(), st.lists(plain.map(tool), min_size=1, max_size=3)
)
def test_a_bridge_keeps_prompt_and_completion_and_then_adds_the_messages(
    messages: Any, sampled: list[int], stopped: bool, new: Any
) -> None:
    stop = renderer().get_stop_token_ids()
    completion = [token for token in sampled if token not in stop] + ([stop[0]] if stopped else [])
    prompt = renderer().render_ids(messages, tools=TOOLS, add_generation_prompt=True)
    bridged = renderer().bridge_to_next_turn(prompt, completion, new, tools=TOOLS)
    assert bridged is not None
    exact = prompt + completion
    assert bridged.token_ids[: len(exact)] == exact
    added = bridged.token_ids[len(exact) :]
    close = [] if stopped else [stop[0]]
    opening = ids_of("<|im_start|>assistant\n")
    before: Any = [user("x")]
    alone = renderer().render_ids([*before, *new])[len(renderer().render_ids(before)) :]
    assert added == close + alone + opening
    assert not any(bridged.sampled_mask)
    assert len(bridged.sampled_mask) == len(bridged.message_indices) == len(bridged.is_content) == len(bridged.token_ids)


def test_a_bridge_equals_the_full_render_when_the_completion_is_canonical() -> None:
    messages: Any = [user("Show 'a.txt'."), assistant("", ("cat", {"file_name": "a.txt"}))]
    new: Any = [tool("{}"), user("Thanks.")]
    prompt = renderer().render_ids(messages[:1], tools=TOOLS, add_generation_prompt=True)
    completion = renderer().render_ids(messages, tools=TOOLS)[len(prompt) :]
    bridged = renderer().bridge_to_next_turn(prompt, completion, new, tools=TOOLS)
    assert bridged is not None
    assert bridged.token_ids == renderer().render_ids([*messages, *new], tools=TOOLS, add_generation_prompt=True)


@pytest.mark.parametrize("new", [[], [assistant("no")], [tool("a"), assistant("no")]])
def test_nothing_new_or_an_assistant_message_cannot_be_bridged(new: Any) -> None:
    prompt = renderer().render_ids([user("hi")], add_generation_prompt=True)  # type: ignore[list-item]
    assert renderer().bridge_to_next_turn(prompt, ids_of("ok<|im_end|>"), new) is None


def test_sampled_tokens_are_those_of_the_answer_and_its_stop_token() -> None:
    messages: Any = [user("Show 'a.txt'."), assistant("ok", ("cat", {"file_name": "a.txt"})), tool("{}"), assistant("")]
    rendered = renderer().render(messages, tools=TOOLS)
    sampled = [token for token, mask in zip(rendered.token_ids, rendered.sampled_mask, strict=True) if mask]
    assert text_of(sampled) == (
        'ok<tool_call>{"name": "cat", "arguments": {"file_name": "a.txt"}}</tool_call><|im_end|><|im_end|>'
    )
    content = [token for token, mask in zip(rendered.token_ids, rendered.is_content, strict=True) if mask]
    assert text_of(content) == (
        "Show 'a.txt'. ok<tool_call>" + '{"name": "cat", "arguments": {"file_name": "a.txt"}}</tool_call><|im_end|>{}<|im_end|>'
    )
    assert rendered.message_roles == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("All done.<|im_end|>", []),
        ("<|im_end|>", []),
        ('<tool_call>{"name": "cat", "arguments": {"file_name": "a"}}</tool_call><|im_end|>', ["ok"]),
        ('<tool_call>{"name": "cat", "arguments": {}}</tool_call><tool_call>{"name": "b"}</tool_call><|im_end|>', ["ok", "ok"]),
        ('<tool_call>{"name": "cat", "arguments": {</tool_call><|im_end|>', ["invalid_json"]),
        ("<tool_call></tool_call><|im_end|>", ["invalid_json"]),
        ('<tool_call>{"arguments": {}}</tool_call><|im_end|>', ["missing_name"]),
        ("<tool_call>[1, 2]</tool_call><|im_end|>", ["missing_name"]),
        ('<tool_call>{"name": "cat", "arguments": {"file_na', ["unclosed_block"]),
        ('<tool_call>{"name": "a"}</tool_call><tool_call>{"na<|im_end|>', ["ok", "unclosed_block"]),
    ],
)
def test_every_attempted_call_is_parsed_with_its_status(completion: str, expected: list[str]) -> None:
    parsed = renderer().parse_response(ids_of(completion))
    assert [call.status.value for call in parsed.tool_calls] == expected


@settings(max_examples=100, deadline=None)
@given(plain, calls)
def test_what_is_rendered_is_parsed_back(text: str, made: Any) -> None:
    prompt = renderer().render_ids([user("x")], tools=TOOLS, add_generation_prompt=True)  # type: ignore[list-item]
    completion = renderer().render_ids([user("x"), assistant(text, *made)], tools=TOOLS)[len(prompt) :]  # type: ignore[list-item]
    parsed = renderer().parse_response(completion, tools=TOOLS, prompt_ids=prompt)
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == made
    assert parsed.content == text.strip()


def test_a_tokenizer_without_the_control_tokens_is_refused() -> None:
    class NoTokens:
        unk_token_id = 0

        def convert_tokens_to_ids(self, token: str) -> int:
            return 0

    with pytest.raises(ValueError, match=r"needs '<\|im_start\|>' as one token"):
        CompactRenderer(NoTokens())  # type: ignore[arg-type]
