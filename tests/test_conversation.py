"""The token-exact conversation: C1, C3 and C5 over random episodes of many families, and the faults others shipped."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from renderers.base import ToolCallParseStatus

from tests.families import FAMILIES, QWEN_FAMILIES, family
from turngrad.advantages import group_advantages
from turngrad.batch import build_batch
from turngrad.conversation import Conversation, _renderer_config, load_family
from turngrad.episodes import Break, Episode, StopReason, Turn, logprob_array, token_array
from turngrad.errors import UserError

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Größe & Übung",
            "parameters": {"type": "object", "properties": {"zeta": {"type": "string"}, "alpha": {"type": "integer"}}},
        },
    }
    for name in ("write", "read")
]
USER = {"role": "user", "content": "do it"}

text = st.text(max_size=30)
pieces = st.one_of(
    text,
    st.sampled_from(
        [
            "<tool_call>", "</tool_call>", "<think>", "</think>", "<|im_end|>", "<tool_response>", "\n",
            '<tool_call>\n{"name": "write", "arguments": {"zeta": "a"}}\n</tool_call>',
            "<tool_call>\n<function=write>\n<parameter=zeta>\na\n</parameter>\n</function>\n</tool_call>",
            '{"name": "write"', "<function=write>",
        ]
    ),
)  # fmt: skip
outputs = st.lists(pieces, max_size=6).map("".join)


def run(coroutine: Any) -> Any:
    return asyncio.run(coroutine)


async def _play(name: str, history: str, answers: list[tuple[str, bool]], replies: list[str]) -> tuple[Conversation, list[Turn]]:
    """An episode of random answers: calls are answered by tool messages, the rest by the user."""
    model = family(name, history=history)
    conversation = Conversation(model, [USER], TOOLS, history=history)  # type: ignore[arg-type]
    await conversation.open()
    turns: list[Turn] = []
    previous: list[int] = []
    for index, ((answer, stops), reply) in enumerate(zip(answers, replies, strict=True)):
        prompt, segment_break = conversation.prompt_ids, conversation.segment_break
        output = model.tokenizer.encode(answer) + ([model.stop_ids[0]] if stops else [])
        extends = index > 0 and prompt[: len(previous)] == previous
        assert extends or index == 0 or segment_break is not None, "C5: a prompt that does not extend names its break"
        assert not (extends and segment_break), "C5: a prompt that extends names none"
        turns.append(
            Turn(
                context_ids=token_array(prompt[len(previous) :] if extends else prompt),
                output_ids=token_array(output),
                logprobs=logprob_array([-0.5] * len(output)),
                finish_reason="stop",
                segment_break=segment_break,
            )
        )
        previous = prompt + output
        parsed = await conversation.answer(output)
        messages: list[dict[str, Any]] = [
            {"role": "tool", "tool_call_id": f"c{i}", "name": call.name or "unknown", "content": reply}
            for i, call in enumerate(parsed.tool_calls)
        ]
        await conversation.extend(messages or [{"role": "user", "content": reply}])
    return conversation, turns


@pytest.mark.parametrize("history", ["keep", "template"])
@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.lists(st.tuples(st.tuples(outputs, st.booleans()), text), min_size=1, max_size=5))
def test_trained_ids_are_the_sampled_ids_in_order_whatever_the_policy_writes(name: str, history: str, data: Any) -> None:
    _, turns = run(_play(name, history, [entry[0] for entry in data], [entry[1] for entry in data]))
    episodes = [Episode("t", "g", i, tuple(turns) if i == 0 else (), float(i == 0), StopReason.DONE) for i in range(2)]
    batch = build_batch([(episodes, group_advantages(episodes, "group-mean"))], normalize="none")
    trained: list[int] = []
    for segment in batch.segments:
        trained += segment.ids[1:][segment.target_mask].tolist()
        assert all(a != 0 for a in segment.target_advantages[segment.target_mask])
        assert not segment.target_advantages[~segment.target_mask].any()
        assert not segment.target_logprobs[~segment.target_mask].any()
    assert trained == [token for turn in turns for token in turn.output_ids]


def _canonical(name: str, calls: list[dict[str, Any]], content: str) -> list[int]:
    """The ids that the family's own template gives an assistant message, as if sampled after the prompt."""
    model = family(name)
    message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [{"type": "function", "id": f"c{i}", "function": c} for i, c in enumerate(calls)]  # type: ignore[assignment]
    prompt = model.renderer.render_ids([USER], tools=TOOLS, add_generation_prompt=True)  # type: ignore[arg-type]
    whole = model.renderer.render_ids([USER, message], tools=TOOLS)  # type: ignore[arg-type,list-item]
    assert whole[: len(prompt)] == prompt
    answer = list(whole[len(prompt) :])
    last = max(i for i, token in enumerate(answer) if token in model.stop_ids)
    return answer[: last + 1]


