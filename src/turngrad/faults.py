"""Faults of the training service, as one small family of errors with one clear sentence each.

In: whatever the SDK raised while we were doing something. Out: a `LearnerError` that says what failed and what to do; its
class says who acts. The original error stays as `__cause__`.
"""

from __future__ import annotations

import httpx
from fireworks.training.sdk._core._exceptions import (
    APIConnectionError,
    APIStatusError,
    RequestFailedError,
)
from fireworks.training.sdk._core.lib.retryable_exception import RetryableException
from pydantic import ValidationError

from turngrad.errors import RunError
from turngrad.redaction import redacted

_KEY = "check FIREWORKS_API_KEY, and that its account may train"
_PASSING = frozenset({408, 409, 425, 429})


class LearnerError(RunError):
    """The weights could not be updated, saved or loaded. `resumable`: the last saved state and a new learner go on."""

    resumable = False


class LearnerRefused(LearnerError):
    """The service refuses the key, the model or the request: a person has to change something."""


class LearnerUnknown(LearnerRefused):
    """The service knows no such model or checkpoint: a wrong name, or one that is gone."""


class StepLost(LearnerError):
    """Not one rollout of a step was sound, so that there is nothing to update on."""

    resumable = True


class LearnerLost(LearnerError):
    """This learner can do no more: its client is poisoned, its session is gone, or its last update did not finish."""

    resumable = True


class LearnerFailed(LearnerError):
    """The service took the operation and failed at it."""

    resumable = True


class LearnerUnreachable(LearnerError):
    """The service did not answer, or answered that it is busy, for as long as the SDK retries."""

    resumable = True


class LearnerTimeout(LearnerError):
    """A wait of ours ran out; what the service made of the operation is unknown."""

    resumable = True


def explain(error: BaseException, doing: str) -> LearnerError:
    """`error`, raised while `doing` ("saving state run-0004"), as the member of the family that says who acts."""
    if isinstance(error, LearnerError):
        return error
    if isinstance(error, RequestFailedError):
        # Only "user" blames the request; the service's own failures pass with a new try.
        blame = LearnerRefused if error.category == "user" else LearnerFailed
        return blame(f"{doing} failed on the service ({error.category}): {redacted(error.message)}")
    if (status := _status(error)) is not None:
        return _by_status(status, error, doing)
    if isinstance(error, RetryableException):
        return LearnerLost(f"{doing}: the service no longer knows the request ({error})")
    if isinstance(error, APIConnectionError | httpx.TransportError):
        return LearnerUnreachable(f"{doing}: no connection to the training service ({_one_line(error)})")
    if isinstance(error, ValidationError):
        return LearnerLost(f"{doing}: the SDK rejected the request ({_one_line(error)}), which ends its client")
    if "sequence failed" in str(error):
        cause = f": {_one_line(error.__cause__)}" if error.__cause__ is not None else ""
        return LearnerLost(f"{doing}: an earlier request could not be sent, which ends this client{cause}")
    if isinstance(error, TimeoutError):
        return LearnerTimeout(f"{doing} took longer than its time limit")
    if isinstance(error.__cause__, Exception):
        # The SDK wraps some fatal statuses in a plain ValueError.
        return explain(error.__cause__, doing)
    return LearnerFailed(f"{doing} failed: {_one_line(error)}")


def _status(error: BaseException) -> int | None:
    if isinstance(error, APIStatusError):
        return error.status_code
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code
    return None


def _by_status(status: int, error: BaseException, doing: str) -> LearnerError:
    said = _one_line(error)
    if status in (401, 403):
        return LearnerRefused(f"{doing}: the service refused the key ({status}: {said}); {_KEY}")
    if status == 402:
        return LearnerRefused(f"{doing}: the account has no credit or quota left (402: {said}); top it up and resume")
    if status == 404:
        return LearnerUnknown(f"{doing}: the service does not know the model or checkpoint (404: {said})")
    if status in _PASSING or status >= 500:
        return LearnerUnreachable(f"{doing}: the service is busy or down ({status}: {said})")
    return LearnerRefused(f"{doing}: the service refused the request ({status}: {said})")


def _one_line(error: BaseException) -> str:
    # Before it is cut: half a key would pass.
    text = redacted(" ".join(str(error).split())) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:297]}..."
