"""The task lists: 200 entries a category, one split for all, the skipped ones with reasons, documents as official."""

import json

import pytest
from bfcl_data import CATEGORIES, Entry, function_documents, load_category, load_entry

from envs.bfcl.tasks import load_tasks, skip_list, split


def test_every_category_has_200_tasks_named_by_their_entries() -> None:
    for category in CATEGORIES:
        rows = load_tasks(category, stop_at_failed_turn=True)
        assert [row.id for row in rows] == [f"multi_turn_{category}_{index}" for index in range(200)]
        assert [row.scenario for row in rows] == list(range(200))
        assert rows[7].args == {
            "entry": f"multi_turn_{category}_7",
            "user_turns": "official",
            "stop_at_failed_turn": True,
            "abstention": False,
            "max_calls_per_step": 64,
        }
    assert len({row.id for row in load_tasks("all")}) == 800
    with pytest.raises(ValueError, match="unknown BFCL multi-turn category"):
        load_tasks("composite")


def test_the_split_is_150_and_50_scenarios_and_no_prompt_stands_on_both_sides() -> None:
    train, held_out = split()
    assert (len(train), len(held_out)) == (150, 50)
    assert sorted([*train, *held_out]) == list(range(200))
    rows = load_tasks("all")
    sides = [{row.prompt for row in rows if row.scenario in side} for side in (train, held_out)]
    assert sides[0].isdisjoint(sides[1])


def test_skipped_scenarios_carry_their_reason_in_every_category() -> None:
    reasons = skip_list()
    assert sorted(reasons) == [4, 8, 18, 20, 35, 176, 187]
    assert {row.scenario for row in load_tasks("all") if row.skip} == set(reasons)
    assert all(len(reason) > 40 for reason in reasons.values())


def test_documents_are_json_schema_with_the_official_defaults() -> None:
    echo = function_documents("GorillaFileSystem")["echo"]
    assert echo["parameters"]["type"] == "object"
    # The string, not null: the official trap stays.
    assert echo["parameters"]["properties"]["file_name"]["default"] == "None"
    counts = {
        name: len(function_documents(name)) for name in sorted({c for e in load_category("base") for c in e.involved_classes})
    }
    assert counts == {
        "GorillaFileSystem": 18,
        "MathAPI": 17,
        "MessageAPI": 10,
        "TicketAPI": 9,
        "TradingBot": 20,
        "TravelAPI": 18,
        "TwitterAPI": 14,
        "VehicleControlAPI": 22,
    }
    everything = json.dumps([function_documents(name) for name in counts])
    for foreign in ('"type": "dict"', '"type": "float"', '"type": "tuple"'):
        assert foreign not in everything


def test_only_one_entry_needs_a_function_before_its_reveal() -> None:
    assert load_entry("multi_turn_miss_func_49").revealed == {3: ("wc", "cat")}
    assert (
        sum(len(names) for entry in load_category("miss_func") for names in entry.revealed.values()) == 182 + 2 * 14 + 3 * 4 - 1
    )


@pytest.mark.parametrize(
    "entry_id", ["multi_turn_base_200", "multi_turn_base_", "base", "multi_turn_composite_1", "multi_turn_base_-1"]
)
def test_an_unknown_id_is_named(entry_id: str) -> None:
    with pytest.raises(ValueError, match="no BFCL multi-turn entry"):
        load_entry(entry_id)


def test_a_row_whose_turns_and_truth_do_not_match_is_refused() -> None:
    row = {"id": "x", "question": [[]], "involved_classes": [], "initial_config": {}}
    with pytest.raises(ValueError, match="1 user turns and 2 turns of ground truth"):
        Entry.from_row(row, [[], []])
