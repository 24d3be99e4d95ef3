"""What is waited for is said: long waits, and what the SDK writes into its own log."""

from __future__ import annotations

import asyncio
import gc
import logging
from concurrent.futures import Future
from pathlib import Path

import pytest
from fireworks.training.sdk._core.lib.api_future_impl import QueueState
from fireworks.training.sdk._core.lib.public_interfaces.api_future import AwaitableConcurrentFuture
from fireworks.training.sdk._core.lib.queue_state_logger import QueueStateLogger

from tests.drill.life import live
from tests.drill.proxy import Fault, proxy
from tests.tiny_engine import tiny_engine
from turngrad import sdk_log, waits
from turngrad.faults import LearnerTimeout
from turngrad.rollout import quiet_rollouts


async def test_a_wait_that_becomes_long_is_spoken_of_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "FIRST_WORD_SECONDS", 0.05)
    said: list[str] = []
    with waits.told(said.append):
        async with waits.bounded(10, "an update"):
            assert said == []
            await asyncio.sleep(0.3)
        count = len(said)
        await asyncio.sleep(0.3)
    assert said[0] == "an update: waiting for the service, 0.05 s by now"
    assert said[1].endswith("0.1 s by now")
    assert len(said) == count in (2, 3)


async def test_a_wait_that_was_given_up_says_nothing_when_it_fails_at_last(caplog: pytest.LogCaptureFixture) -> None:
    quiet_rollouts()
    late: Future[None] = Future()
    with pytest.raises(LearnerTimeout, match=r"unloading took longer than 0\.05 s"):
        async with waits.bounded(0.05, "unloading"):
            await AwaitableConcurrentFuture(late)
    late.set_exception(RuntimeError("gone"))
    await asyncio.sleep(0.05)
    del late
    gc.collect()
    assert not caplog.records


def test_a_service_that_pauses_training_is_said_once_and_in_our_words(caplog: pytest.LogCaptureFixture) -> None:
    said: list[str] = []
    with sdk_log.told(said.append):
        for _ in range(3):
            # The genuine observer, new each time, so that its own limit of one a minute does not hold.
            QueueStateLogger("model-1", "Training").on_queue_state_change(QueueState.PAUSED_CAPACITY, None)
        QueueStateLogger("model-1", "Training").on_queue_state_change(QueueState.PAUSED_RATE_LIMIT, "three runs at most")
        QueueStateLogger("model-1", "Training").on_queue_state_change(QueueState.ACTIVE, None)
    assert said == [
        "Training: the service makes it wait (the service is running short on capacity, please wait)",
        "Training: the service makes it wait (three runs at most)",
    ]
    assert not caplog.records


def test_the_sdks_errors_pass_in_one_line_and_its_other_warnings_do_not() -> None:
    said: list[str] = []
    log = logging.getLogger("fireworks.training.sdk._core.lib.internal_client_holder")
    with sdk_log.told(said.append):
        log.warning(
            "Session heartbeat failed for 121.5 seconds for session s. Last exception: APIConnectionError: refused.\nTinker"
        )
        log.warning(
            "Session heartbeat failed for 131.5 seconds for session s. Last exception: APIConnectionError: refused.\nTinker"
        )
        log.warning("Failed to drain training telemetry during close")
        log.error("cannot go on\nbecause of this")
    log.warning("after the run")
    assert said == [
        "the service has not heard of this run for 121 s (APIConnectionError: refused); still trying",
        "Fireworks' SDK: cannot go on",
    ]


async def test_an_account_without_credit_is_named_while_training_waits_for_it(tmp_path: Path) -> None:
    said: list[str] = []
    fault = Fault("optim_step", "status", status=402)
    with tiny_engine(tmp_path) as engine, proxy(engine.url, fault) as broken, sdk_log.told(said.append):
        life = await live(engine, broken.url)
    assert life.error is None
    # Sessions that other tests have left behind miss their engines meanwhile, and are heard too.
    told = [text.partition(" (")[0] for text in said if "heard of" not in text]
    assert told == ["the account has no credit left, and training is paused until it has"]
