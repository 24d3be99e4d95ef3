"""Everything a run talks to, opened together and closed whatever happens: engine, environment, tokenizer, service.

In: a resolved config and its taskset. Out: a `Session` that makes a policy of any snapshot and plays groups with it. The
slow starts (engine, environment servers, tokenizer) overlap.
"""

from __future__ import annotations

import asyncio
import logging
import os
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from turngrad import sdk_log
from turngrad.backend import Endpoint, open_backend
from turngrad.config import TrainConfig
from turngrad.errors import UserError
from turngrad.runtimes import open_runtime
from turngrad.tasksets import Taskset

if TYPE_CHECKING:
    from fireworks.training.sdk import FiretitanServiceClient
    from fireworks.training.sdk.concurrency import AdaptiveConcurrencyController

    from turngrad.agent import LoopSettings
    from turngrad.conversation import ModelFamily
    from turngrad.episodes import Episode
    from turngrad.policy import Policy
    from turngrad.rollout import Rollouts

_CONNECT_TIMEOUT = 90.0


@dataclass(slots=True)
class Session:
    """`controller` is the one window on concurrent samples, across all snapshots of the run.

    `kept` leaves the service's own session there at the end; `say` tells its name, then and wherever it cannot be deleted.
    """

    config: TrainConfig
    endpoint: Endpoint
    service: FiretitanServiceClient
    family: ModelFamily
    rollouts: Rollouts
    controller: AdaptiveConcurrencyController
    on_progress: Callable[[Episode], None] = lambda episode: None
    say: Callable[[str], None] = lambda text: None
    kept: bool = False
    _asked: FiretitanServiceClient | None = None
    _name: str | None = None

    async def reconnect(self) -> None:
        """Leave a session that the service has lost, and open another. Raises LearnerError."""
        lost, self.service = self.service, await connect(self.endpoint)
        await self._leave(lost)

    async def name(self) -> str | None:
        """The service's name of the session; None where it cannot be found out, which is tried once."""
        from turngrad.control import session_name

        if self._asked is not self.service:
            self._asked, self._name = self.service, await session_name(self.service)
        return self._name

    async def delete_state(self, session: str | None, path: str) -> None:
        """Delete a state that `session`, or this one, saved. Raises RunError."""
        from turngrad.control import delete_state

        await delete_state(self.endpoint, session or await self.name() or "", path)

    async def keep_for(self, snapshot: str) -> str | None:
        """Keep the service's session beyond the end, since a snapshot is promoted by its name; the command that does it.

        None for the engine on this machine, whose snapshots are folders.
        """
        from turngrad.control import how_to_promote

        name = None if self.endpoint.local else await self.name()
        if name is None:
            return None
        self.kept = True
        return await how_to_promote(self.endpoint, name, snapshot)

    async def close(self) -> None:
        """Delete the service's session, unless it is `kept`, and end the client. Never raises."""
        if self.kept:
            self.say(f"the training session {await self.name()} stays until the service lets it expire")
        await self._leave(self.service)

    async def _leave(self, service: FiretitanServiceClient) -> None:
        from turngrad.control import end_session
        from turngrad.faults import LearnerError

        # The engine on this machine ends with the run, and its sessions with it.
        if not (self.endpoint.local or self.kept):
            try:
                await end_session(service)
            except LearnerError as error:
                self.say(f"{error}: it is still there, and goes when the service lets it expire")
        await asyncio.to_thread(service.close)

    async def policy(self, snapshot: str | None) -> Policy:
        """The policy of a sampler path, or of the base model for None."""
        from turngrad.connections import sampling_client
        from turngrad.policy import Policy, SamplingSettings
        from turngrad.waits import in_thread

        client = await in_thread(
            lambda: self.service.create_sampling_client(
                model_path=snapshot,
                base_model=None if snapshot else self.endpoint.base_model,
                concurrency_controller=self.controller,
            ),
            _CONNECT_TIMEOUT,
            f"opening snapshot {snapshot or self.endpoint.base_model}",
        )
        settings = SamplingSettings(temperature=self.config.temperature, timeout=self.config.sample_timeout)
        sampler = client.deployment_sampler
        # The SDK uses a client that it is given, and closes it with the sampler.
        sampler._async_client = sampling_client(sampler._base_verify)
        return Policy(sampler, snapshot or "base", self.family.stop, settings, owner=client)


