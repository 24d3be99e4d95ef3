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
from collections.abc import Callable
from typing import Any

from turngrad.advantages import group_advantages
from turngrad.batch import Batch, build_batch
from turngrad.checkpoints import Checkpoint, best_snapshot
from turngrad.config import TrainConfig
from turngrad.display import Display
from turngrad.errors import RunError
from turngrad.evaluation import evaluate
from turngrad.faults import LearnerError, StepLost
from turngrad.gathering import gather_groups
from turngrad.learner import Learner, UpdateResult
from turngrad.policy import Policy
from turngrad.reference import Reference
from turngrad.rollout import Group
from turngrad.runlog import RunLog
from turngrad.saving import States
from turngrad.schedule import has_collapsed, learning_rate_at
from turngrad.session import Session
from turngrad.steprow import StepSeconds, step_row
from turngrad.tasksets import Taskset
from turngrad.transcript import show_samples
from turngrad.waits import in_time

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
        self.on_row: Callable[[dict[str, Any]], None] = lambda row: None
        self._states = States(log, config.keep_states, session.delete_state, display.say)
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
        self.display.say("opening the learner")
        try:
            while not await self._train():
                pass
        except RunError:
            await self.save_on_stop()
            raise
        finally:
            await self._stop_ahead()
        if self.config.require_update and self.updates == 0:
            raise RunError(
                "--require-update: no step updated the weights, because no group had two rewards that differ; "
                "--fill-groups plays more groups until enough do, --calibrate says how many to expect"
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
        await self._states.drop_old()
        if self._evaluation_due():
            await self._evaluate(policy)
        every = config.checkpoint_every
        while self.step < config.steps and not self._collapsed():
            late = f"step {self.step + 1} took longer than --step-timeout {config.step_timeout:g} s"
            async with in_time(config.step_timeout, late):
                await self._take_step(policy)
            policy = await self._next_policy(policy)
            if every and self.step % every == 0 and self.step < config.steps:
                await self.save_state()
            if self._evaluation_due():
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
        if self._learner is not None:
            # It may have a place in the service's quota that the next one needs.
            await self._learner.close()
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
            return await Learner.resume(session.service, self.checkpoint.state, base_model=model)
        return await Learner.create(session.service, model, lora_rank=config.lora_rank, seed=config.seed)

    async def _publish(self) -> Policy:
        assert self._learner is not None
        # What is evaluated is a series of its own: the engine keeps the newest of each, and the best must not go.
        kind = "policy-eval" if self._evaluation_due() else "policy"
        name = "final" if self.step == self.config.steps else f"{kind}-{self.step:04d}"
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
        advantages = [
            group_advantages(group.episodes, config.advantage, clip=config.advantage_clip, credit=config.credit)
            for group in groups
        ]
        pairs = [(group.episodes, found) for group, found in zip(groups, advantages, strict=True)]
        batch = build_batch(pairs, normalize=config.normalize, max_seq_len=config.max_seq_len)
        kl = None
        if self._reference is not None:
            batch, kl = await self._reference.penalize(batch, config.kl_coef)
        result = await self._update(batch, step)
        row = step_row(
            config,
            step,
            groups,
            advantages,
            batch,
            result,
            self.session.rollouts.take_counts(),
            StepSeconds(started, rolled, time.monotonic()),
            kl=kl,
            snapshot=policy.snapshot,
            recoveries=self._recoveries[step],
        )
        self.log.episodes(f"step-{step:04d}", (episode for group in groups for episode in group.episodes))
        self.log.metrics(row)
        self.step = step
        self.updates += result.steps > 0
        self.display.step(row, config.steps or 0)
        self.on_row(row)
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
        assert config.warmup_steps is not None
        assert config.schedule is not None
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
        config, rollouts = self.config, self.session.rollouts
        assert config.tasks_per_step is not None
        assert config.group_size is not None
        with self.display.phase(f"step {step}" if lag == 0 else "", config.tasks_per_step * config.group_size):
            self.session.on_progress = lambda episode: self.display.advance(rollouts.in_flight)
            return await gather_groups(config, self.taskset, rollouts, policy, step, lag=lag)

    async def _evaluate(self, policy: Policy) -> None:
        samples = self.config.eval_samples or 1
        done = {row["split"] for row in self.log.rows("metrics.jsonl") if row["kind"] == "eval" and row["step"] == self.step}
        for split, rows in self.taskset.evaluated(self.config).items():
            if split in done:
                continue
            groups, row = await evaluate(
                self.session, rows, policy, split=split, step=self.step, samples=samples, display=self.display
            )
            self.log.episodes(f"eval-{self.step:04d}-{split}", (episode for group in groups for episode in group.episodes))
            self.log.metrics(row)
            self.display.evaluation(row)
            self.on_row(row)

    def _evaluation_due(self) -> bool:
        """Before the first step of what this folder knows of, and every `--eval-every` steps but the last."""
        first = self.step == 0 or not self.log.rows("metrics.jsonl")
        every = self.config.eval_every
        return first or bool(every and self.step % every == 0 and self.step != self.config.steps)

    def _collapsed(self) -> bool:
        if self.config.stop_if is None:
            return False
        rewards = [row["reward"] for row in self.log.rows("metrics.jsonl") if row["kind"] == "train"]
        if collapsed := has_collapsed(rewards, self.config.stop_if):
            reason = f"the reward fell below --stop-if {self.config.stop_if} of its best"
            self.display.say(f"stopping after step {self.step}: {reason}")
        return collapsed

    async def save_state(self, *, final: bool = False, timeout: float = 600.0) -> None:
        """Save weights and optimizer after the last whole step, once a step; `final` says that the run is at its end."""
        saved = self.checkpoint.step if self.checkpoint else 0
        if self._learner is None or (saved == self.step and not final):
            return
        where = {"snapshot": self.snapshot, "session": await self.session.name()}
        try:
            await self._states.save(self._learner, self.step, **where, final=final, timeout=timeout)
        finally:
            # Also where a stop comes while old states are deleted: a name serves once.
            self.checkpoint = self._states.latest

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
        await self.save_state(final=self.step == self.config.steps)
        say, best = self.display.say, best_snapshot(self.log.rows("metrics.jsonl"))
        if best is not None:
            say(f"best weights: {best.snapshot}, after step {best.step}, reward {best.reward:.3f} on {best.where}")
        say(f"final weights: {policy.snapshot}")
        policy.close()
        assert self._learner is not None
        await self._learner.close()
        if (command := await self.session.keep_for(policy.snapshot)) is not None:
            say(f"to make a model of them: {command}")
