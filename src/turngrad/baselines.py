"""Baselines: another provider's model on our tasks, through hud's own agent class for it.

In: `KIND:MODEL`, an endpoint's URL if it is not the provider's own, a key from the environment. Out: a `Baseline`, which
`turngrad.rollout` plays in the place of a policy. Invariants: the key goes to the provider's client and nowhere else, also not
into an error's words; a refused key or an endpoint that never answers ends the evaluation in one sentence; anything else that
the endpoint does costs one rollout, and is counted (C7).
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from turngrad.config import TrainConfig
from turngrad.episodes import Failure
from turngrad.errors import RolloutError, RunError, UserError
from turngrad.hud_player import ContextOverflow, Play, playing
from turngrad.rollout import Rollouts, RolloutSettings, hud_task
from turngrad.runtimes import open_runtime
from turngrad.session import loop_settings, quiet_libraries
from turngrad.tasksets import TaskRow, Taskset

if TYPE_CHECKING:
    from hud.agents.base import Agent
    from hud.agents.tool_agent import ToolAgent
    from hud.agents.types import AgentStep

    from turngrad.agent import LoopSettings
    from turngrad.episodes import Episode

KINDS = {
    "openai": ("OPENAI_API_KEY", "OPENAI_BASE_URL"),
    "openai-responses": ("OPENAI_API_KEY", "OPENAI_BASE_URL"),
    "claude": ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_GEMINI_BASE_URL"),
}
"""By kind of agent, the environment variables of the key and of the endpoint."""
NEXT_TURN_PROMPT = (
    "The user has several requests and makes them one after the other. When you have done what the current one asks for, "
    "call next_turn, alone in its message, to hear the next; go on until it says that the conversation is over."
)
"""What a model has to know to play in the `tool` mode of user turns, where ending its message ends the conversation."""
_RETRIES = 4
_OVERFLOW = ("context_length_exceeded", "maximum context length", "context window", "prompt is too long", "token count exceeds")


@dataclass(slots=True)
class Baseline:
    """A model of a provider. `spent` counts the tokens that its answers say they used."""

    name: str
    url: str
    key_name: str
    key: str
    make: Callable[[Play], Agent]
    spent: Counter[str] = field(default_factory=Counter)
    answers: int = 0

    @property
    def snapshot(self) -> str:
        """What stands for weights in records."""
        return self.name

    def agent(self, loop: LoopSettings) -> Agent:
        """The agent of one rollout."""
        return self.make(Play(self.name, loop, self.fault, self._answered))

    def fault(self, error: Exception) -> RolloutError | RunError | ContextOverflow:
        """Whose fault an exception of the provider's client is."""
        status = _status(error)
        said = " ".join(str(error).split()).replace(self.key, "***")[:300] or type(error).__name__
        if any(mark in said.lower() for mark in _OVERFLOW):
            return ContextOverflow(said)
        if status in (401, 403):
            return RunError(f"{self.url} refuses the key in {self.key_name} (HTTP {status})")
        if status == 402:
            return RunError(f"{self.url} asks for payment (HTTP 402): the account of {self.key_name} has no credit left")
        if status == 404:
            return RunError(f"{self.url} does not know {self.name.partition(':')[2]!r}, or is no endpoint of its kind ({said})")
        if status is None and not self.answers and _unreachable(error):
            return RunError(f"no connection to {self.url} ({said}); --agent-url names the endpoint")
        where = f"HTTP {status}" if status is not None else type(error).__name__
        return RolloutError(Failure.SAMPLER, f"{where} from {self.url}: {said}")

    def _answered(self, step: AgentStep) -> None:
        self.answers += 1
        if step.usage is not None:
            self.spent["prompt_tokens"] += step.usage.prompt_tokens or 0
            self.spent["sampled_tokens"] += step.usage.completion_tokens or 0


@dataclass(slots=True)
class BaselineSession:
    """What `turngrad.evaluation` needs of a session, without weights."""

    config: TrainConfig
    rollouts: Rollouts
    on_progress: Callable[[Episode], None] = lambda episode: None


@asynccontextmanager
async def open_baselines(config: TrainConfig, taskset: Taskset) -> AsyncIterator[BaselineSession]:
    """The environment and a scheduler, and no engine.

    Raises:
        UserError: an environment that does not start.
    """
    quiet_libraries()
    assert config.max_concurrent is not None
    first = hud_task(taskset.train[0])
    async with open_runtime(taskset.placement, first=first, concurrent=config.max_concurrent) as provider:
        session = BaselineSession(
            config,
            Rollouts(
                None,
                provider,
                loop_settings(config),
                RolloutSettings(config.max_concurrent, config.rollout_retries),
                lambda episode: session.on_progress(episode),
                hosted=taskset.placement.kind == "hud",
            ),
        )
        yield session


