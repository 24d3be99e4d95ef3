"""The training loop: everything comes together here, and nothing is decided here that a module before it decides.

1. Publish the weights as a snapshot; the policy of this step samples from it.
2. Draw the step's tasks and play each `group_size` times, group by group.
3. Rewards become advantages, episodes become datums; one update, or none where nothing can be learned.
4. Write the step's episodes and its row; save a resumable state now and then.
Before the first step and after the last, the training pool and the held-out tasks are evaluated.

When the service loses the learner (a poisoned client, an expired session, an update that did not finish), or a step has no sound
rollout, the loop opens a new session at the newest state that could be saved, and takes the steps since then again.

Invariants: a step's row is written when its update is whole, so that "k steps and resume" takes the same tasks, seeds and
optimizer state as a run that never stopped (C11); what the loop has not written never happened (C12). A step's episodes come
from the weights it updates, unless `--max-lag` says otherwise. Left out on purpose: replay.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from typing import Any

from turngrad.advantages import group_advantages
from turngrad.batch import Batch, build_batch
from turngrad.config import TrainConfig
from turngrad.diagnostics import batch_metrics
from turngrad.display import Display
from turngrad.errors import RunError
from turngrad.evaluation import evaluate
from turngrad.faults import LearnerError, StepLost
from turngrad.learner import Learner, UpdateResult
from turngrad.metrics import rollout_metrics
from turngrad.policy import Policy
from turngrad.reference import Reference
from turngrad.rollout import Group
from turngrad.runlog import Checkpoint, RunLog
from turngrad.schedule import has_collapsed, learning_rate_at
from turngrad.session import Session
from turngrad.tasksets import Taskset
from turngrad.transcript import show_samples

_SAVE_ON_STOP_SECONDS = 60.0
"""An update that was paid for is worth waiting for; a second Ctrl-C does not wait."""
RETRY_SECONDS = (0.0, 15.0, 60.0)
"""Waits before each new try of one step, after which the run ends; the SDK retries for minutes of its own in each."""


class Trainer:
    """One run from its first step, or the one after `checkpoint`, to its last."""

    def __init__(
        self,
        config: TrainConfig,
        taskset: Taskset,
        session: Session,
        log: RunLog,
        display: Display,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        self.config = config
        self.taskset = taskset
        self.session = session
        self.log = log
        self.display = display
        self.checkpoint = checkpoint
        self.step = checkpoint.step if checkpoint else 0
        self.snapshot: str | None = None
        self.updates = 0
        self._learner: Learner | None = None
        self._reference: Reference | None = None
        self._ahead: asyncio.Task[list[Group]] | None = None
        self._completing: asyncio.Task[None] | None = None
        self._recoveries: Counter[int] = Counter()

    async def run(self) -> None:
        """Train to the last step, evaluate, and publish the final weights.

        Raises:
            RunError: the run cannot go on; its state is saved where the service still answers.
        """
        config = self.config
        self.display.say("opening the learner")
        try:
            while not await self._train():
                pass
        except TimeoutError as error:
            await self.save_on_stop()
            raise RunError(f"step {self.step + 1} took longer than --step-timeout {config.step_timeout:g} s") from error
        except RunError:
            await self.save_on_stop()
            raise
        finally:
            await self._stop_ahead()
        if config.require_update and self.updates == 0:
            raise RunError(
                "--require-update: no step updated the weights, because no group had two rewards that differ; "
                "see the rewards above, and try --calibrate"
            )

    async def _train(self) -> bool:
        """Train from where the learner is to the end; False where the learner was lost and the loop has gone back."""
        try:
            if self._learner is None:
                if self._recoveries:
                    await self.session.reconnect()
                self._learner = await self._open_learner()
            await self._take_steps(await self._publish())
        except LearnerError as error:
            await self._go_back(error)
            return False
        return True

    async def _take_steps(self, policy: Policy) -> None:
        config = self.config
        assert config.steps is not None
        self.updates = sum(bool(row.get("updated")) for row in self.log.rows("metrics.jsonl"))
        if self.step == 0:
            await self._evaluate(policy)
        every = config.checkpoint_every
        while self.step < config.steps:
            async with asyncio.timeout(config.step_timeout):
                await self._take_step(policy)
            policy = await self._next_policy(policy)
            if every and self.step % every == 0 and self.step < config.steps:
                await self.save_state()
            if config.stop_if is not None and self._collapsed():
                self.display.say(f"stopping after step {self.step}: the reward fell below --stop-if {config.stop_if} of its best")
                break
            if config.eval_every and self.step % config.eval_every == 0 and self.step < config.steps:
                await self._evaluate(policy)
        await self._evaluate(policy)
        await self._finish(policy)

    async def _go_back(self, error: LearnerError) -> None:
        """To the newest state there is, this step's if it can be saved. Raises `error` where that mends nothing."""
        failed = self.step + 1
        if not error.resumable or self._recoveries[failed] == len(RETRY_SECONDS):
            raise error
        wait = RETRY_SECONDS[self._recoveries[failed]]
        self._recoveries[failed] += 1
        await self._stop_ahead()
        with contextlib.suppress(LearnerError):
            await self.save_state(timeout=_SAVE_ON_STOP_SECONDS)
        self._learner = self._completing = None
        self.step = self.checkpoint.step if self.checkpoint else 0
        self.log.drop_after(self.step)
        self.session.rollouts.take_counts()
        self.display.say(f"{error}; going on after step {self.step} with a new session")
        await asyncio.sleep(wait)

    async def _stop_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)

    async def _open_learner(self) -> Learner:
        config, session = self.config, self.session
        model = session.endpoint.base_model
        if config.kl_coef:
            self._reference = await Reference.create(session.service, model)
        if self.checkpoint is not None:
            return await Learner.resume(session.service, self.checkpoint.state)
        return await Learner.create(session.service, model, lora_rank=config.lora_rank, seed=config.seed)

    async def _publish(self) -> Policy:
        assert self._learner is not None
        name = "final" if self.step == self.config.steps else f"policy-{self.step:04d}"
        self.snapshot = await self._learner.snapshot(name)
        return await self.session.policy(self.snapshot)

    async def _take_step(self, policy: Policy) -> None:
        config, step = self.config, self.step + 1
        assert config.steps is not None
        started = time.monotonic()
        ahead, self._ahead = self._ahead, None
        groups = await (ahead if ahead is not None else self._roll_out(policy, step))
        if all(episode.excluded is not None for group in groups for episode in group.episodes):
            counts = self.session.rollouts.take_counts()
            failed = ", ".join(f"{count} by class {name}" for name, count in sorted(counts.failures.items()))
            raise StepLost(f"step {step}: not one rollout was sound ({failed}; the last: {counts.last_error})")
        if config.max_lag and step < config.steps:
            self._ahead = asyncio.create_task(self._roll_out(policy, step + 1, lag=1))
        # A task of its own: a stop waits until update and row are whole, so that weights and folder agree.
        self._completing = asyncio.create_task(self._complete_step(policy, step, groups, started))
        await asyncio.shield(self._completing)
        self._completing = None

    async def _complete_step(self, policy: Policy, step: int, groups: list[Group], started: float) -> None:
        """Update on the groups, then write the step's episodes and its row."""
        config, rolled = self.config, time.monotonic()
        pairs = [
            (
                group.episodes,
                group_advantages(group.episodes, config.advantage, clip=config.advantage_clip, credit=config.credit),
            )
            for group in groups
        ]
        batch = build_batch(pairs, normalize=config.normalize, max_seq_len=config.max_seq_len)
        kl = None
        if self._reference is not None:
            batch, kl = await self._reference.penalize(batch, config.kl_coef)
        result = await self._update(batch, step)
        counts = self.session.rollouts.take_counts()
        ended = time.monotonic()
        row: dict[str, Any] = {
            "kind": "train",
            "step": step,
            **rollout_metrics([group.episodes for group in groups]),
            "kept_groups": sum(advantages.reason is None for _, advantages in pairs),
            "training_datums": len(batch.sent),
            "updated": result.steps > 0,
            "why_not_updated": result.skipped,
            "loss": result.metrics.get("update/loss"),
            "kl": kl,
            "snapshot": policy.snapshot,
            "tasks": sorted(group.row.id for group in groups),
            "rollouts_started": counts.started,
            "failures": dict(counts.failures),
            "last_error": counts.last_error,
            "recoveries": self._recoveries[step],
            "seconds": round(ended - started, 3),
            "seconds_rollout": round(rolled - started, 3),
            "seconds_update": round(ended - rolled, 3),
            **batch_metrics(pairs, batch),
            **result.metrics,
        }
        self.log.episodes(f"step-{step:04d}", (episode for group in groups for episode in group.episodes))
        self.log.metrics(row)
        self.step = step
        self.updates += result.steps > 0
        self.display.step(row, config.steps or 0)
        if config.debug_samples:
            show_samples(groups, config.debug_samples, self.session.family, self.display)
        if step == 1 and self.taskset.has_tools and row["tool_calls_per_episode"] == 0:
            self.display.say(
                "warning: no episode called a tool; the renderer may not fit the model "
                f"(now {self.session.family.name}; --renderer names another)"
            )

    async def _update(self, batch: Batch, step: int) -> UpdateResult:
        config = self.config
        assert self._learner is not None
        assert config.learning_rate is not None
        assert config.steps is not None
        rate = learning_rate_at(
            step, peak=config.learning_rate, steps=config.steps, warmup=config.warmup_steps, schedule=config.schedule
        )
        return await self._learner.update(
            batch,
            loss_fn=config.loss_fn,
            learning_rate=rate,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            grad_clip=config.grad_clip,
            minibatches=config.minibatches,
            check_logprobs=config.check_logprobs,
            timeout=config.step_timeout,
        )

    async def _next_policy(self, policy: Policy) -> Policy:
        """Publish the weights; the old policy is released when nothing samples from it any more."""
        if self._ahead is None:
            policy.close()
        else:
            self._ahead.add_done_callback(lambda task: policy.close())
        return await self._publish()

    async def _roll_out(self, policy: Policy, step: int, *, lag: int = 0) -> list[Group]:
        """The step's groups; with `--fill-groups`, further ones while too few have spread.

        `lag` is by how many optimizer steps the policy will be older than the weights these groups update.
        """
        config = self.config
        assert config.tasks_per_step is not None
        assert config.group_size is not None
        count, size, seed = config.tasks_per_step, config.group_size, f"{config.seed}/{step}"
        rows = self.taskset.rows_for_step(step, count, config.seed, spare=config.fill_groups)
        groups: list[Group] = []
        with self.display.phase(f"step {step}" if lag == 0 else "", count * size):
            self.session.on_progress = lambda episode: self.display.advance()
            wanted = rows[:count]
            while wanted:
                async for group in self.session.rollouts.groups(wanted, size, policy, seed=seed, lag=lag):
                    groups.append(group)
                missing = count - sum(group_advantages(g.episodes, config.advantage).reason is None for g in groups)
                wanted = rows[len(groups) : len(groups) + missing]
        # Not in the order they ended, which differs from run to run, and with it the last bit of the gradient.
        return sorted(groups, key=lambda group: rows.index(group.row))

    async def _evaluate(self, policy: Policy) -> None:
        config = self.config
        if not config.eval_tasks:
            return
        assert config.eval_samples is not None
        splits = {"held_out": self.taskset.held_out[: config.eval_tasks]}
        if config.eval_train:
            splits["train"] = self.taskset.train[: config.eval_tasks]
        done = {row["split"] for row in self.log.rows("metrics.jsonl") if row["kind"] == "eval" and row["step"] == self.step}
        for split, rows in splits.items():
            if split in done:
                continue
            groups, row = await evaluate(
                self.session, rows, policy, split=split, step=self.step, samples=config.eval_samples, display=self.display
            )
            self.log.episodes(f"eval-{self.step:04d}-{split}", (episode for group in groups for episode in group.episodes))
            self.log.metrics(row)
            self.display.evaluation(row)

    def _collapsed(self) -> bool:
        rows = [row for row in self.log.rows("metrics.jsonl") if row["kind"] == "train"]
        return has_collapsed([row["reward"] for row in rows], self.config.stop_if or 0.0)

    async def save_state(self, name: str | None = None, *, timeout: float = 600.0) -> None:
        """Save weights and optimizer after the last whole step, once a step."""
        saved = self.checkpoint.step if self.checkpoint else 0
        if self._learner is None or (saved == self.step and name is None):
            return
        path = await self._learner.save_state(name or f"state-{self.step:04d}", timeout=timeout)
        self.log.checkpoint({"step": self.step, "state": path, "snapshot": self.snapshot})
        self.checkpoint = Checkpoint(self.step, path)

    async def save_on_stop(self) -> None:
        """Let a step whose update is under way become whole, then save; bounded, and never worse than not saving."""
        try:
            async with asyncio.timeout(_SAVE_ON_STOP_SECONDS):
                if self._completing is not None and not self._completing.done():
                    await self._completing
                if self.step == 0:
                    return
                await self.save_state()
                self.display.say(f"saved after step {self.step}; go on with --resume-from {self.log.folder}")
        except (RunError, TimeoutError, asyncio.CancelledError) as error:
            reason = str(error) or type(error).__name__
            saved = f"goes on after step {self.checkpoint.step}" if self.checkpoint else "starts anew"
            self.display.say(f"the state after step {self.step} could not be saved ({reason}); --resume-from {saved}")

    async def _finish(self, policy: Policy) -> None:
        await self.save_state("final-state" if self.step == self.config.steps else None)
        self.display.say(f"final weights: {policy.snapshot}")
        policy.close()
        assert self._learner is not None
        await self._learner.close()