@pytest.mark.parametrize("name", QWEN_FAMILIES)
def test_well_formed_turns_never_break_a_segment_over_calls_and_user_turns(name: str) -> None:
    async def play() -> int:
        model = family(name)
        conversation = Conversation(model, [USER], TOOLS)
        await conversation.open()
        breaks = 0
        for turn in range(5):
            calls = [{"name": "write", "arguments": {"zeta": "x"}}] * (turn % 3)
            previous = conversation.prompt_ids
            output = _canonical(name, calls, "" if calls else "done")
            parsed = await conversation.answer(output)
            assert len(parsed.tool_calls) == len(calls)
            replies = [{"role": "tool", "tool_call_id": f"c{i}", "name": "write", "content": "ok"} for i in range(len(calls))]
            await conversation.extend(replies or [USER])
            breaks += conversation.segment_break is not None
            assert conversation.prompt_ids[: len(previous) + len(output)] == previous + output
        return breaks

    assert run(play()) == 0


@pytest.mark.parametrize("name", QWEN_FAMILIES)
def test_tool_results_of_one_turn_render_as_the_template_renders_them_together(name: str) -> None:
    model = family(name)
    calls = [{"name": "write", "arguments": {"zeta": "a", "alpha": 1}}, {"name": "read", "arguments": {"zeta": "b"}}]
    replies = [
        {"role": "tool", "tool_call_id": f"c{i}", "name": c["name"], "content": f"result {i}"} for i, c in enumerate(calls)
    ]

    async def play() -> list[int]:
        conversation = Conversation(model, [USER], TOOLS)
        await conversation.open()
        await conversation.answer(_canonical(name, calls, ""))
        await conversation.extend(replies)
        return conversation.prompt_ids

    message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "id": f"c{i}", "function": call} for i, call in enumerate(calls)],
    }
    expected = model.renderer.render_ids([USER, message, *replies], tools=TOOLS, add_generation_prompt=True)  # type: ignore[list-item]
    assert run(play()) == list(expected)


def test_assistant_text_is_never_tokenized_while_a_segment_lasts() -> None:
    """trl#5224: a spy on the tokenizer sees every text that is encoded after the first sample."""
    model = family("qwen3")
    seen: list[str] = []
    encode = model.tokenizer.encode

    def spy(value: str, *args: Any, **options: Any) -> list[int]:
        seen.append(value)
        return encode(value, *args, **options)

    async def play() -> None:
        conversation = Conversation(model, [USER], TOOLS)
        await conversation.open()
        model.tokenizer.encode = spy
        try:
            for word in ("first-secret", "second-secret", "third-secret"):
                await conversation.answer([*encode(f"the {word}"), model.stop_ids[0]])
                await conversation.extend([USER])
        finally:
            del model.tokenizer.encode

    run(play())
    assert seen
    assert not any("secret" in value for value in seen)


@pytest.mark.parametrize("name", QWEN_FAMILIES)
def test_every_prompt_ends_with_the_assistant_header(name: str) -> None:
    """verifiers#476: answers without an assistant header from the second turn on."""

    async def play() -> list[list[int]]:
        model = family(name)
        conversation = Conversation(model, [USER], TOOLS)
        await conversation.open()
        prompts = [conversation.prompt_ids]
        for _ in range(2):
            await conversation.answer(_canonical(name, [], "done"))
            await conversation.extend([USER])
            prompts.append(conversation.prompt_ids)
        return prompts

    header = family(name).renderer.render_ids([USER], add_generation_prompt=True)
    bare = family(name).renderer.render_ids([USER])
    tail = list(header[len(bare) :])
    assert tail
    for prompt in run(play()):
        assert prompt[-len(tail) :] == tail


def test_a_stop_token_the_sampler_kept_back_is_context_and_one_it_sent_is_not_doubled() -> None:
    """SkyRL#2148, verifiers#56: the template's own close must be neither trained nor written twice."""
    model = family("qwen3")
    end = model.stop_ids[0]

    async def play(sent: bool) -> tuple[list[int], list[int]]:
        conversation = Conversation(model, [USER], [])
        await conversation.open()
        output = model.tokenizer.encode("done") + ([end] if sent else [])
        before = conversation.prompt_ids + output
        await conversation.answer(output)
        await conversation.extend([USER])
        return before, conversation.prompt_ids[len(before) :]

    before_sent, after_sent = run(play(True))
    before_kept, after_kept = run(play(False))
    assert after_kept == [end, *after_sent]
    assert end not in after_sent[:1]
    assert before_sent == [*before_kept, end]


