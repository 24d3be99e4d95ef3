"""The service's control plane: the training session of a run, and what is saved under it.

In: the endpoint and the SDK's service client. Out: a session that is closed, a state that is deleted, the command that promotes a
snapshot. Everything here is housekeeping after the fact: each call has a time limit, and none of its failures ends a run.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import httpx

from turngrad.backend import Endpoint
from turngrad.errors import RunError
from turngrad.waits import in_thread

if TYPE_CHECKING:
    from fireworks.training.sdk import FiretitanServiceClient

_SUFFIX = "/training/v1/serverless"
_TIMEOUT = 10.0


class HousekeepingError(RunError):
    """What was to be tidied up is still there; the message says what the service answered."""


async def session_name(service: FiretitanServiceClient) -> str | None:
    """accounts/<account>/trainingSessions/ts-<hex>; None where the account cannot be found out in time."""
    try:
        # The SDK looks the account up once, and for minutes where the service is busy.
        return await in_thread(lambda: service.training_session_name, _TIMEOUT, "looking up the account")
    except RunError:
        return None


async def end_session(service: FiretitanServiceClient) -> None:
    """Delete the session, which frees its place in the account's run quota. Raises LearnerError."""
    await in_thread(service.delete_training_session, _TIMEOUT, f"deleting the training session {service.training_session_id}")


async def delete_state(endpoint: Endpoint, session: str, path: str) -> None:
    """Delete a saved state, named as the service names a session's checkpoints.

    The SDK (1.2.30) has no call for it. This is the standard method of such a resource, which the engine of this repository
    serves; a service that refuses it changes nothing.

    Raises:
        HousekeepingError: the state is still there, or nobody knows.
    """
    url = f"{_root(endpoint)}/v1/{session}/checkpoints/{path}"
    headers = {"x-api-key": endpoint.api_key, "authorization": f"Bearer {endpoint.api_key}"}
    try:
        async with httpx.AsyncClient(timeout=_TIMEOUT) as client:
            answer = await client.delete(url, headers=headers)
    except httpx.HTTPError as error:
        raise HousekeepingError(f"{path} could not be deleted ({type(error).__name__}: {error})") from error
    if not answer.is_success:
        raise HousekeepingError(f"the service does not delete {path} (HTTP {answer.status_code})")


async def how_to_promote(endpoint: Endpoint, session: str, snapshot: str) -> str:
    """A command line that makes a model of a snapshot, while its session is there.

    The checkpoint's name is the one the service lists, which need not be its path. Never raises: where it is not listed (yet),
    the command says what to look up.
    """
    name = await _listed_name(endpoint, session, snapshot)
    code = (
        "import os; from fireworks.training.sdk import FireworksClient; "
        f"FireworksClient(api_key=os.environ['FIREWORKS_API_KEY'], base_url={_root(endpoint)!r}).promote_session_checkpoint("
        f"name={name!r}, output_model_id='my-model', base_model={endpoint.base_model!r})"
    )
    found = "" if name is not None else f"; name: the row of list_training_session_checkpoints({session!r}) that is {snapshot}"
    return f"uv run python -c {shlex.quote(code)}{found}"


async def _listed_name(endpoint: Endpoint, session: str, snapshot: str) -> str | None:
    from fireworks.training.sdk import FireworksClient

    _, run, name = snapshot.split("/")

    def listed() -> str | None:
        with FireworksClient(api_key=endpoint.api_key, base_url=_root(endpoint)) as client:
            names = [str(row.get("name")) for row in client.list_training_session_checkpoints(session)]
        found = [full for full in names if name in full.rpartition("/checkpoints/")[2]]
        # A run's id stands in the name wherever two runs of a session could have a checkpoint of the same name.
        return next((full for full in found if run in full), found[0] if len(found) == 1 else None)

    try:
        return await in_thread(listed, _TIMEOUT, f"listing the checkpoints of {session}")
    except RunError:
        return None


def _root(endpoint: Endpoint) -> str:
    return endpoint.base_url.rstrip("/").removesuffix(_SUFFIX)
