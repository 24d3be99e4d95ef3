"""Sessions live as long as their heartbeats, and take their models with them."""

from __future__ import annotations

import pytest

from turngrad.local.sessions import EXPIRY_SECONDS, Sessions
from turngrad.local.wire import ApiError


def ignore(*_: str) -> None: ...


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_ids_look_like_the_services() -> None:
    assert Sessions(ignore, ignore).create().startswith("ts-")


def test_a_silent_session_is_closed_and_its_models_unloaded(clock: Clock) -> None:
    unloaded: list[str] = []
    sessions = Sessions(unloaded.append, ignore, clock)
    silent, lively = sessions.create(), sessions.create()
    sessions.own(silent, "run-a:train:0")
    sessions.own(lively, "run-b:train:0")
    clock.now = EXPIRY_SECONDS - 1
    sessions.beat(lively)
    clock.now = EXPIRY_SECONDS + 1
    sessions.expire()
    assert unloaded == ["run-a:train:0"]
    sessions.check(lively)
    assert sessions.sequencer("run-b:train:0")
    for call in (lambda: sessions.beat(silent), lambda: sessions.sequencer("run-a:train:0")):
        with pytest.raises(ApiError) as refused:
            call()
        assert refused.value.status == 404


def test_closing_twice_is_404(clock: Clock) -> None:
    sessions = Sessions(ignore, ignore, clock)
    session = sessions.create()
    sessions.close(session)
    with pytest.raises(ApiError, match="not open"):
        sessions.close(session)


def test_an_operation_of_its_model_is_a_sign_of_life_too(clock: Clock) -> None:
    sessions = Sessions(ignore, ignore, clock)
    session = sessions.create()
    sessions.own(session, "run-a:train:0")
    clock.now = EXPIRY_SECONDS - 1
    sessions.sequencer("run-a:train:0")
    clock.now = EXPIRY_SECONDS + 1
    sessions.expire()
    sessions.check(session)


def test_operations_that_wait_for_an_earlier_one_end_with_their_model(clock: Clock) -> None:
    abandoned: list[tuple[str, str]] = []
    ran: list[int] = []
    sessions = Sessions(ignore, lambda *call: abandoned.append(call), clock)
    session = sessions.create()
    sessions.own(session, "run-a:train:0")
    sequencer = sessions.sequencer("run-a:train:0")
    sequencer.add(1, "one", lambda: ran.append(1))
    sequencer.add(3, "three", lambda: ran.append(3))
    sessions.close(session)
    assert ran == [1]
    assert abandoned == [("three", "run-a:train:0 was unloaded before an earlier operation arrived")]


def test_runs_of_a_session_are_its_own(clock: Clock) -> None:
    sessions = Sessions(ignore, ignore, clock)
    one, two = sessions.create(), sessions.create()
    sessions.own(one, "run-a:train:0")
    sessions.own(two, "run-b:train:0")
    assert sessions.runs(one) == ["run-a"]
    sessions.forget("run-a:train:0")
    assert sessions.runs(one) == ["run-a"]
