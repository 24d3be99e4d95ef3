"""One worker thread that owns the model: every operation and every sampling step runs here, so nothing needs a lock.

In: operations and completions from the HTTP side. Out: their results through callbacks. Training operations advance one
micro-batch at a time and take turns with sampling steps, so that neither starves. Invariant: snapshots are immutable;
the weights a completion is sampled from are those of its name, whatever training does meanwhile.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import torch
from torch import Tensor

from turngrad.local.adapter import FULL_BELOW, Lora, Policy, full_policy, lora_policy, merged, parameters, read_peft_folder
from turngrad.local.basemodel import BaseModel
from turngrad.local.kvcache import KVCache
from turngrad.local.sampler import Request, Sampled, Sampler
from turngrad.local.stops import StopTable
from turngrad.local.store import Store, StoreError
from turngrad.local.trainer import Trainer
from turngrad.local.wire import ACCOUNT, Adam, ApiError, Batch, Completion

log = logging.getLogger("turngrad.local")
Operation = Callable[[], Any]
"""Run in the worker thread; returns the result, or a generator that yields between slices and returns it."""


@dataclass(frozen=True)
class Settings:
    """How the engine runs; see `server` for the flags.

    `cache_bytes` bounds the keys and values of one snapshot; 0 means an eighth of the machine's memory, 2 GiB at most.
    `live_snapshots` are kept ready to sample from, `keep_snapshots` a run on disk.
    """

    state_dir: Path
    full_finetune: str = "auto"
    cache_bytes: int = 0
    max_running: int = 64
    keep_snapshots: int = 64
    live_snapshots: int = 2


@dataclass(eq=False)
class Run:
    """One create_model: its trainer, and the LoRA settings it asked for (None: full fine-tuning, or a frozen reference)."""

    model_id: str
    run_id: str
    session_id: str
    base_model: str
    asked: Lora | None
    trainer: Trainer


class Engine:
    """Runs and samplers of one base model. Public methods other than `run` may be called from any thread."""

    def __init__(self, base: BaseModel, settings: Settings, device: torch.device) -> None:
        self.base, self.settings, self._device = base, settings, device
        self.store = Store(settings.state_dir, settings.keep_snapshots)
        self.stops = StopTable(base.tokenizer, base.end_ids, base.spec.vocab)
        size = parameters(base.module)
        self.full = settings.full_finetune == "yes" or (settings.full_finetune == "auto" and size < FULL_BELOW)
        self.runs: dict[str, Run] = {}
        # A tiny model's decoding step is too short to share among threads that others also want; training is not.
        self._threads = torch.get_num_threads()
        self._sampling_threads = max(1, self._threads // 2) if size < FULL_BELOW else self._threads
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._training: list[tuple[Generator[None, None, Any], Callable[[bytes], None]]] = []
        self._samplers: OrderedDict[str | None, Sampler] = OrderedDict()
        self._recent: OrderedDict[str, tuple[dict[str, Tensor], Lora | None]] = OrderedDict()
        self.thread = threading.Thread(target=self._work, name="turngrad-engine", daemon=True)
        how = "trained in full" if self.full else "trained by LoRA"
        dtype = str(base.compute).removeprefix("torch.")
        log.info("serving %s: %.1f M parameters on %s in %s, %s", base.name, size / 1e6, device, dtype, how)

    # -- the worker ---------------------------------------------------------------------------------------------------

    def post(self, operation: Operation, finish: Callable[[bytes], None]) -> None:
        """Queues an operation; `finish` gets the body of its future, from the worker's thread."""
        self._inbox.put(lambda: self._start(operation, finish))

    def complete(self, snapshot: str | None, body: Completion, done: Callable[[Sampled | Exception], None]) -> Callable[[], None]:
        """Queues a completion of a snapshot path (None: the base weights). Returns its cancellation."""
        holder: list[Request] = []
        cancelled = threading.Event()

        def start() -> None:
            if cancelled.is_set():
                return
            try:
                holder.append(self._sampler(snapshot).submit(body, done))
            except Exception as error:
                done(error)

        def cancel() -> None:
            cancelled.set()
            for request in holder:
                request.cancelled = True

        self._inbox.put(start)
        return cancel

    def _work(self) -> None:
        while True:
            idle = not self._training and not any(sampler.busy for sampler in self._samplers.values())
            try:
                item = self._inbox.get(block=idle)
                while item is not None:
                    item()
                    item = self._inbox.get(block=False)
                return
            except queue.Empty:
                pass
            if self._training:
                self._advance()
            for sampler in list(self._samplers.values()):
                if sampler.busy:
                    self._step(sampler)

    def stop(self) -> None:
        """Ends the worker after what it is doing now."""
        self._inbox.put(None)

    def _start(self, operation: Operation, finish: Callable[[bytes], None]) -> None:
        def run() -> Generator[None, None, Any]:
            result = operation()
            if isinstance(result, Generator):
                result = yield from result
            return result

        self._training.append((run(), finish))

    def _advance(self) -> None:
        """One slice of the oldest operation."""
        slices, finish = self._training[0]
        _use_threads(self._threads)
        try:
            next(slices)
            return
        except StopIteration as stop:
            body = orjson.dumps(stop.value, option=orjson.OPT_SERIALIZE_NUMPY)
        except (ApiError, ValueError, StoreError) as error:
            body = orjson.dumps({"error": str(error), "category": "user"})
        except Exception as error:
            log.exception("an operation failed")
            body = orjson.dumps({"error": f"{type(error).__name__}: {error}", "category": "server"})
        self._training.pop(0)
        finish(body)

    def _step(self, sampler: Sampler) -> None:
        _use_threads(self._sampling_threads)
        try:
            sampler.step()
        except Exception as error:
            log.exception("a sampling step failed")
            sampler.fail_all(error)

    # -- sampling -----------------------------------------------------------------------------------------------------

    def _sampler(self, snapshot: str | None) -> Sampler:
        sampler = self._samplers.get(snapshot)
        if sampler is None:
            self._retire()
            model = self.base.freeze(self._weights(snapshot))
            cache = KVCache(self.base.spec, self._device, self.base.cache_dtype, self.settings.cache_bytes or _memory_share())
            sampler = Sampler(model, cache, self.stops, self._device, max_running=self.settings.max_running)
            self._samplers[snapshot] = sampler
        self._samplers.move_to_end(snapshot)
        return sampler

    def _retire(self) -> None:
        """Drops the least recently used idle samplers: their caches are of no use to other weights."""
        idle = [name for name, sampler in self._samplers.items() if not sampler.busy]
        excess = len(self._samplers) + 1 - self.settings.live_snapshots
        for name in idle[: max(0, excess)]:
            del self._samplers[name]

    def _weights(self, snapshot: str | None) -> dict[str, Tensor]:
        if snapshot is None:
            return self.base.weights
        if snapshot not in self._recent:
            _, run, name = snapshot.split("/")
            checkpoint = self.store.load(run, "snapshots", name)
            lora = checkpoint.meta["lora"]
            self._remember(snapshot, checkpoint.tensors["weights"], Lora(**lora) if lora else None)
        tensors, lora = self._recent[snapshot]
        return merged(self.base.weights, {key: tensor.to(self._device) for key, tensor in tensors.items()}, lora)

    def _remember(self, path: str, tensors: dict[str, Tensor], lora: Lora | None) -> None:
        self._recent[path] = (tensors, lora)
        while len(self._recent) > self.settings.live_snapshots:
            self._recent.popitem(last=False)

    # -- operations, all in the worker's thread -----------------------------------------------------------------------

    def create_model(
        self, model_id: str, session_id: str, base_model: str, asked: Lora | None, base_only: bool
    ) -> dict[str, Any]:
        if base_only:
            trainer = Trainer(Policy(self.base.module, {}, None), self.base.spec, self._device)
        elif self.full or asked is None:
            trainer = Trainer(full_policy(self.base.module), self.base.spec, self._device)
            if asked is not None:
                log.info("%s: lora_config accepted and ignored, a model this small is trained in full", model_id)
        else:
            trainer = Trainer(lora_policy(self.base.module, asked), self.base.spec, self._device)
        run_id = model_id.partition(":")[0]
        self.runs[model_id] = Run(model_id, run_id, session_id, base_model, asked, trainer)
        return {"type": "create_model", "model_id": model_id, "comms": "v1"}

    def forward(self, model_id: str, batch: Batch) -> Generator[None, None, dict[str, Any]]:
        return self._passed(self._trainer(model_id).forward(batch))

    def forward_backward(self, model_id: str, batch: Batch) -> Generator[None, None, dict[str, Any]]:
        return self._passed(self._trainer(model_id).forward_backward(batch))

    @staticmethod
    def _passed(slices: Generator[None, None, dict[str, Any]]) -> Generator[None, None, dict[str, Any]]:
        result = yield from slices
        outputs = [
            {"logprobs": {"data": logprobs, "dtype": "float32", "shape": [len(logprobs)]}} for logprobs in result["logprobs"]
        ]
        return {"loss_fn_output_type": "TorchLossReturn", "loss_fn_outputs": outputs, "metrics": result["metrics"]}

    def optim_step(self, model_id: str, adam: Adam) -> dict[str, Any]:
        return {"metrics": self._trainer(model_id).optim_step(adam)}

    def save_snapshot(self, model_id: str, name: str) -> dict[str, Any]:
        run, trainer = self._run(model_id), self._trainer(model_id)
        tensors = trainer.policy.export()
        self.store.save(run.run_id, "snapshots", name, self._meta(run, trainer), {"weights": tensors})
        path = f"{ACCOUNT}/{run.run_id}/{name}"
        self._remember(path, tensors, trainer.policy.lora)
        return {"type": "save_weights_for_sampler", "path": path}

    def save_state(self, model_id: str, name: str) -> dict[str, Any]:
        run, trainer = self._run(model_id), self._trainer(model_id)
        groups = {"weights": trainer.policy.export(), "optimizer": trainer.moments()}
        self.store.save(run.run_id, "states", name, self._meta(run, trainer), groups)
        return {"type": "save_weights", "path": f"{ACCOUNT}/{run.run_id}/{name}"}

    def load_state(self, model_id: str, run_id: str, name: str, optimizer: bool) -> dict[str, Any]:
        trainer = self._trainer(model_id)
        checkpoint = self.store.load(run_id, "states", name)
        moments = checkpoint.tensors["optimizer"] if optimizer else None
        trainer.load(checkpoint.tensors["weights"], moments, checkpoint.meta["steps"])
        return {"type": "load_weights", "path": f"{ACCOUNT}/{run_id}/{name}"}

    def load_adapter(self, model_id: str, folder: Path) -> dict[str, Any]:
        """Warm start of a LoRA run from a PEFT folder: weights alone, Adam starts afresh."""
        trainer = self._run(model_id).trainer
        if trainer.policy.lora is None:
            raise ValueError("this run trains every weight (the model is small): it has no adapter to load")
        trainer.load(read_peft_folder(folder, trainer.policy.lora), None, 0)
        return {"type": "load_adapter", "model_id": model_id, "adapter_path": str(folder)}

    def unload(self, model_id: str) -> dict[str, Any]:
        self.runs.pop(model_id, None)
        return {"type": "unload_model", "model_id": model_id}

    def _meta(self, run: Run, trainer: Trainer) -> dict[str, Any]:
        lora, asked = trainer.policy.lora, run.asked
        return {
            "base_model": run.base_model,
            "lora": vars(lora) if lora is not None else None,
            "asked": vars(asked) if asked is not None else None,
            "steps": trainer.steps,
        }

    def _run(self, model_id: str) -> Run:
        run = self.runs.get(model_id)
        if run is None:
            raise ApiError(404, f"model {model_id!r} is not loaded; it was unloaded, or the engine restarted: create it again")
        return run

    def _trainer(self, model_id: str) -> Trainer:
        return self._run(model_id).trainer


def _use_threads(count: int) -> None:
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def _memory_share() -> int:
    return min(2 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8)


def new_model_id() -> str:
    """An id of the form the SDK parses run ids from."""
    return f"run-{uuid.uuid4().hex}:train:0"
