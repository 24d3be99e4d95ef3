"""Where a run begins: a new folder, a folder to go on in, or a state on the service in a new folder.

In: a resolved config. Out: a run folder whose checkpoints.jsonl says where to go on from. All else that a resumed run needs (the
order of tasks, seeds, the split) is a function of its settings, so that a state and the settings are enough (C11).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from turngrad.checkpoints import is_state_path, latest, step_in_name
from turngrad.config import TrainConfig
from turngrad.errors import UserError
from turngrad.runlog import RunLog
from turngrad.schedule import has_collapsed


def open_log(config: TrainConfig, say: Callable[[str], None]) -> RunLog | None:
    """The run's folder; None, and `say` tells why, where there is nothing left to do.

    Raises:
        UserError: no such folder, or a state whose step or place is not known.
    """
    if config.resume_from is None:
        return RunLog.create(config)
    if is_state_path(config.resume_from):
        return _from_state(config, config.resume_from, say)
    log = RunLog.reopen(Path(config.resume_from))
    if (reason := _finished(config, log)) is not None:
        log.close()
        say(reason)
        return None
    return log


def _finished(config: TrainConfig, log: RunLog) -> str | None:
    """Why there is nothing to do in the folder; None where there is."""
    assert config.steps is not None
    saved = latest(log.rows("checkpoints.jsonl"))
    if saved is None:
        return None
    if saved.step > config.steps or (saved.step == config.steps and saved.final):
        return f"{log.folder} already has its {config.steps} steps; --steps with a larger number goes on"
    rewards = [row["reward"] for row in log.rows("metrics.jsonl") if row["kind"] == "train" and row["step"] <= saved.step]
    if config.stop_if is not None and has_collapsed(rewards, config.stop_if):
        return (
            f"{log.folder} was ended after step {saved.step} by --stop-if {config.stop_if}; "
            "a smaller one, or --stop-if None, goes on"
        )
    return None


def _from_state(config: TrainConfig, path: str, say: Callable[[str], None]) -> RunLog | None:
    assert config.steps is not None
    step = config.resume_step if config.resume_step is not None else step_in_name(path)
    if step is None:
        raise UserError(f"--resume-from {path}: the name tells no step; --resume-step says which one the state follows")
    if step >= config.steps:
        say(f"{path} already has its {config.steps} steps; --steps with a larger number goes on")
        return None
    _, run, name = path.split("/")
    if not config.on_fireworks and not (
        config.output_dir is not None and (config.output_dir / "engine" / run / "states" / name).is_dir()
    ):
        raise UserError(
            f"--resume-from {path}: the engine on this machine has its states in its run's folder; resume from that folder, or "
            "name the service by --base-url"
        )
    log = RunLog.create(config)
    # The new folder says by itself where it began, so that it can be resumed like any other.
    log.checkpoint({"step": step, "state": path, "snapshot": None, "session": None, "origin": True})
    say(
        f"going on after step {step} from {path}: weights and optimizer are the service's; tasks, seeds and the split follow "
        "from the settings given now, which have to be those of that run"
    )
    say(
        f"not known here: the metrics, evaluations, cost and best snapshot of steps 1 to {step}; the weights are evaluated "
        "first, and --stop-if, --keep-states and the best snapshot count from here"
    )
    return log
