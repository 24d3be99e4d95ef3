"""The groups of one step: which tasks, and how many of them until enough can teach something.

In: a step number, a policy, a taskset. Out: the step's groups in the order of its tasks. Invariant: which tasks are drawn, and
the seeds of their samples, depend on the run's seed and the step alone (C11).
"""

from __future__ import annotations

from turngrad.advantages import group_advantages
from turngrad.config import TrainConfig
from turngrad.policy import Policy
from turngrad.rollout import Group, Rollouts
from turngrad.tasksets import Taskset


async def gather_groups(
    config: TrainConfig, taskset: Taskset, rollouts: Rollouts, policy: Policy, step: int, *, lag: int = 0
) -> list[Group]:
    """Play the step's tasks; with `--fill-groups`, further ones while too few groups have spread.

    `lag` is by how many optimizer steps the policy will be older than the weights these groups update.
    """
    assert config.tasks_per_step is not None
    assert config.group_size is not None
    count, seed = config.tasks_per_step, f"{config.seed}/{step}"
    rows = taskset.rows_for_step(step, count, config.seed, spare=config.fill_groups)
    groups: list[Group] = []
    wanted = rows[:count]
    while wanted:
        async for group in rollouts.groups(wanted, config.group_size, policy, seed=seed, lag=lag):
            groups.append(group)
        missing = count - sum(group_advantages(g.episodes, config.advantage).reason is None for g in groups)
        wanted = rows[len(groups) : len(groups) + missing]
    # Not in the order they ended, which differs from run to run, and with it the last bit of the gradient.
    return sorted(groups, key=lambda group: rows.index(group.row))
