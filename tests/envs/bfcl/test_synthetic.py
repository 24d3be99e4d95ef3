"""Generated tasks: the same for the same seed, passable by their ground truth, and free of BFCL's own texts."""

import json
from functools import cache
from random import Random

import pytest
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

from envs.bfcl.synthetic import Difficulty, call_strings, generate
from envs.bfcl.synthetic.attempt import Attempt
from envs.bfcl.synthetic.augment import substitute
from envs.bfcl.synthetic.entries import held_out_indices, parse_call, scenario_index, training_entries
from envs.bfcl.synthetic.episode import play, tools_of
from envs.bfcl.synthetic.world import BACKENDS, World, data_folder, function_docs, is_error

SEEDS = range(200)


def replay(entry: dict) -> float:
    attempt = Attempt(entry)
    for calls in entry["ground_truth"]:
        for call in calls:
            attempt.call(call["name"], call["arguments"])
        attempt.end_turn()
        if attempt.over:
            break
    return attempt.reward


@cache
def held_out_sentences() -> frozenset[str]:
    """Every user message of the held-out scenarios, in all four categories."""
    sentences = set()
    for category in ("base", "miss_func", "miss_param", "long_context"):
        path = data_folder() / f"BFCL_v4_multi_turn_{category}.json"
        for line in path.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            if scenario_index(entry["id"]) in held_out_indices():
                sentences |= {message["content"].strip() for turn in entry["question"] for message in turn}
    return frozenset(sentence for sentence in sentences if sentence)


def test_a_seed_gives_the_same_task_every_time() -> None:
    assert [generate(seed) for seed in range(20)] == [generate(seed) for seed in range(20)]
    assert generate(1) != generate(2)


def test_a_task_has_the_shape_of_a_bfcl_entry() -> None:
    theirs = training_entries()[0]
    ours = generate(3)
    assert set(ours) == {"id", "question", "initial_config", "path", "involved_classes", "ground_truth"}
    assert set(ours) <= set(theirs)
    assert ours["id"] == "synthetic_3"
    assert set(ours["question"][0][0]) == {"role", "content"} == set(theirs["question"][0][0])
    assert json.loads(json.dumps(ours)) == ours


def test_ground_truth_passes_our_grading_on_200_seeds() -> None:
    assert [seed for seed in SEEDS if replay(generate(seed)) != 1.0] == []


def test_ground_truth_passes_the_official_checker_on_200_seeds() -> None:
    failed = []
    for seed in SEEDS:
        entry = generate(seed)
        truth = call_strings(entry)
        answer = [[[call] for call in calls] for calls in truth]
        verdict = multi_turn_checker(answer, truth, {**entry, "id": f"multi_turn_base_{seed}"}, "", f"generated{seed}")
        if not verdict["valid"]:
            failed.append(seed)
    assert failed == []


def test_call_strings_say_what_the_structured_calls_say() -> None:
    for seed in range(50):
        entry = generate(seed)
        assert [[parse_call(text) for text in calls] for calls in call_strings(entry)] == entry["ground_truth"]


def test_no_ground_truth_call_returns_an_error() -> None:
    for seed in SEEDS:
        for message in play(generate(seed))[1]:
            assert message["role"] != "tool" or not is_error(message["content"]), (seed, message)


def test_doing_nothing_earns_nothing() -> None:
    attempt = Attempt(generate(5))
    assert not attempt.end_turn()
    assert attempt.over
    assert attempt.reward == 0.0


def test_dropping_the_calls_of_a_turn_costs_that_turn() -> None:
    entry = generate(11, Difficulty(turns=3))
    attempt = Attempt(entry)
    for call in entry["ground_truth"][0]:
        attempt.call(call["name"], call["arguments"])
    assert attempt.end_turn()
    assert not attempt.end_turn()
    assert attempt.reward == pytest.approx(1 / 3)


@pytest.mark.parametrize("turns", [1, 4, 8])
@pytest.mark.parametrize("calls", [1, 3])
def test_difficulty_sets_turns_and_calls(turns: int, calls: int) -> None:
    for seed in range(10):
        entry = generate(seed, Difficulty(turns=turns, calls=calls))
        assert len(entry["question"]) == len(entry["ground_truth"]) == turns
        assert all(1 <= len(made) <= calls for made in entry["ground_truth"])


@pytest.mark.parametrize(("turns", "calls"), [(0, 3), (9, 3), (2, 0)])
def test_a_difficulty_out_of_range_is_refused(turns: int, calls: int) -> None:
    with pytest.raises(ValueError, match="should be"):
        Difficulty(turns=turns, calls=calls)


def test_tasks_cover_every_backend_and_nearly_every_function() -> None:
    used = {call["name"] for seed in range(2_000) for calls in generate(seed)["ground_truth"] for call in calls}
    documented = {doc["name"] for class_name in BACKENDS for doc in function_docs(class_name)}
    assert used <= documented
    assert len(documented - used) <= 6
    for class_name in BACKENDS:
        assert used & {doc["name"] for doc in function_docs(class_name)}


