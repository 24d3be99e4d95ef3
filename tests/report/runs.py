"""Run folders without a model: episodes written by hand, through the real log and the real metrics."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from turngrad.advantages import group_advantages
from turngrad.batch import build_batch
from turngrad.config import TrainConfig
from turngrad.diagnostics import batch_metrics
from turngrad.episodes import BadCall, Break, Episode, Failure, StopReason, ToolCall, Turn, logprob_array, token_array
from turngrad.local.models import BFCL_STARTER_FOLDER
from turngrad.metrics import evaluation_metrics, rollout_metrics
from turngrad.runlog import RunLog

HOSTILE = (
    "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'></script><!-- ]]> &lt;b&gt; "
    "\x1b[2J\x1b]0;owned\x07 \u202egnp.exe\u202c \u2066\u0000 @@DATA@@ ${window.hacked = 1} [bold red]rich[/] " + "A" * 100_000
)


@cache
def tokenizer() -> Any:
    from renderers.base import load_tokenizer

    return load_tokenizer(str(BFCL_STARTER_FOLDER))


@cache
def ids(text: str) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False)


def turn(context: str, output: str, logprob: float = -0.5, **changes: Any) -> Turn:
    output_ids = ids(output)
    return Turn(token_array(ids(context)), token_array(output_ids), logprob_array([logprob] * len(output_ids)), "stop", **changes)


def call(result: str = "done", **changes: Any) -> ToolCall:
    return ToolCall(id="call-1-0", name="ls", arguments={"path": "."}, raw='{"name": "ls"}', result=result, **changes)


def play(task: str, attempt: int, reward: float, *, step: int = 1, said: str = "list it") -> Episode:
    """Two turns: a call and its result, and an answer after a segment break."""
    turns = (
        turn(
            f"<|im_start|>system\nTools: ls<|im_end|><|im_start|>user\n{said}<|im_end|><|im_start|>assistant\n",
            '<tool_call>{"name": "ls", "arguments": {}}</tool_call><|im_end|>',
            tool_calls=(call(),),
        ),
        turn("<|im_start|>user\n<tool_response>done</tool_response><|im_end|><|im_start|>assistant\n", "It is done.<|im_end|>"),
        turn("<|im_start|>user\nAgain.<|im_end|><|im_start|>assistant\n", "<|im_end|>", segment_break=Break.LENGTH, user_turn=1),
    )
    info = {"strict": reward >= 1.0, "reason": None if reward >= 1.0 else "the file is still there"}
    return Episode(
        task, f"0/{step}/{task}", attempt, turns, reward, StopReason.DONE, info=info, snapshot="local/policy", seconds=2.5
    )


def hostile(task: str, attempt: int, step: int) -> Episode:
    """Every text that a policy, a tool or an environment can write is an attack."""
    attacked = turn(
        f"<|im_start|>user\n{HOSTILE[:2000]}<|im_end|>",
        HOSTILE[:300],
        tool_calls=(
            ToolCall(HOSTILE[:50], HOSTILE[:200], None, HOSTILE[:300], HOSTILE, bad=BadCall.UNPARSABLE),
            ToolCall("b", HOSTILE[:200], {HOSTILE[:200]: HOSTILE[:200]}, "", HOSTILE[:300], is_error=True),
        ),
    )
    return Episode(
        task,
        f"0/{step}/{task}",
        attempt,
        (attacked,),
        0.0,
        StopReason.MALFORMED,
        error=HOSTILE[:300],
        info={HOSTILE[:200]: HOSTILE, "list": [HOSTILE[:200]]},
        snapshot=HOSTILE[:200],
    )


def lost(task: str, attempt: int, step: int) -> Episode:
    return Episode(
        task, f"0/{step}/{task}", attempt, (), None, StopReason.INFRASTRUCTURE, failure=Failure.TOOL_SERVER, error="server gone"
    )


def step_groups(step: int) -> list[list[Episode]]:
    """Three tasks: one that rises, one that is always right, one under attack with an attempt lost."""
    rising = [play("rising_2", attempt, float(attempt < step), step=step) for attempt in range(4)]
    right = [play("right_10", attempt, 1.0, step=step) for attempt in range(4)]
    attack = "attack_1 <script>window.hacked = 1</script>"
    attacked = [hostile(attack, 0, step), play(attack, 1, 0.5, step=step), lost(attack, 2, step), hostile(attack, 3, step)]
    return [rising, right, attacked]


def write_run(folder: Path, *, steps: int = 3, planned: int | None = None, **settings: Any) -> Path:
    """A run of `steps` steps with evaluations before and after; `planned` more than that leaves it unfinished."""
    config = TrainConfig(output_dir=folder, backend="local", steps=planned or steps, **{"base_model": "bfcl-starter", **settings})
    log = RunLog.create(config.resolve())
    log.write_config(config.resolve())
    write_evaluation(log, 0)
    for step in range(1, steps + 1):
        write_step(log, step, step_groups(step))
    if not planned:
        finish(log, steps)
    log.close()
    return folder


def write_step(log: RunLog, step: int, groups: Sequence[Sequence[Episode]]) -> None:
    pairs = [(group, group_advantages(group, "group-zscore")) for group in groups]
    batch = build_batch(pairs, normalize="token", max_seq_len=2048)
    log.episodes(f"step-{step:04d}", [episode for group in groups for episode in group])
    log.metrics(
        {
            "kind": "train",
            "step": step,
            **rollout_metrics(groups),
            "kept_groups": sum(advantages.reason is None for _, advantages in pairs),
            "updated": True,
            "why_not_updated": None,
            "loss": -0.1 * step,
            "kl": None,
            "tasks": sorted({group[0].task_id for group in groups}),
            "failures": {"tool_server": 2},
            "last_error": "server gone <b>",
            "seconds": 5.0,
            "seconds_rollout": 3.0,
            "seconds_update": 2.0,
            **batch_metrics(pairs, batch),
            "gap/mean": 1e-6,
            "gap/max": 1e-4,
        }
    )


def write_evaluation(log: RunLog, step: int) -> None:
    for split in ("held_out", "train"):
        groups = [[play(f"{split}_{task}", attempt, float(attempt == 0), step=step) for attempt in range(2)] for task in range(3)]
        log.episodes(f"eval-{step:04d}-{split}", [episode for group in groups for episode in group])
        row = {**evaluation_metrics(groups), "turns_per_episode": 3.0, "tool_calls_per_episode": 1.0, "bad_call_rate": 0.0}
        log.metrics({"kind": "eval", "step": step, "split": split, **row, "failures": {}, "seconds": 1.0})


def finish(log: RunLog, steps: int) -> None:
    write_evaluation(log, steps)
    log.checkpoint({"step": steps, "state": "local/state"})