def test_tool_schemas_keep_key_order_and_raw_utf8() -> None:
    model = family("qwen3")
    prompt = model.tokenizer.decode(model.renderer.render_ids([USER], tools=TOOLS, add_generation_prompt=True))  # type: ignore[arg-type]
    assert json.dumps(TOOLS[0], ensure_ascii=False) in prompt
    assert "Größe" in prompt


def test_thinking_stays_within_a_user_turn_and_the_policy_decides_across_user_turns() -> None:
    """verl#6854: a template that drops earlier reasoning is a named break, or the exact tokens are kept."""

    async def play(history: str) -> tuple[list[Break | None], list[str]]:
        model = family("qwen3.5", thinking=True, history=history)
        conversation = Conversation(model, [USER], TOOLS, history=history)  # type: ignore[arg-type]
        await conversation.open()
        breaks: list[Break | None] = []
        prompts = []
        call = "<tool_call>\n<function=write>\n<parameter=zeta>\nx\n</parameter>\n</function>\n</tool_call><|im_end|>"
        for answer, reply in (
            ("let me see\n</think>\n\n" + call, {"role": "tool", "tool_call_id": "c0", "name": "write", "content": "ok"}),
            ("all good\n</think>\n\ndone<|im_end|>", USER),
        ):
            await conversation.answer(model.tokenizer.encode(answer))
            await conversation.extend([reply])
            breaks.append(conversation.segment_break)
            prompts.append(model.tokenizer.decode(conversation.prompt_ids))
        return breaks, prompts

    kept, kept_prompts = run(play("keep"))
    assert kept == [None, None]
    assert "let me see" in kept_prompts[1]
    assert "all good" in kept_prompts[1]
    followed, followed_prompts = run(play("template"))
    assert followed == [None, Break.HISTORY_REWRITE]
    assert "let me see" in followed_prompts[0]
    assert "let me see" not in followed_prompts[1]


def test_a_changed_tool_list_is_appended_to_the_user_message_or_rewrites_the_head() -> None:
    new = {
        "type": "function",
        "function": {"name": "erase", "description": "", "parameters": {"type": "object", "properties": {}}},
    }

    async def play(tool_updates: str) -> tuple[Break | None, str]:
        model = family("qwen3")
        conversation = Conversation(model, [USER], TOOLS, tool_updates=tool_updates)  # type: ignore[arg-type]
        await conversation.open()
        await conversation.answer(model.tokenizer.encode("done<|im_end|>"))
        await conversation.extend([{"role": "user", "content": "and now?"}], tools=[*TOOLS, new])
        return conversation.segment_break, model.tokenizer.decode(conversation.prompt_ids)

    broke, prompt = run(play("append"))
    assert broke is None
    assert prompt.index("erase") > prompt.index("done")
    assert prompt.index("erase") < prompt.index("and now?")
    broke, prompt = run(play("rewrite"))
    assert broke is Break.CONTRACT_CHANGE
    assert prompt.index("erase") < prompt.index("do it")


NESTED = {"a": {"b": {"c": {"d": {"e": [1, {"f": {}}]}}}}}
CLOSING = {"c": "a </tool_call> b </tool_call>"}


@pytest.mark.parametrize("arguments", [CLOSING, NESTED, {}], ids=["closing tags in a string", "five levels", "none"])
def test_a_whole_call_parses_to_one_call_whatever_its_arguments_hold(arguments: dict[str, Any]) -> None:
    """odysseus#6013, hermes-agent#2335: neither the first closing tag nor the first closing brace ends a call."""
    model = family("qwen3")
    answer = json.dumps({"name": "w", "arguments": arguments})
    parsed = model.parse(model.tokenizer.encode(f"<tool_call>\n{answer}\n</tool_call><|im_end|>"), [], [])
    assert [(c.name, c.arguments, c.status) for c in parsed.tool_calls] == [("w", arguments, ToolCallParseStatus.OK)]


