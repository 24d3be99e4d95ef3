"""The engine as a process: `python -m turngrad.local.server --model <folder or name>`.

Binds loopback, loads the model, prints one line `TURNGRAD_ENGINE <base url>` on stdout once it answers, and serves until
it is told to stop, its parent dies (`--die-with-parent`), or the model cannot be loaded (one sentence on stderr, exit 1).
The port answers `GET /health` from the start; torch is imported meanwhile, because that takes seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from turngrad.local.faults import Faults

if TYPE_CHECKING:
    from turngrad.local.api import Api
    from turngrad.local.engine import Engine

PREFIX = "/training/v1/serverless"
READY_LINE = "TURNGRAD_ENGINE"
log = logging.getLogger("turngrad.local")
_PR_SET_PDEATHSIG = 1


def arguments() -> argparse.ArgumentParser:
    """The command line; `scripts/serve_local.py` shows the same with more help."""
    parser = argparse.ArgumentParser(prog="turngrad.local.server", description="The embedded engine.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--dtype", choices=("auto", "fp32", "bf16"), default="auto")
    parser.add_argument("--full-finetune", choices=("auto", "yes", "no"), default="auto")
    parser.add_argument("--die-with-parent", action="store_true")
    parser.add_argument("--faults", type=Path, default=None)
    parser.add_argument("--verbose", action="store_true")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Runs the engine; the process's exit code."""
    args = arguments().parse_args(argv)
    logging.basicConfig(level=logging.INFO if args.verbose else logging.WARNING, format="engine: %(message)s", stream=sys.stderr)
    if args.die_with_parent:
        die_with_parent()
    try:
        listener = socket.create_server(("127.0.0.1", args.port))
    except OSError as error:
        reason = f"port {args.port} cannot be used: {error.strerror}"
        print(f"engine: {reason}; choose another --port, or 0 for a free one", file=sys.stderr)
        return 1
    return asyncio.run(_serve(args, listener))


async def _serve(args: argparse.Namespace, listener: socket.socket) -> int:
    app = _App()
    server = _Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_keep_alive=600, ws="none"))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}{PREFIX}"
    server.stop_on(signal.SIGTERM, *(() if args.die_with_parent else (signal.SIGINT,)))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    loading = asyncio.create_task(asyncio.to_thread(_load, args))
    await asyncio.wait((serving, loading), return_when=asyncio.FIRST_COMPLETED)
    if not loading.done():
        # Told to stop while torch was being imported: there is nothing to save, and the import cannot be interrupted.
        os._exit(0)
    try:
        engine, faults = loading.result()
    except (ValueError, OSError) as error:
        print(f"engine: {error}", file=sys.stderr)
        server.should_exit = True
        await serving
        return 1
    from turngrad.local.api import Api  # after torch, which it needs through the engine

    app.api = Api(engine, faults)
    engine.thread.start()
    print(f"{READY_LINE} {url}", flush=True)
    await serving
    engine.stop()
    engine.thread.join(timeout=5)
    return 0


class _Server(uvicorn.Server):
    """uvicorn without its own signal handling, which would end the process by the signal instead of with exit code 0."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop_on(self, *signals: signal.Signals) -> None:
        for number in signals:
            asyncio.get_running_loop().add_signal_handler(number, self._stop)

    def _stop(self) -> None:
        # Open completions are not waited for: whoever stops the engine has no use for them.
        self.should_exit = self.force_exit = True


class _App:
    """ASGI: the API once the model is loaded, and /health always."""

    def __init__(self) -> None:
        self.api: Api | None = None

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/health" or self.api is None:
            ready = self.api is not None
            status = 200 if ready else 503
            body = b'{"status":"ready"}' if ready else b'{"status":"loading"}'
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        await self.api(scope, receive, send)


def _load(args: argparse.Namespace) -> tuple[Engine, Faults | None]:
    # Few arenas: with one per thread, the variety of shapes makes memory creep.
    _limit_malloc_arenas()
    # Threads that wait for work must sleep: spinning ones starve the trainer and the tools on the same few cores, and
    # each other (measured on 2 busy cores: 5 to 8 times slower).
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch  # here, so that the port answers before torch is there

    from turngrad.local.basemodel import load_base_model
    from turngrad.local.engine import Engine, Settings
    from turngrad.local.models import resolve_model

    if args.threads:
        torch.set_num_threads(args.threads)
    device = torch.device("cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu")
    base = load_base_model(args.model, resolve_model(args.model), device, args.dtype)
    faults = Faults.read(args.faults) if args.faults else None
    return Engine(base, Settings(state_dir=args.state_dir, full_finetune=args.full_finetune), device), faults


def _limit_malloc_arenas() -> None:
    """glibc's M_ARENA_MAX = 2; elsewhere nothing."""
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(-8, 2)


def die_with_parent() -> None:
    """Ends this process when the one that started it is gone, however it went; Ctrl-C is left to the parent.

    The kernel signals the death of the parent's starting thread, which may end before the process does: the handler
    therefore looks whether the parent itself is gone. A watching thread covers systems without that signal.
    """
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def gone(*_: object) -> None:
        if os.getppid() != parent:
            os._exit(0)

    if sys.platform == "linux":
        signal.signal(signal.SIGUSR1, gone)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1)

    def watch() -> None:
        while True:
            gone()
            threading.Event().wait(0.5)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
