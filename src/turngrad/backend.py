"""Where the weights live: Fireworks, another service of its protocol, or the engine on this machine.

In: a config. Out: a base URL, a key and the names of model and tokenizer; the training code knows nothing else. The embedded
engine is a child process on loopback: awaited until it answers, stopped at the end, and gone with its parent however that ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from turngrad.config import FIREWORKS_URL, TrainConfig
from turngrad.errors import RunError, UserError

T = TypeVar("T")

LOCAL_KEY = "local"
_ANNOUNCEMENT = "TURNGRAD_ENGINE "
_START_TIMEOUT = 180.0
_STOP_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What a client of the weights needs. `renderer_config` is what a model folder says about its chat format.

    `lost` is set, with the reason, when the engine on this machine ends before it is told to: the SDK would go on asking it
    for minutes or for ever.
    """

    base_url: str
    api_key: str
    base_model: str
    tokenizer_model: str
    renderer_config: dict[str, Any] | None
    local: bool
    lost: asyncio.Future[str] | None = None


@asynccontextmanager
async def open_backend(config: TrainConfig, state_dir: Path) -> AsyncIterator[Endpoint]:
    """The endpoint of a resolved config; `state_dir` is where the embedded engine keeps states and its log.

    Raises:
        UserError: no such model, no torch, or an engine that does not start.
    """
    assert config.base_model is not None
    if config.on_fireworks:
        key = os.environ["FIREWORKS_API_KEY"]
        tokenizer = config.tokenizer_model or config.base_model
        yield Endpoint(
            config.base_url or FIREWORKS_URL, key, config.base_model, tokenizer, _renderer(Path(tokenizer)), local=False
        )
        return
    folder, renderer_config = await asyncio.to_thread(local_model, config)
    async with _engine(config.base_model, state_dir) as (base_url, lost):
        tokenizer = config.tokenizer_model or str(folder)
        yield Endpoint(base_url, LOCAL_KEY, config.base_model, tokenizer, renderer_config, local=True, lost=lost)


async def watched(work: Coroutine[Any, Any, T], lost: asyncio.Future[str] | None) -> T:
    """The result of `work`, which is cancelled when the engine is lost.

    Raises:
        RunError: the reason, when that happened.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task, *([lost] if lost is not None else [])}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            assert lost is not None
            raise RunError(lost.result())
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def local_model(config: TrainConfig) -> tuple[Path, dict[str, Any] | None]:
    """The folder of `--base-model` on this machine, and the renderer it names for itself.

    Raises:
        UserError: no such model, a part of it missing, or no torch.
    """
    from turngrad.local.models import resolve_model

    assert config.base_model is not None
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            "the engine on this machine needs torch, which is not installed; leave out --no-group local, "
            "or set FIREWORKS_API_KEY to train on Fireworks"
        )
    try:
        folder = resolve_model(config.base_model)
    except ValueError as error:
        raise UserError(str(error)) from error
    return folder, _renderer(folder)


def _renderer(folder: Path) -> dict[str, Any] | None:
    """What a tokenizer's folder says about its chat format; a hub id says nothing."""
    from turngrad.local.models import renderer_for

    try:
        return renderer_for(folder)
    except ValueError as error:
        raise UserError(str(error)) from error


@asynccontextmanager
async def _engine(model: str, state_dir: Path) -> AsyncIterator[tuple[str, asyncio.Future[str]]]:
    state_dir.mkdir(parents=True, exist_ok=True)
    log_path = state_dir / "engine.log"
    with open(log_path, "ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "turngrad.local.server", "--model", model, "--port", "0"),
            *("--state-dir", str(state_dir), "--die-with-parent"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            # A session of its own: Ctrl-C reaches the trainer alone, which then saves through a living engine.
            start_new_session=True,
        )
    lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    watcher = asyncio.create_task(_watch(process, lost, log_path))
    try:
        yield await _announced_url(process, log_path), lost
    finally:
        watcher.cancel()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), _STOP_TIMEOUT)
            except TimeoutError:
                # On a busy machine it may end between the wait and the kill.
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


async def _watch(process: asyncio.subprocess.Process, lost: asyncio.Future[str], log_path: Path) -> None:
    status = await process.wait()
    lost.set_result(f"the engine on this machine ended with status {status} (its log is {log_path}); --resume-from goes on")


async def _announced_url(process: asyncio.subprocess.Process, log_path: Path) -> str:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_START_TIMEOUT):
            while line := await process.stdout.readline():
                text = line.decode(errors="replace").strip()
                if text.startswith(_ANNOUNCEMENT):
                    return text.removeprefix(_ANNOUNCEMENT)
    except TimeoutError:
        raise UserError(f"the engine did not answer within {_START_TIMEOUT:g} s; its log is {log_path}") from None
    await process.wait()
    last = [line for line in log_path.read_text(errors="replace").splitlines() if line.strip()][-1:]
    raise UserError(
        f"the engine ended with status {process.returncode} before it answered: {''.join(last) or 'no output'} ({log_path})"
    )
