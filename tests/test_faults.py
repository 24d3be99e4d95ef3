"""Every failure of the service becomes one sentence and says who acts."""

from __future__ import annotations

import asyncio
import threading
import time

import httpx
import pytest
from fireworks.training.sdk import Datum
from fireworks.training.sdk._core import _exceptions as sdk
from fireworks.training.sdk._core.lib.retryable_exception import RetryableException
from fireworks.training.sdk.types import RequestErrorCategory
from pydantic import ValidationError

from turngrad.faults import (
    LearnerError,
    LearnerFailed,
    LearnerLost,
    LearnerRefused,
    LearnerTimeout,
    LearnerUnknown,
    LearnerUnreachable,
    StepLost,
    explain,
)
from turngrad.waits import bounded, in_thread

REQUEST = httpx.Request("POST", "http://service/api")


def status(code: int) -> sdk.APIStatusError:
    return sdk.APIStatusError("said\n so", response=httpx.Response(code, request=REQUEST), body=None)


@pytest.mark.parametrize(
    ("error", "family", "says"),
    [
        (status(401), LearnerRefused, "refused the key (401: said so); check FIREWORKS_API_KEY"),
        (status(403), LearnerRefused, "refused the key (403"),
        (status(402), LearnerRefused, "no credit or quota"),
        (status(404), LearnerUnknown, "does not know the model or checkpoint"),
        (status(400), LearnerRefused, "refused the request (400"),
        (status(422), LearnerRefused, "refused the request (422"),
        (status(408), LearnerUnreachable, "busy or down (408"),
        (status(425), LearnerUnreachable, "busy or down (425"),
        (status(429), LearnerUnreachable, "busy or down (429"),
        (status(503), LearnerUnreachable, "busy or down (503"),
        (httpx.HTTPStatusError("said", request=REQUEST, response=httpx.Response(401)), LearnerRefused, "refused the key"),
        (
            sdk.RequestFailedError("out of memory", "r1", RequestErrorCategory.Server),
            LearnerFailed,
            "failed on the service (server): out of memory",
        ),
        (
            sdk.RequestFailedError("bad shape", "r1", RequestErrorCategory.User),
            LearnerRefused,
            "failed on the service (user): bad shape",
        ),
        (RetryableException("promise expired"), LearnerLost, "no longer knows the request"),
        (sdk.APIConnectionError(request=REQUEST), LearnerUnreachable, "no connection to the training service"),
        (sdk.APITimeoutError(request=REQUEST), LearnerUnreachable, "Request timed out"),
        (httpx.ConnectError("refused"), LearnerUnreachable, "no connection"),
        (TimeoutError(), LearnerTimeout, "took longer than its time limit"),
        (OSError("disk"), LearnerFailed, "testing failed: disk"),
    ],
)
def test_each_error_of_the_sdk_has_its_class_and_sentence(error: Exception, family: type[LearnerError], says: str) -> None:
    explained = explain(error, "testing")
    assert type(explained) is family
    assert says in str(explained)
    assert str(explained).startswith("testing")
    assert "\n" not in str(explained)


def test_a_fatal_status_wrapped_in_a_value_error_is_seen_through() -> None:
    wrapped = ValueError("Error retrieving result")
    wrapped.__cause__ = status(404)
    assert isinstance(explain(wrapped, "testing"), LearnerRefused)


def test_a_poisoned_client_says_which_request_poisoned_it() -> None:
    poisoned = RuntimeError("Training request sequence failed; unload this model and reconnect")
    poisoned.__cause__ = status(400)
    explained = explain(poisoned, "testing")
    assert isinstance(explained, LearnerLost)
    assert "ends this client: said so" in str(explained)


def test_a_request_that_the_sdk_rejects_itself_ends_its_client() -> None:
    with pytest.raises(ValidationError) as caught:
        Datum(model_input={"chunks": [{"type": "encoded_text"}]}, loss_fn_inputs={})  # pyright: ignore[reportArgumentType]
    assert isinstance(explain(caught.value, "testing"), LearnerLost)


def test_a_member_of_the_family_passes_unchanged() -> None:
    error = LearnerFailed("as it was")
    assert explain(error, "testing") is error


@pytest.mark.parametrize("family", [LearnerLost, LearnerFailed, LearnerUnreachable, LearnerTimeout, StepLost])
def test_what_a_saved_state_can_mend_is_resumable(family: type[LearnerError]) -> None:
    assert family.resumable
    assert not LearnerRefused.resumable


class TestWaits:
    async def test_a_wait_ends_at_its_limit_and_names_what_it_waited_for(self) -> None:
        with pytest.raises(LearnerTimeout, match=r"saving took longer than 0.05 s"):
            async with bounded(0.05, "saving"):
                await asyncio.Event().wait()

    async def test_a_blocking_call_leaves_the_loop_free(self) -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticking = asyncio.create_task(tick())
        assert await in_thread(lambda: time.sleep(0.3) or "saved", 5.0, "saving") == "saved"
        ticking.cancel()
        assert ticks > 10

    async def test_a_blocking_call_that_never_returns_is_given_up_on(self) -> None:
        forever = threading.Event()
        with pytest.raises(LearnerTimeout, match="saving took longer"):
            await in_thread(lambda: forever.wait(10), 0.05, "saving")
        forever.set()

    async def test_the_error_of_a_blocking_call_is_explained(self) -> None:
        def call() -> None:
            raise status(401)

        with pytest.raises(LearnerRefused, match="saving: the service refused the key"):
            await in_thread(call, 5.0, "saving")

    async def test_cancelling_is_not_an_error_of_the_service(self) -> None:
        async def wait() -> None:
            async with bounded(5.0, "saving"):
                await asyncio.Event().wait()

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