def test_two_calls_of_which_one_holds_a_closing_tag_parse_to_two_in_either_format() -> None:
    json_model, xml_model = family("qwen3"), family("qwen3.5")
    both = [{"name": "write", "arguments": {"zeta": "x </tool_call> y"}}, {"name": "read", "arguments": {"zeta": "z"}}]
    for model, name in ((json_model, "qwen3"), (xml_model, "qwen3.5")):
        output = model.tokenizer.encode(model.tokenizer.decode(_canonical(name, both, "")))
        parsed = model.parse(output, [], TOOLS)
        assert [(c.name, c.arguments) for c in parsed.tool_calls] == [(c["name"], c["arguments"]) for c in both]


@pytest.mark.parametrize(
    "answer",
    [
        '<tool_call>\n{"name": "w", "arguments": {"c": \n</tool_call>',
        "<tool_call>\nnot json\n</tool_call>",
        '<tool_call>\n{"arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "w", "arguments": {}}',
    ],
    ids=["cut json", "no json", "no name", "unclosed"],
)
def test_a_malformed_call_is_seen_as_a_call_and_kept_in_history(answer: str) -> None:
    """verl#7177, verifiers#1463: neither a final answer nor silently dropped."""

    async def play() -> tuple[int, list[dict[str, Any]]]:
        model = family("qwen3")
        conversation = Conversation(model, [USER], TOOLS)
        await conversation.open()
        parsed = await conversation.answer(model.tokenizer.encode(answer + "<|im_end|>"))
        return len([c for c in parsed.tool_calls if c.status != ToolCallParseStatus.OK]), conversation.messages

    bad, messages = run(play())
    assert bad == 1
    assert len(messages[-1]["content"].strip()) > 5


@pytest.mark.parametrize("arguments", ['{"zeta": "a"}', {"zeta": "a"}, "null", "[1]", "{broken"])
def test_history_with_any_form_of_arguments_renders_again(arguments: Any) -> None:
    """Qwen3#1894: arguments as a JSON string, null, array or rubbish must not crash the second turn's template."""
    for name in ("qwen3", "qwen3.5"):
        model = family(name, history="template")
        message = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "id": "c", "function": {"name": "write", "arguments": arguments}}],
        }
        ids = model.renderer.render_ids([USER, message, USER], tools=TOOLS, add_generation_prompt=True)  # type: ignore[list-item]
        assert ids


def test_a_capped_text_keeps_head_and_tail_names_the_cut_and_costs_no_more_than_its_cap() -> None:
    model = family("qwen3")
    long = "HEAD " + "lorem ipsum dolor " * 300_000 + " TAIL"
    started = time.perf_counter()
    capped = run(model.cap_text(long, 200))
    assert time.perf_counter() - started < 0.5
    assert capped.startswith("HEAD")
    assert capped.endswith("TAIL")
    assert f"of {len(long)} characters cut" in capped
    assert len(model.tokenizer.encode(capped)) <= 200 + 40
    assert run(model.cap_text("short", 200)) == "short"


@given(value=st.text(max_size=400), cap=st.integers(16, 64))
@settings(max_examples=60, deadline=None)
def test_a_capped_text_never_exceeds_its_cap_by_more_than_the_note(value: str, cap: int) -> None:
    model = family("qwen3")
    capped = run(model.cap_text(value, cap))
    assert len(model.tokenizer.encode(capped)) <= cap + 40


def test_rendering_long_prompts_does_not_hold_the_event_loop() -> None:
    """agentcore-rl-toolkit#141: eight prompts of 100k tokens render while a ticker measures the largest pause."""
    model = family("qwen3")
    words = {"role": "user", "content": "lorem ipsum dolor sit amet " * 20_000}

    async def play() -> tuple[float, int]:
        worst = 0.0
        running = True

        async def tick() -> None:
            nonlocal worst
            while running:
                started = time.perf_counter()
                await asyncio.sleep(0.001)
                worst = max(worst, time.perf_counter() - started)

        ticker = asyncio.create_task(tick())
        conversations = [Conversation(model, [words], TOOLS) for _ in range(8)]
        await asyncio.gather(*(conversation.open() for conversation in conversations))
        running = False
        await ticker
        return worst, len(conversations[0].prompt_ids)

    worst, tokens = run(play())
    assert tokens > 100_000
    assert worst < 0.05, f"the event loop stood still for {worst * 1000:.0f} ms"


def test_a_folder_without_a_tokenizer_is_one_sentence(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    with pytest.raises(UserError, match="--tokenizer-model"):
        load_family(str(tmp_path))


def test_an_unknown_renderer_names_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"--renderer takes one of .*qwen3\.5"):
        _renderer_config("x", "qwen9", None, thinking=False, history="keep")
