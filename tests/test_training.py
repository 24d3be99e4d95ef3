"""The training loop: resume, saved states, the best snapshot, and what ends a run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.loop import Loop, states
from tests.tiny_engine import TinyEngine, tiny_engine
from turngrad.errors import RunError, UserError
from turngrad.runlog import read_rows
from turngrad.session import Session


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyEngine]:
    with tiny_engine(tmp_path_factory.mktemp("engine")) as running:
        yield running


@pytest.fixture
def loop(engine: TinyEngine, monkeypatch: pytest.MonkeyPatch) -> Loop:
    return Loop(engine, monkeypatch)


def path_of(folder: Path, name: str) -> str:
    [found] = [row["state"] for row in read_rows(folder / "checkpoints.jsonl") if row["state"].endswith(name)]
    return found


def same_state(engine: TinyEngine, one: str, other: str) -> bool:
    for stem in ("weights", "optimizer"):
        left, right = engine.saved(one, stem), engine.saved(other, stem)
        if left.keys() != right.keys() or not all(torch.equal(left[name], right[name]) for name in left):
            return False
    return True


def kept_by(engine: TinyEngine, path: str) -> set[str]:
    """The states that the engine has of the run that saved `path`."""
    return {state.name for state in (engine.state_dir / path.split("/")[1] / "states").iterdir()}


class Killed(BaseException):
    """Nothing after it happens, as after a kill -9."""


class TestResume:
    async def test_a_state_on_the_service_is_enough_to_go_on_as_if_never_stopped(self, loop: Loop, tmp_path: Path) -> None:
        """C11 without the earlier run's folder: the same tasks and seeds, and the same weights and moments bit for bit."""
        whole = await loop.train(tmp_path / "whole", eval_tasks=2)
        state = path_of(tmp_path / "whole", "/state-0002")
        found = await loop.train(tmp_path / "rest", resume_from=state, service=True, eval_tasks=2)
        key = ("kind", "step", "split", "tasks", "reward")
        taken = [[row.get(name) for name in key] for row in found if row["kind"] == "train"]
        assert taken == [[row.get(name) for name in key] for row in whole if row["kind"] == "train"][2:]
        assert [row["step"] for row in found if row["kind"] == "eval"] == [2, 2, 4, 4]
        assert same_state(loop.engine, path_of(tmp_path / "whole", "/final-state"), path_of(tmp_path / "rest", "/final-state"))
        assert f"going on after step 2 from {state}" in loop.said
        assert "not known here: the metrics, evaluations, cost and best snapshot of steps 1 to 2" in loop.said

    async def test_a_run_from_a_state_resumes_by_its_own_folder_even_before_it_saved(self, loop: Loop, tmp_path: Path) -> None:
        await loop.train(tmp_path / "whole", steps=3)

        async def stop(seed: str) -> None:
            raise RunError("the power went")

        with pytest.raises(RunError, match="the power went"):
            await loop.train(
                tmp_path / "rest", steps=3, resume_from=path_of(tmp_path / "whole", "/state-0002"), service=True, before=stop
            )
        assert states(tmp_path / "rest") == ["state-0002"]
        await loop.train(tmp_path / "unused", steps=3, resume_from=str(tmp_path / "rest"), service=True)
        assert states(tmp_path / "rest") == ["state-0002", "final-state"]
        assert same_state(loop.engine, path_of(tmp_path / "whole", "/final-state"), path_of(tmp_path / "rest", "/final-state"))

    async def test_a_finished_run_is_left_alone_and_more_steps_extend_it(self, loop: Loop, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        before = await loop.train(folder, steps=2)
        sessions = len(loop.sessions)
        assert await loop.train(tmp_path, steps=2, resume_from=str(folder)) == []
        assert "already has its 2 steps" in loop.said
        assert len(loop.sessions) == sessions
        assert read_rows(folder / "metrics.jsonl") == before
        await loop.train(tmp_path, steps=3, resume_from=str(folder))
        assert [row["step"] for row in read_rows(folder / "metrics.jsonl")] == [1, 2, 3]
        whole = tmp_path / "whole"
        await loop.train(whole, steps=3)
        assert same_state(loop.engine, path_of(whole, "/final-state"), read_rows(folder / "checkpoints.jsonl")[-1]["state"])

    async def test_a_finished_state_is_left_alone_too(self, loop: Loop, tmp_path: Path) -> None:
        await loop.train(tmp_path / "whole", steps=2)
        state = path_of(tmp_path / "whole", "/final-state")
        assert await loop.train(tmp_path / "new", steps=2, resume_from=state, resume_step=2, service=True) == []
        assert "already has its 2 steps" in loop.said
        assert not (tmp_path / "new").exists()

    async def test_a_name_that_tells_no_step_and_a_state_that_is_elsewhere_are_sentences(
        self, loop: Loop, tmp_path: Path
    ) -> None:
        path = f"local/run-{'0' * 32}/"
        with pytest.raises(UserError, match="--resume-step says which one"):
            await loop.train(tmp_path / "new", resume_from=f"{path}final-state", service=True)
        with pytest.raises(UserError, match="has its states in its run's folder"):
            await loop.train(tmp_path / "new", resume_from=f"{path}state-0002")
        with pytest.raises(UserError, match="--resume-step is for"):
            await loop.train(tmp_path / "new", resume_step=3)
        assert not (tmp_path / "new").exists()

    async def test_a_state_of_another_model_is_refused(self, loop: Loop, tmp_path: Path) -> None:
        await loop.train(tmp_path / "whole", steps=2)
        state = path_of(tmp_path / "whole", "/state-0001")
        loop.engine = TinyEngine(loop.engine.url, "accounts/x/models/other", loop.engine.state_dir, loop.engine.process)
        with pytest.raises(RunError, match=r"is one of .*; --base-model names accounts/x/models/other"):
            await loop.train(tmp_path / "rest", steps=2, resume_from=state, service=True)

    async def test_an_evaluation_that_a_stop_cut_off_is_made_up_for(self, loop: Loop, tmp_path: Path) -> None:
        folder = tmp_path / "run"

        async def stop(seed: str) -> None:
            if seed == "0/eval/train" and len(read_rows(folder / "metrics.jsonl")) > 2:
                raise RunError("stopped in an evaluation")

        with pytest.raises(RunError, match="stopped in an evaluation"):
            await loop.train(folder, steps=3, eval_tasks=2, eval_every=1, before=stop)
        await loop.train(tmp_path, steps=3, eval_tasks=2, eval_every=1, resume_from=str(folder))
        rows = [(row["kind"], row["step"], row.get("split")) for row in read_rows(folder / "metrics.jsonl")]
        both = [(("eval", step, "held_out"), ("eval", step, "train")) for step in range(4)]
        steps = [(("train", step, None),) for step in range(1, 4)]
        assert rows == [*both[0], *steps[0], *both[1], *steps[1], *both[2], *steps[2], *both[3]]


class TestStates:
    async def test_the_newest_stay_with_the_final_one_and_the_best_snapshots(self, loop: Loop, tmp_path: Path) -> None:
        def rewards(seed: str, task: int, attempt: int) -> float:
            # The second evaluation, after step 2, is the best.
            return float((task + attempt) % 2) if "eval" not in seed else float(evaluations.pop(0))

        evaluations = [0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]
        folder = tmp_path / "run"
        settings: dict[str, Any] = {"steps": 6, "eval_tasks": 2, "eval_every": 2, "eval_train": False, "keep_states": 2}
        await loop.train(folder, rewards=rewards, **settings)
        assert states(folder) == ["state-0002", "state-0004", "state-0005", "final-state"]
        assert kept_by(loop.engine, path_of(folder, "/final-state")) == {"state-0002", "state-0004", "state-0005", "final-state"}
        assert "dropping" not in read_rows(folder / "checkpoints.jsonl")[-1]

    async def test_a_kill_between_list_and_deletion_leaves_a_true_list_and_the_next_run_deletes(
        self, loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = tmp_path / "run"

        async def killed(self: Session, session: str | None, path: str) -> None:
            rows = read_rows(folder / "checkpoints.jsonl")
            assert [row["step"] for row in rows] == [2]
            assert loop.engine.saved(rows[0]["state"], "weights")
            assert [state for _, state in rows[0]["dropping"]] == [path]
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(Session, "delete_state", killed)
            with pytest.raises(Killed):
                await loop.train(folder, steps=4, keep_states=1)
        old = [state for _, state in read_rows(folder / "checkpoints.jsonl")[0]["dropping"]]
        assert [path.rpartition("/")[2] for path in old] == ["state-0001"]
        assert kept_by(loop.engine, old[0]) >= {"state-0001"}
        await loop.train(tmp_path, steps=2, keep_states=1, resume_from=str(folder))
        assert states(folder) == ["state-0002", "final-state"]
        assert kept_by(loop.engine, old[0]) == {"state-0002"}

    async def test_a_service_that_refuses_to_delete_is_told_of_once_and_the_run_goes_on(self, loop: Loop, tmp_path: Path) -> None:
        loop.engine.break_requests({"match": "/state-0001", "action": "status", "status": 501})
        try:
            await loop.train(tmp_path / "run", steps=4, keep_states=1)
        finally:
            loop.engine.break_requests()
        assert loop.said.count("--keep-states: the service does not delete") == 1
        assert states(tmp_path / "run") == ["state-0002", "state-0003", "final-state"]


class TestEnds:
    async def test_a_collapse_ends_the_run_by_stop_if_and_resuming_it_says_so(self, loop: Loop, tmp_path: Path) -> None:
        folder = tmp_path / "run"

        def rewards(seed: str, task: int, attempt: int) -> float:
            return float(attempt % 2) if int(seed.partition("/")[2]) <= 5 else 0.0

        found = await loop.train(folder, rewards=rewards, steps=14, stop_if=0.5)
        # From 0.5: the mean of five falls to 0.2 with the third step of zeros, but ten steps are needed to compare.
        assert [row["step"] for row in found] == list(range(1, 11))
        assert "stopping after step 10: the reward fell below --stop-if 0.5" in loop.said
        await loop.train(folder, steps=14, stop_if=0.5, resume_from=str(folder))
        assert "was ended after step 10 by --stop-if 0.5" in loop.said
        await loop.train(folder, steps=11, resume_from=str(folder))
        assert read_rows(folder / "metrics.jsonl")[-1]["step"] == 11

    async def test_a_step_beyond_its_time_ends_the_run_with_its_state_saved(self, loop: Loop, tmp_path: Path) -> None:
        async def hang(seed: str) -> None:
            if seed == "0/3":
                await asyncio.sleep(60)

        with pytest.raises(RunError, match="step 3 took longer than --step-timeout 2 s"):
            await loop.train(tmp_path / "run", before=hang, step_timeout=2.0, checkpoint_every=0)
        assert states(tmp_path / "run") == ["state-0002"]
        assert "saved after step 2" in loop.said

    async def test_the_learning_rate_of_the_schedule_is_the_optimizers(self, loop: Loop, tmp_path: Path) -> None:
        settings: dict[str, Any] = {"steps": 5, "warmup_steps": 1, "schedule": "linear", "learning_rate": 2e-3}
        found = await loop.train(tmp_path / "run", **settings)
        assert [row["update/learning_rate"] for row in found] == pytest.approx([1e-3, 2e-3, 1.4e-3, 0.8e-3, 0.2e-3])
        weights = [loop.engine.saved(row["state"], "weights") for row in read_rows(tmp_path / "run" / "checkpoints.jsonl")]
        assert len(weights) == 5

    async def test_on_a_service_the_session_of_a_finished_run_stays_for_promotion_and_says_how(
        self, loop: Loop, tmp_path: Path
    ) -> None:
        await loop.train(tmp_path / "run", steps=1, service=True)
        session = loop.sessions[-1].service.training_session_name
        snapshot = read_rows(tmp_path / "run" / "checkpoints.jsonl")[-1]["snapshot"]
        _, run, name = snapshot.split("/")
        assert f"promote_session_checkpoint(name='\"'\"'{session}/checkpoints/{run}-{name}'\"'\"'" in loop.said
        assert f"the training session {session} stays" in loop.said

    async def test_on_a_service_the_session_of_a_run_that_failed_is_deleted(self, loop: Loop, tmp_path: Path) -> None:
        async def stop(seed: str) -> None:
            raise RunError("stopped")

        with pytest.raises(RunError, match="stopped"):
            await loop.train(tmp_path / "run", before=stop, service=True)
        name = loop.sessions[-1].service.training_session_name
        with pytest.raises(RuntimeError, match="404"):
            await asyncio.to_thread(_list_checkpoints, loop.engine, name)
        assert "training session" not in loop.said


def _list_checkpoints(engine: TinyEngine, session: str | None) -> None:
    from fireworks.training.sdk import FireworksClient

    with FireworksClient(api_key="local", base_url=engine.url.partition("/training/")[0]) as client:
        client.list_training_session_checkpoints(str(session))