def test_requests_are_worded_in_many_ways() -> None:
    texts = [message["content"] for seed in range(300) for turn in generate(seed)["question"] for message in turn]
    assert len(set(texts)) > 0.98 * len(texts)
    openings = {" ".join(text.split()[:3]) for text in texts}
    assert len(openings) > 0.4 * len(texts)


def test_no_text_of_bfcl_occurs_in_generated_tasks() -> None:
    theirs = set(held_out_sentences())
    theirs |= {message["content"] for entry in training_entries() for turn in entry["question"] for message in turn}
    for seed in range(1_000):
        for turn in generate(seed)["question"]:
            assert not theirs & {message["content"] for message in turn}


def test_no_held_out_scenario_is_a_training_entry() -> None:
    entries = training_entries()
    assert len(entries) == 150
    assert len(held_out_indices()) == 50
    assert not held_out_indices() & {scenario_index(entry["id"]) for entry in entries}


def test_no_held_out_sentence_occurs_in_what_the_warm_start_reads() -> None:
    rng = Random(0)
    texts = []
    for entry in training_entries():
        for version in (entry, substitute(entry, rng)):
            texts += [message["content"] for message in play(version)[1]]
    texts += [message["content"] for seed in range(300) for message in play(generate(seed))[1]]
    everything = "\n".join(texts)
    # A few very short requests ("What's inside?") are anybody's.
    assert [sentence for sentence in held_out_sentences() if len(sentence) > 40 and sentence in everything] == []


def test_a_substitution_keeps_the_task_and_exchanges_its_values() -> None:
    rng = Random(1)
    entries = training_entries()
    changed = [substitute(entry, rng) for entry in entries]
    assert sum(new["question"] != old["question"] for new, old in zip(changed, entries, strict=True)) > 140
    for new, old in zip(changed, entries, strict=True):
        names = [[call["name"] for call in calls] for calls in old["ground_truth"]]
        assert [[call["name"] for call in calls] for calls in new["ground_truth"]] == names
        assert replay(new) == 1.0


def test_ground_truth_strings_are_parsed_with_positions_named_and_never_evaluated() -> None:
    assert parse_call("grep(pattern='a (b)', file_name='x')") == {
        "name": "grep",
        "arguments": {"file_name": "x", "pattern": "a (b)"},
    }
    assert parse_call("mean([1, 2.5])") == {"name": "mean", "arguments": {"numbers": [1, 2.5]}}
    with pytest.raises(ValueError, match="malformed node"):
        parse_call("cat(file_name=open('x'))")
    with pytest.raises(ValueError, match="expected one call"):
        parse_call("a.b()")


def test_a_played_task_has_one_call_per_message_and_closes_every_turn() -> None:
    entry = generate(8)
    tools, messages = play(entry)
    assert tools == tools_of(entry)
    assert [tool["function"]["name"] for tool in tools] == [
        doc["name"] for class_name in entry["involved_classes"] for doc in function_docs(class_name)
    ]
    closings = [message for message in messages if message["role"] == "assistant" and "tool_calls" not in message]
    assert len(closings) == len(entry["question"])
    assert all(len(message.get("tool_calls", [0])) == 1 for message in messages)


def test_a_hasty_policy_ends_its_episode_with_the_turn_that_it_takes_for_done() -> None:
    entry = next(found for seed in range(50) if len((found := generate(seed))["ground_truth"][1]) > 1)
    first, second = entry["ground_truth"][:2]
    made = iter([len(first), 1])
    _, messages = play(entry, lambda calls: next(made))
    calls = [call["function"]["name"] for message in messages for call in message.get("tool_calls", ())]
    assert calls == [call["name"] for call in (*first, second[0])]
    assert sum(message["role"] == "user" for message in messages) == 2
    assert messages[-1] == {"role": "assistant", "content": ""}


def test_worlds_share_nothing_not_even_default_lists() -> None:
    config = {"TwitterAPI": {"authenticated": True, "username": "a", "following_list": ["b"], "tweets": {}, "tweet_counter": 0}}
    first, second = World(["TwitterAPI"], config), World(["TwitterAPI"], config)
    first.call("post_tweet", {"content": "x"})
    first.call("mention", {"tweet_id": 0, "mentioned_usernames": ["@b"]})
    assert json.loads(second.call("post_tweet", {"content": "x"}))["mentions"] == []


def test_an_unknown_function_and_bad_arguments_are_answered_not_raised() -> None:
    world = World(["MathAPI"], {})
    assert is_error(world.call("__init__", {}))
    assert is_error(world.call("mean", {"values": [1]}))
    assert world.call("mean", {"numbers": [1, 2]}) == '{"result": 1.5}'