def baseline(
    agent: str,
    *,
    url: str | None = None,
    temperature: float | None = None,
    system_prompt: str | None = None,
    timeout: float = 600.0,
) -> Baseline:
    """The model that `agent`, KIND:MODEL, names. `timeout` is in seconds, for one answer.

    Raises:
        UserError: no such kind, or no key in the environment.
    """
    kind, colon, model = agent.partition(":")
    if kind not in KINDS or not colon or not model:
        raise UserError(f"--agent {agent!r}: expected KIND:MODEL, with KIND one of {', '.join(KINDS)}")
    key_name, url_name = KINDS[kind]
    url = url or os.environ.get(url_name) or None
    key = os.environ.get(key_name, "")
    if not key and url is None:
        raise UserError(f"{key_name} is not set; export it, or name an endpoint that needs no key with --agent-url")
    # A provider's client insists on a key; an endpoint that needs none ignores it.
    key = key or "none"
    # The limit on turns is the episode's own, which counts those between two user turns as well.
    common = {"model": model, "system_prompt": system_prompt, "max_steps": sys.maxsize, "auto_respond": False}
    agent_class, config, address = _MAKERS[kind](key, url, timeout, temperature, common)
    return Baseline(agent, address, key_name, key, lambda play: playing(agent_class, config, play))


def with_user_turns(rows: Sequence[TaskRow], mode: Literal["tool", "official"]) -> tuple[list[TaskRow], str | None]:
    """The rows in a mode of BFCL's user turns, and the system prompt that goes with it; other tasks have one mode only."""
    if mode == "official" or not all(row.env == "bfcl" and row.template == "multi_turn" for row in rows):
        return list(rows), None
    return [replace(row, args={**row.args, "user_turns": "tool"}) for row in rows], NEXT_TURN_PROMPT


Made = tuple["type[ToolAgent[Any, Any]]", Any, str]
"""A class of hud's, its configuration with a client of ours, and the endpoint as the client has it."""


def _openai(key: str, url: str | None, timeout: float, temperature: float | None, common: dict[str, Any]) -> Made:
    from hud.agents import OpenAIChatAgent
    from hud.agents.types import OpenAIChatConfig
    from openai import AsyncOpenAI

    client = AsyncOpenAI(api_key=key, base_url=url, timeout=timeout, max_retries=_RETRIES)
    options = {} if temperature is None else {"temperature": temperature}
    return OpenAIChatAgent, OpenAIChatConfig(model_client=client, completion_kwargs=options, **common), str(client.base_url)


def _openai_responses(key: str, url: str | None, timeout: float, temperature: float | None, common: dict[str, Any]) -> Made:
    from hud.agents import OpenAIAgent
    from hud.agents.types import OpenAIConfig
    from openai import AsyncOpenAI

    client = AsyncOpenAI(api_key=key, base_url=url, timeout=timeout, max_retries=_RETRIES)
    return OpenAIAgent, OpenAIConfig(model_client=client, temperature=temperature, **common), str(client.base_url)


def _claude(key: str, url: str | None, timeout: float, temperature: float | None, common: dict[str, Any]) -> Made:
    from anthropic import AsyncAnthropic
    from hud.agents import ClaudeAgent
    from hud.agents.types import ClaudeConfig

    if temperature is not None:
        raise UserError("--temperature: hud's agent for claude sets none; leave it out")
    client = AsyncAnthropic(api_key=key, base_url=url, timeout=timeout, max_retries=_RETRIES)
    return ClaudeAgent, ClaudeConfig(model_client=client, **common), str(client.base_url)


def _gemini(key: str, url: str | None, timeout: float, temperature: float | None, common: dict[str, Any]) -> Made:
    from google import genai
    from google.genai.types import HttpOptions, HttpRetryOptions
    from hud.agents import GeminiAgent
    from hud.agents.types import GeminiConfig

    options = HttpOptions(base_url=url, timeout=round(timeout * 1000), retry_options=HttpRetryOptions(attempts=1 + _RETRIES))
    client = genai.Client(api_key=key, http_options=options)
    return GeminiAgent, GeminiConfig(model_client=client, temperature=temperature, **common), url or "Google's endpoint"


_MAKERS = {"openai": _openai, "openai-responses": _openai_responses, "claude": _claude, "gemini": _gemini}


def _status(error: Exception) -> int | None:
    """The HTTP status of a provider's error, by the names that their clients have for it."""
    found = getattr(error, "status_code", None) or getattr(error, "code", None)
    return found if isinstance(found, int) else None


def _unreachable(error: BaseException | None) -> bool:
    """Whether no connection came about, somewhere below what the client made of it."""
    while error is not None:
        if isinstance(error, OSError) or type(error).__name__ in ("ConnectError", "ConnectTimeout", "UnsupportedProtocol"):
            return True
        error = error.__cause__ or error.__context__
    return False
