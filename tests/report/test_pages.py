"""Pages: what is kept where not everything fits, and that it comes back whole."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.report.runs import hostile, lost, play, tokenizer
from turngrad.episodes import Episode
from turngrad.report.decode import Decoder
from turngrad.report.folder import EpisodeFile
from turngrad.report.pages import Page, PageWriter, ranked, shown, spread_out
from turngrad.report.training import trainings

FILE = EpisodeFile(1, "", Path("step-0001.jsonl.zst"))
CONFIG = {"advantage": "group-zscore", "max_seq_len": 2048}


def write(episodes: list[Episode], budget: int = 10**6) -> tuple[Page, PageWriter]:
    writer = PageWriter(budget)
    decoder = Decoder(lambda ids: tokenizer().decode(list(ids), skip_special_tokens=False))
    return writer.write(FILE, episodes, trainings(episodes, CONFIG, trains=True), decoder, 1), writer


def read(page: Page) -> list[dict[str, Any]]:
    text = zlib.decompress(base64.b64decode(page.data), -15).decode()
    return [json.loads(line) for line in text.splitlines()]


def test_a_page_holds_every_token_with_its_text_and_logprob() -> None:
    episodes = [play("a", 0, 1.0), play("a", 1, 0.0)]
    page, writer = write(episodes)
    record = next(record for record in read(page) if record["index"] == 0)
    for turn, written in zip(episodes[0].turns, record["turns"], strict=True):
        tokens = [writer.vocabulary.entries[place] for place in written["output"]]
        assert [token_id for token_id, _ in tokens] == list(turn.output_ids)
        assert written["logprobs"] == list(turn.logprobs)
        assert written["trained"] == len(turn.output_ids)
    assert "".join(writer.vocabulary.entries[place][1] for place in record["turns"][1]["output"]) == "It is done.<|im_end|>"
    assert [turn["break"] for turn in record["turns"]] == [None, None, "length"]


def test_attempts_at_one_task_share_their_prompt() -> None:
    first, second = read(write([play("a", 0, 1.0), play("a", 1, 0.0)])[0])
    assert "like" not in first["turns"][0]
    assert (second["turns"][0]["like"], second["turns"][0]["context"]) == (0, [])


def test_the_extremes_are_kept_first() -> None:
    middling = [play(task, attempt, 0.5) for task in "ab" for attempt in range(4)]
    best, worst, wordy = play("a", 4, 1.0), play("b", 4, 0.0), play("b", 5, 0.5, said="list it " * 50)
    episodes = [*middling, best, worst, lost("b", 6, 1), wordy, hostile("b", 7, 1)]
    # hostile is the longest of all and has the bad calls; without it that is wordy.
    assert ranked(episodes)[:4] == [8, 9, 10, 12]
    assert 11 in ranked(episodes[:-1])[:4]
    # Then first attempts before second ones.
    assert ranked(middling)[1:4] == [4, 1, 5]


@given(st.integers(0, 40))
def test_every_page_has_its_turn_and_the_ends_come_first(count: int) -> None:
    order = spread_out(count)
    assert sorted(order) == list(range(count))
    if count > 2:
        assert order[:2] == [0, count - 1]


def test_what_does_not_fit_is_left_out_and_counted() -> None:
    episodes = [
        play(f"task_{task}", attempt, float(attempt % 2), said=f"{task} {attempt}") for task in range(9) for attempt in range(4)
    ]
    everything = len(write(episodes)[0].data)
    page, writer = write(episodes, everything // 2 + writer_bytes(episodes))
    assert 0 < page.kept < page.total == 36
    assert len(page.data) <= everything // 2 + writer_bytes(episodes)
    assert len(read(page)) == page.kept
    assert write(episodes, 10)[0] == Page(FILE, 0, 36, "")
    assert writer.vocabulary.entries


def writer_bytes(episodes: list[Episode]) -> int:
    return write(episodes)[1].vocabulary.bytes


def test_a_long_text_keeps_its_ends_and_says_so() -> None:
    text = shown("a" * 3000 + "b" * 3000 + "\x1b")
    assert text.startswith("aaa")
    assert text.endswith("bbb\\u001b")
    assert "2001 of 6001 characters not shown" in text
    assert len(text) < 4200