@asynccontextmanager
async def open_session(
    config: TrainConfig, taskset: Taskset, state_dir: Path, *, say: Callable[[str], None] = lambda text: None
) -> AsyncIterator[Session]:
    """Open everything. `state_dir` is where the embedded engine keeps its states.

    Raises:
        UserError: no key, a wrong key, no such model or tokenizer, an engine or environment that does not start.
    """
    quiet_libraries()
    from turngrad import waits
    from turngrad.faults import LearnerError

    async with AsyncExitStack() as stack:
        stack.enter_context(sdk_log.told(say))
        stack.enter_context(waits.told(say))
        provider_opening = asyncio.create_task(_enter_runtime(taskset, config.max_concurrent or 1))
        try:
            endpoint = await stack.enter_async_context(open_backend(config, state_dir))
            say(f"weights at {endpoint.base_url}")
            family_loading = asyncio.create_task(asyncio.to_thread(_load_family, config, endpoint))
            try:
                service = await connect(endpoint)
            except LearnerError as error:
                raise UserError(str(error)) from error
            family = await family_loading
            provider, close_provider = await provider_opening
            stack.push_async_callback(close_provider)
        except BaseException:
            await _undo(provider_opening)
            raise

        from fireworks.training.sdk.concurrency import AdaptiveConcurrencyController

        from turngrad.rollout import Rollouts, RolloutSettings

        assert config.max_concurrent is not None
        session = Session(
            config=config,
            endpoint=endpoint,
            service=service,
            family=family,
            rollouts=Rollouts(
                family,
                provider,
                loop_settings(config),
                RolloutSettings(config.max_concurrent, config.rollout_retries, config.bad_call_penalty),
                lambda episode: session.on_progress(episode),
                hosted=taskset.placement.kind == "hud",
            ),
            # The service sheds load, so its window has to be found from below; the engine on this machine queues.
            controller=AdaptiveConcurrencyController(initial_window=config.max_concurrent if endpoint.local else 8),
        )
        session.say = say
        stack.push_async_callback(session.close)
        if not endpoint.local:
            # At once: a process that is killed can no longer say what it leaves behind.
            say(f"training session {await session.name() or service.training_session_id}")
        yield session


def loop_settings(config: TrainConfig) -> LoopSettings:
    """The limits of one episode in a resolved config."""
    from turngrad.agent import LoopSettings
    from turngrad.tools import ToolFilter

    return LoopSettings(
        max_tokens=config.max_tokens or 0,
        max_seq_len=config.max_seq_len or 0,
        max_turns=config.max_turns,
        max_tool_calls=config.max_tool_calls,
        max_bad_calls=config.max_bad_calls,
        max_tool_tokens=config.max_tool_tokens or 0,
        tool_timeout=config.tool_timeout,
        episode_timeout=config.episode_timeout,
        history=config.history,
        tool_updates=config.tool_updates,
        parallel_tools=config.parallel_tools,
        tools=ToolFilter(config.tools, config.exclude_tools),
    )


async def connect(endpoint: Endpoint) -> FiretitanServiceClient:
    """A session with the service. Raises LearnerError where there is none."""
    from turngrad.waits import in_thread

    def open_service() -> FiretitanServiceClient:
        # On the thread: the import takes a second, in which the environment starts.
        from fireworks.training.sdk import FiretitanServiceClient

        return FiretitanServiceClient(api_key=endpoint.api_key, base_url=endpoint.base_url)

    return await in_thread(open_service, _CONNECT_TIMEOUT, f"connecting to {endpoint.base_url}")


def _load_family(config: TrainConfig, endpoint: Endpoint) -> ModelFamily:
    from turngrad.conversation import load_family

    return load_family(
        endpoint.tokenizer_model,
        renderer=config.renderer,
        renderer_config=endpoint.renderer_config,
        thinking=config.thinking,
        history=config.history,
    )


async def _enter_runtime(taskset: Taskset, concurrent: int):
    """Enter the runtime in a task of its own, and return what closes it."""
    from turngrad.rollout import hud_task

    context = open_runtime(taskset.placement, first=hud_task(taskset.train[0]), concurrent=concurrent)
    provider = await context.__aenter__()

    async def close() -> None:
        await context.__aexit__(None, None, None)

    return provider, close


async def _undo(opening: asyncio.Task) -> None:
    opening.cancel()
    result = (await asyncio.gather(opening, return_exceptions=True))[0]
    if not isinstance(result, BaseException):
        await result[1]()


def quiet_libraries() -> None:
    """Keep libraries from writing into the display, and requests to this machine from a proxy."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    loopback = "127.0.0.1,localhost"
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), loopback)))
    for name in ("fireworks", "transformers", "renderers", "httpx"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module=r"(fireworks|transformers|renderers|hud|fastmcp)(\..*)?")
