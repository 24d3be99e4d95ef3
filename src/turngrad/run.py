"""A run from command line to exit status: folder, session, trainer, signals.

First Ctrl-C, SIGTERM or SIGHUP: no new rollouts, the update under way ends, the state is saved, status 130. Second: at once.
A user's mistake is one sentence and status 2, a run that cannot go on one sentence and status 1; never a traceback.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from turngrad.backend import local_model, watched
from turngrad.checkpoints import latest
from turngrad.config import TrainConfig
from turngrad.display import Display
from turngrad.errors import RunError, UserError
from turngrad.resuming import open_log
from turngrad.runlog import RunLog
from turngrad.tasksets import Taskset, load_taskset
from turngrad.trackers import require_tracker, tracked


def main(config: TrainConfig) -> int:
    """Train, or calibrate, as the config says; the exit status."""
    return supervised(_run(config, Display()))


def supervised(work: Coroutine[Any, Any, None]) -> int:
    """Run `work` under the rules of the module docstring."""
    try:
        return asyncio.run(_with_signals(work))
    except UserError as error:
        _complain(str(error))
        return 2
    except RunError as error:
        _complain(str(error))
        return 1


async def _with_signals(work: Coroutine[Any, Any, None]) -> int:
    task = asyncio.ensure_future(work)
    received: list[int] = []

    loop = asyncio.get_running_loop()

    def arrived(number: int, frame: object) -> None:
        received.append(number)
        if len(received) > 1:
            # Children die with this process by the kernel's hand.
            os._exit(128 + number)
        loop.call_soon_threadsafe(stop)

    def stop() -> None:
        # What is cut off in the middle of a call says so, to nobody's use.
        loop.set_exception_handler(lambda loop, context: None)
        _complain("stopping: the state is being saved; once more to stop at once")
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # nohup asks by an ignored SIGHUP to outlive the terminal.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            # Not the loop's own handler: it would not hear the second signal while the loop is busy, such as with imports.
            signal.signal(number, arrived)
    try:
        await task
    except asyncio.CancelledError:
        if not received:
            raise
        return 130
    return 0


async def _run(config: TrainConfig, display: Display) -> None:
    resolved = config.resolve()
    taskset = load_taskset(resolved)
    if not resolved.on_fireworks:
        # Before a run folder is made for a model that is not there.
        await asyncio.to_thread(local_model, resolved)
    if resolved.calibrate:
        await _calibrate(resolved, taskset, display)
        return
    if resolved.track is not None:
        require_tracker(resolved.track)
    log = open_log(resolved, display.say)
    if log is None:
        return
    try:
        await _train(resolved, taskset, log, display)
    finally:
        log.close()


async def _calibrate(config: TrainConfig, taskset: Taskset, display: Display) -> None:
    from turngrad.calibration import calibrate
    from turngrad.session import open_session

    assert config.tasks_per_step is not None
    assert config.group_size is not None
    rollouts = config.tasks_per_step * config.group_size
    display.say(f"calibration of {config.base_model} on {config.taskset}: {rollouts} rollouts, no update")
    with tempfile.TemporaryDirectory(prefix="turngrad-") as folder:
        async with open_session(config, taskset, Path(folder), say=display.say) as session:
            await watched(calibrate(config, taskset, session, display), session.endpoint.lost)


async def _train(config: TrainConfig, taskset: Taskset, log: RunLog, display: Display) -> None:
    # Here, not at the top: hud, the SDK and the tokenizer take seconds that `--help` should not.
    from turngrad.session import open_session
    from turngrad.training import Trainer

    assert config.steps is not None
    assert config.tasks_per_step is not None
    assert config.group_size is not None
    checkpoint = latest(log.rows("checkpoints.jsonl"))
    done = checkpoint.step if checkpoint else 0
    log.drop_after(done if checkpoint else -1)
    log.write_config(config)
    log.write_split((row.id for row in taskset.train), (row.id for row in taskset.held_out))
    display.recall(log.rows("metrics.jsonl"))
    display.say(f"run folder {log.folder}")
    display.say(_announcement(config, done))
    async with (
        tracked(config.track, config, log.folder, done=done, say=display.say) as on_row,
        open_session(config, taskset, log.folder / "engine", say=display.say) as session,
    ):
        trainer = Trainer(config, taskset, session, log, display, checkpoint)
        trainer.on_row = on_row
        try:
            await watched(trainer.run(), session.endpoint.lost)
        except asyncio.CancelledError:
            await trainer.save_on_stop()
            raise


def _announcement(config: TrainConfig, done: int) -> str:
    assert config.steps is not None
    assert config.tasks_per_step is not None
    assert config.group_size is not None
    left = config.steps - done
    rollouts = left * config.tasks_per_step * config.group_size
    splits = 1 + config.eval_train
    evaluations = (config.eval_tasks or 0) * (config.eval_samples or 0) * splits * ((done == 0) + 1)
    where = (
        f"FIREWORKS_API_KEY is set: training {config.base_model} on Fireworks, which is paid for"
        if config.on_fireworks
        else f"training {config.base_model} on this machine"
    )
    steps = f"{left} steps of {config.tasks_per_step} tasks x {config.group_size} attempts = {rollouts} rollouts"
    return f"{where}: {steps}, and {evaluations} for evaluation"


def _complain(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(text if text.startswith("stopping") else f"error: {text}", file=sys.stderr, flush=True)
