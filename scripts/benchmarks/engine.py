"""The embedded engine against what one would write without it, on the same machine, model and shapes.

Sampling against `model.generate` with left padding; training against a padded torch loop over the same model of
transformers; a whole GRPO step against TRL's; then the engine's own overhead: the share of forward_backward's wall time not
spent in the model, measured through the genuine SDK, and its CPU time per one-token request. Ours and the other take turns;
rows are medians.

TRL needs an environment of its own. TURNGRAD_BENCH_TRL names its folder; it is made there, once, if it does not exist
(`uv venv` and `uv pip install trl`, about 2 GB). Without the variable that row says that it was left out.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import torch.nn.functional as F
from benchmarks._row import Row, row
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

from turngrad.local.adapter import full_policy
from turngrad.local.basemodel import BaseModel, load_base_model
from turngrad.local.kvcache import KVCache
from turngrad.local.sampler import Sampler
from turngrad.local.stops import StopTable
from turngrad.local.trainer import Trainer
from turngrad.local.wire import Adam, Batch, Completion, Datum

CPU = torch.device("cpu")
PREFIX, OWN, NEW = 1000, 16, 64
REPEATS = 3

TINY = {"hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 4, "num_attention_heads": 4}
TINY |= {"num_key_value_heads": 2, "head_dim": 64, "vocab_size": 4096, "tie_word_embeddings": True}
HUNDRED_MILLION = {**TINY, "hidden_size": 768, "intermediate_size": 2304, "num_hidden_layers": 12, "num_attention_heads": 12}
HUNDRED_MILLION |= {"num_key_value_heads": 4, "vocab_size": 16384, "tie_word_embeddings": True}


def run() -> list[Row]:
    """Every row; about five minutes on two quiet cores."""
    torch.set_num_threads(os.cpu_count() or 1)
    disable_progress_bar()
    trl = _trl_python()
    with tempfile.TemporaryDirectory() as folder:
        tiny = _folder(Path(folder) / "tiny", TINY)
        base = load_base_model("tiny", tiny, CPU)
        theirs = Qwen3ForCausalLM.from_pretrained(tiny, dtype=torch.float32)
        # The first calls of a process load kernels; neither side is charged for that.
        _our_rate(base, [list(range(2, 40))] * 2, 4)
        _generate_rate(theirs, [list(range(2, 40))] * 2, 4)
        rows = [_sampling(base, theirs, count) for count in (1, 8, 32, 64)]
        rows.append(_training(base, theirs))
        rows.append(_trl(base, tiny, trl))
        rows.append(_overhead(_folder(Path(folder) / "large", HUNDRED_MILLION), Path(folder)))
        rows.append(_request_cost(tiny, Path(folder)))
        return rows


def _folder(folder: Path, shape: dict[str, Any]) -> Path:
    torch.manual_seed(0)
    config = Qwen3Config(**shape, max_position_embeddings=2048, eos_token_id=1, pad_token_id=0)
    Qwen3ForCausalLM(config).float().save_pretrained(folder)
    words = {f"w{i}": i for i in range(shape["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


def _row(name: str, unit: str, ours: float, other: float | None, bar: float | None, *, lower_is_better: bool = False) -> Row:
    ratio = None if other is None else (other / ours if lower_is_better else ours / other)
    return row(name, ours, other, unit, ratio, bar)


def _in_turns(ours: Callable[[], float], other: Callable[[], float], repeats: int = REPEATS) -> tuple[float, float]:
    """Medians of `repeats` measurements of each side, taken in turns."""
    pairs = [(ours(), other()) for _ in range(repeats)]
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)


# ------------------------------------------------------------------------------------------------------------ sampling


def _sampling(base: BaseModel, theirs: Qwen3ForCausalLM, count: int) -> Row:
    rng = np.random.default_rng(count)
    prefix = rng.integers(2, base.spec.vocab, PREFIX).tolist()
    prompts = [prefix + rng.integers(2, base.spec.vocab, OWN - index % 8).tolist() for index in range(count)]
    bar = 4.0 if count == 32 else None
    repeats = REPEATS if bar else 1
    ours, other = _in_turns(lambda: _our_rate(base, prompts, NEW), lambda: _generate_rate(theirs, prompts, NEW), repeats)
    return _row(f"sampling, {count} requests, {PREFIX}-token shared prefix, vs generate", "tokens/s", ours, other, bar)


def _our_rate(base: BaseModel, prompts: list[list[int]], new: int) -> float:
    cache = KVCache(base.spec, CPU, torch.float32, 2 << 30)
    sampler = Sampler(base.freeze(base.weights), cache, StopTable(None, frozenset(), base.spec.vocab), CPU)
    results: list[Any] = []
    start = time.perf_counter()
    for index, prompt in enumerate(prompts):
        sampler.submit(Completion("m", prompt, new, cache_key=str(index)), results.append)
    while sampler.busy:
        sampler.step()
    seconds = time.perf_counter() - start
    if any(len(result.output_ids) != new for result in results) or len(results) != len(prompts):
        raise RuntimeError("a completion is missing or short")
    return len(prompts) * new / seconds


@torch.inference_mode()
def _generate_rate(model: Any, prompts: list[list[int]], new: int) -> float:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    start = time.perf_counter()
    out = model.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=True,
        top_k=0,
        top_p=1.0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    # The sampling logprobs are part of the job: RL cannot do without them.
    torch.stack(out.logits, 1).log_softmax(-1).gather(2, out.sequences[:, longest:, None])
    return len(prompts) * new / (time.perf_counter() - start)


# ------------------------------------------------------------------------------------------------------------ training


def _batch(vocab: int, groups: int = 4, attempts: int = 8) -> list[Datum]:
    """Groups of multi-turn episodes: a 300-token head common to all, 60 to a group, a fifth of the rest sampled."""
    rng = np.random.default_rng(0)
    head = rng.integers(2, vocab, 300)
    data = []
    for _ in range(groups):
        task = rng.integers(2, vocab, 60)
        for _ in range(attempts):
            ids = np.concatenate([head, task, rng.integers(2, vocab, int(rng.integers(250, 700)))])
            weights = np.zeros(len(ids), np.float32)
            for start in range(360, len(ids) - 20, 100):
                weights[start : start + 20] = rng.normal()
            sampled = np.where(weights != 0, -np.log(vocab), 0).astype(np.float32)
            data.append(Datum(ids, np.roll(ids, -1), weights, sampled))
    return data


def _training(base: BaseModel, theirs: Qwen3ForCausalLM) -> Row:
    data = _batch(base.spec.vocab)
    tokens = sum(len(datum.tokens) for datum in data)
    trainer = Trainer(full_policy(base.module), base.spec, CPU)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-4)

    def ours() -> float:
        start = time.perf_counter()
        for _ in trainer.forward_backward(Batch(data, "importance_sampling", {})):
            pass
        trainer.optim_step(Adam())
        return tokens / (time.perf_counter() - start)

    def plain() -> float:
        start = time.perf_counter()
        for first in range(0, len(data), 8):
            _padded_step(theirs, data[first : first + 8])
        optimizer.step()
        optimizer.zero_grad()
        return tokens / (time.perf_counter() - start)

    name = f"training, {len(data)} episodes of {tokens // len(data)} tokens, vs padded torch"
    return _row(name, "tokens/s", *_in_turns(ours, plain), bar=1.0)


def _padded_step(model: Qwen3ForCausalLM, data: list[Datum]) -> None:
    longest = max(len(datum.tokens) for datum in data)

    def padded(field: str) -> torch.Tensor:
        arrays = [np.pad(getattr(datum, field), (0, longest - len(datum.tokens))) for datum in data]
        return torch.from_numpy(np.stack(arrays))

    mask = torch.tensor([[1] * len(d.tokens) + [0] * (longest - len(d.tokens)) for d in data])
    logits = model(input_ids=padded("tokens"), attention_mask=mask, use_cache=False).logits
    logprobs = -F.cross_entropy(logits.transpose(1, 2), padded("targets"), reduction="none")
    (-(logprobs - padded("sampled_logprobs")).exp() * padded("weights")).sum().backward()


def _trl_python() -> Path | None:
    """The interpreter of the environment that TURNGRAD_BENCH_TRL names, made if the folder is not there."""
    chosen = os.environ.get("TURNGRAD_BENCH_TRL")
    if not chosen:
        return None
    folder = Path(chosen).expanduser()
    python = folder / "bin" / "python"
    if not folder.exists():
        print(f"making an environment with trl in {folder} (once)", file=sys.stderr)
        subprocess.run(
            ["uv", "venv", "--quiet", "--python", f"{sys.version_info[0]}.{sys.version_info[1]}", str(folder)], check=True
        )
        subprocess.run(["uv", "pip", "install", "--quiet", "--python", str(python), "trl"], check=True)
    return python


def _trl(base: BaseModel, folder: Path, python: Path | None) -> Row:
    """A GRPO step of 4 prompts x 8 attempts, 360 + 64 tokens, sampling included."""
    name = "GRPO step, 4 x 8 completions of 64 tokens, vs TRL"
    _grpo_step(base)
    if python is None:
        ours = statistics.median(_grpo_step(base) for _ in range(REPEATS))
        return _row(f"{name}: left out, TURNGRAD_BENCH_TRL names no environment", "s", ours, None, None, lower_is_better=True)
    command = [str(python), str(Path(__file__).with_name("engine_peer.py")), str(folder), str(REPEATS + 1)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:

        def step() -> float:
            assert peer.stdin is not None
            assert peer.stdout is not None
            print("step", file=peer.stdin, flush=True)
            for line in peer.stdout:
                if line.startswith('{"seconds"'):
                    return json.loads(line)["seconds"]
            raise RuntimeError(f"TRL's step failed: run {' '.join(command)} and press Enter to see why")

        step()
        return _row(name, "s", *_in_turns(lambda: _grpo_step(base), step), bar=1.0, lower_is_better=True)


def _grpo_step(base: BaseModel) -> float:
    rng = np.random.default_rng(0)
    cache = KVCache(base.spec, CPU, torch.float32, 2 << 30)
    trainer = Trainer(full_policy(base.module), base.spec, CPU)
    start = time.perf_counter()
    sampler = Sampler(base.freeze(trainer.policy.export()), cache, StopTable(None, frozenset(), base.spec.vocab), CPU)
    data: list[Datum] = []
    for _ in range(4):
        prompt = rng.integers(2, base.spec.vocab, 360).tolist()
        for _ in range(8):

            def keep(result: Any, prompt: list[int] = prompt) -> None:
                ids = np.array(prompt + result.output_ids)
                weights, sampled = np.zeros((2, len(ids) - 1), np.float32)
                weights[len(prompt) - 1 :] = rng.normal()
                sampled[len(prompt) - 1 :] = result.sampling_logprobs
                data.append(Datum(ids[:-1], ids[1:], weights, sampled))

            sampler.submit(Completion("m", prompt, NEW), keep)
    while sampler.busy:
        sampler.step()
    for _ in trainer.forward_backward(Batch(data, "ppo", {})):
        pass
    trainer.optim_step(Adam())
    return time.perf_counter() - start


# ------------------------------------------------------------------------------------------------------------ overhead


@contextmanager
def _engine(model: Path, folder: Path) -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "turngrad.local.server", "--model", str(model), "--state-dir", str(folder / "state")]
    process = subprocess.Popen([*command, "--die-with-parent"], stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None:
            raise RuntimeError("the engine has no stdout")
        yield process.stdout.readline().split()[1], process.pid
    finally:
        process.terminate()
        process.wait(timeout=20)


def _overhead(model: Path, folder: Path) -> Row:
    """1 - (seconds in the model, as the engine reports them) / (wall seconds of the SDK's call)."""
    from fireworks.training.sdk import Datum as WireDatum  # the SDK takes seconds to import: only for this row
    from fireworks.training.sdk import FiretitanServiceClient, ModelInput

    rng = np.random.default_rng(0)
    data = []
    for _ in range(4):
        ids = rng.integers(2, HUNDRED_MILLION["vocab_size"], 257)
        advantages = (np.arange(256) >= 128).astype(np.float32)
        inputs = {"target_tokens": ids[1:].tolist(), "logprobs": -9.7 * advantages, "advantages": advantages}
        data.append(WireDatum(model_input=ModelInput.from_ints(ids[:-1].tolist()), loss_fn_inputs=inputs))
    shares = []
    with _engine(model, folder) as (url, _):
        service = FiretitanServiceClient(api_key="local", base_url=url)
        client = service.create_lora_training_client(base_model=str(model), rank=8)
        for _ in range(REPEATS):
            start = time.perf_counter()
            metrics = client.forward_backward(data, "importance_sampling").result().metrics
            wall = time.perf_counter() - start
            shares.append(1 - metrics["model_seconds:sum"] / wall)
    share = statistics.median(shares[1:])
    name = "share of forward_backward not spent in a 100 M model, against the 15 % allowed"
    return _row(name, "fraction", share, 0.15, 1.0, lower_is_better=True)


def _request_cost(model: Path, folder: Path) -> Row:
    """CPU milliseconds of the engine per one-token request of a 32-token prompt, eight at a time as rollouts send them."""
    with _engine(model, folder) as (url, pid):
        session = _post(url + "/api/v1/create_session", {})["session_id"]
        body = {"model": f"accounts/local/trainingSessions/{session}", "prompt": list(range(2, 34)), "max_tokens": 1}
        body |= {"stream": True, "logprobs": True, "raw_output": True}
        with ThreadPoolExecutor(8) as pool:
            send = lambda _: _post(url + "/inference/v1/completions", body)  # noqa: E731
            list(pool.map(send, range(50)))
            before = _cpu_seconds(pid)
            list(pool.map(send, range(300)))
            cost = (_cpu_seconds(pid) - before) / 300 * 1000
    return _row("engine CPU per one-token request", "ms", cost, None, None)


def _post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        content = answer.read()
    return json.loads(content) if content.startswith(b"{") else content


def _cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system
