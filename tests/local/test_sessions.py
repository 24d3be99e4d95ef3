"""Sessions live as long as their heartbeats, and take their models with them."""

from __future__ import annotations

import pytest

from turngrad.local.sessions import EXPIRY_SECONDS, Sessions
from turngrad.local.wire import ApiError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_ids_look_like_the_services() -> None:
    assert Sessions(lambda model: None).create().startswith("ts-")


def test_a_silent_session_is_closed_and_its_models_unloaded(clock: Clock) -> None:
    unloaded: list[str] = []
    sessions = Sessions(unloaded.append, clock)
    silent, lively = sessions.create(), sessions.create()
    sessions.own(silent, "run-a:train:0")
    sessions.own(lively, "run-b:train:0")
    clock.now = EXPIRY_SECONDS - 1
    sessions.beat(lively)
    clock.now = EXPIRY_SECONDS + 1
    sessions.create()
    assert unloaded == ["run-a:train:0"]
    sessions.check(lively)
    assert sessions.sequencer("run-b:train:0")
    for call in (lambda: sessions.beat(silent), lambda: sessions.sequencer("run-a:train:0")):
        with pytest.raises(ApiError) as refused:
            call()
        assert refused.value.status == 404


def test_closing_twice_is_404(clock: Clock) -> None:
    sessions = Sessions(lambda model: None, clock)
    session = sessions.create()
    sessions.close(session)
    with pytest.raises(ApiError, match="not open"):
        sessions.close(session)


def test_runs_of_a_session_are_its_own(clock: Clock) -> None:
    sessions = Sessions(lambda model: None, clock)
    one, two = sessions.create(), sessions.create()
    sessions.own(one, "run-a:train:0")
    sessions.own(two, "run-b:train:0")
    assert sessions.runs(one) == ["run-a"]
