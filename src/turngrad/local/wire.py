"""Bodies of the protocol, checked once at the door: what passes here cannot fail for its shape later.

In: decoded JSON. Out: plain records of numpy arrays. A body the service would refuse raises ApiError with a status and a
sentence that says what was found, what was expected and what to change. Imports no torch, so that the HTTP side starts
at once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ACCOUNT = "local"
"""The one account this engine serves; it leads every path it hands out."""

_RUN_PATH = re.compile(r"(?P<account>[a-z0-9-]+)/(?P<run>run-[0-9a-f]{32})/(?P<name>[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_WEIGHT_KEYS = {"cross_entropy": "weights"}
_CLIP_KEYS = ("clip_low_threshold", "clip_high_threshold")


class ApiError(Exception):
    """A request refused: HTTP status and the sentence that goes into the body."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass(frozen=True, slots=True)
class Datum:
    """One training sequence, already shifted by the client: every array is [n] and aligns to `targets`.

    `weights` is the advantage of the RL losses or cross_entropy's weight; `sampled_logprobs` is zero for cross_entropy.
    `clip_low` and `clip_high` are per-token ratio bounds where the client sent them.
    """

    tokens: np.ndarray
    targets: np.ndarray
    weights: np.ndarray
    sampled_logprobs: np.ndarray
    clip_low: np.ndarray | None = None
    clip_high: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """The body of forward or forward_backward."""

    data: list[Datum]
    loss_fn: str
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Adam:
    """The body of optim_step; defaults are the SDK's. `grad_clip_norm` 0 is off."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0
    normalization: str = "none"


@dataclass(slots=True)
class Completion:
    """The body of one completions request (n is always 1)."""

    model: str
    prompt: list[int]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: list[str] = field(default_factory=list)
    echo: bool = False
    stream: bool = True
    logprobs: bool = False
    cache_key: str | None = None


def field_of(body: Any, key: str, kind: type, *, default: Any = ...) -> Any:
    """`body[key]` if it is a `kind`, `default` where absent or null; ApiError 422 otherwise."""
    if not isinstance(body, dict):
        raise ApiError(422, f"the body must be a JSON object, found {type(body).__name__}")
    value = body.get(key)
    if value is None and default is not ...:
        return default
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ApiError(422, f"{key!r} must be of type {kind.__name__}, found {value!r:.80}")
    return value


def parse_batch(body: Any, key: str, losses: tuple[str, ...], vocab: int, max_length: int) -> Batch:
    """`body[key]`, the ForwardBackwardInput of forward (`forward_input`) and forward_backward."""
    data = field_of(body, key, dict)
    loss_fn = field_of(data, "loss_fn", str)
    if loss_fn not in losses:
        raise ApiError(400, f"loss_fn {loss_fn!r} is not served here; use one of {', '.join(losses)}")
    config = field_of(data, "loss_fn_config", dict, default={})
    items = field_of(data, "data", list)
    if not items:
        raise ApiError(400, "data is empty; send at least one datum")
    return Batch([_datum(item, i, loss_fn, vocab, max_length) for i, item in enumerate(items)], loss_fn, config)


def _datum(item: Any, index: int, loss_fn: str, vocab: int, max_length: int) -> Datum:
    where = f"datum {index}"
    tokens: list[int] = []
    chunks = field_of(field_of(item, "model_input", dict), "chunks", list)
    for chunk in chunks:
        if not isinstance(chunk, dict) or chunk.get("type", "encoded_text") != "encoded_text":
            raise ApiError(400, f"{where}: only encoded_text chunks are served, found {chunk!r:.80}")
        tokens.extend(field_of(chunk, "tokens", list))
    ids = _array(tokens, "int64", f"{where}: model_input")
    n = len(ids)
    if not 0 < n <= max_length:
        raise ApiError(400, f"{where}: {n} tokens; this model takes 1 to {max_length}")
    _check_ids(ids, vocab, f"{where}: model_input")
    inputs = field_of(item, "loss_fn_inputs", dict)
    weight_key = _WEIGHT_KEYS.get(loss_fn, "advantages")
    needed = {"target_tokens"} if loss_fn == "cross_entropy" else {"target_tokens", "logprobs", "advantages"}
    allowed = needed | {weight_key} | (set(_CLIP_KEYS) if loss_fn in ("ppo", "cispo", "gspo") else set())
    if "mask" in inputs:
        raise ApiError(400, f"{where}: the server losses take no 'mask'; set {weight_key} to 0 where nothing trains")
    if unknown := set(inputs) - allowed:
        raise ApiError(400, f"{where}: {loss_fn} does not read {sorted(unknown)}; it reads {sorted(allowed)}")
    if missing := needed - set(inputs):
        raise ApiError(400, f"{where}: {loss_fn} needs {sorted(missing)} in loss_fn_inputs")
    targets = _tensor(inputs["target_tokens"], "int64", n, f"{where}: target_tokens")
    weights = _optional(inputs, weight_key, n, where)
    if weights is None:
        weights = np.ones(n, np.float32)
    sampled = _optional(inputs, "logprobs", n, where)
    active = np.ones(n, bool) if loss_fn == "dro" else weights != 0
    _check_ids(targets[active], vocab, f"{where}: target_tokens")
    return Datum(
        tokens=ids,
        targets=np.clip(targets, 0, vocab - 1),
        weights=weights,
        sampled_logprobs=np.zeros(n, np.float32) if sampled is None else sampled,
        clip_low=_optional(inputs, "clip_low_threshold", n, where),
        clip_high=_optional(inputs, "clip_high_threshold", n, where),
    )


def _optional(inputs: Mapping[str, Any], key: str, n: int, where: str) -> np.ndarray | None:
    return _tensor(inputs[key], "float32", n, f"{where}: {key}") if key in inputs else None


def _tensor(value: Any, dtype: str, n: int, where: str) -> np.ndarray:
    if not isinstance(value, dict):
        raise ApiError(422, f"{where} must be a tensor object with data, dtype and shape, found {value!r:.80}")
    if value.get("sparse_crow_indices") is not None:
        raise ApiError(400, f"{where}: sparse tensors are not served; send it dense")
    if value.get("dtype") != dtype:
        raise ApiError(400, f"{where} must be {dtype}, found {value.get('dtype')!r}")
    array = _array(value.get("data"), dtype, where)
    shape = value.get("shape")
    if len(array) != n or (shape is not None and shape != [n]):
        raise ApiError(400, f"{where} must have shape [{n}] like model_input, found {len(array)} values of shape {shape}")
    return array


def _array(values: Any, dtype: str, where: str) -> np.ndarray:
    kinds = (int,) if dtype == "int64" else (int, float)
    if not isinstance(values, list) or not all(type(value) in kinds for value in values):
        bad = next((v for v in values if type(v) not in kinds), None) if isinstance(values, list) else values
        raise ApiError(400, f"{where} must be a list of {dtype} numbers, found {bad!r:.80}")
    try:
        with np.errstate(over="ignore"):  # what overflows float32 is named below
            array = np.array(values, dtype=dtype)
    except OverflowError as error:
        raise ApiError(400, f"{where}: {error}") from error
    if dtype == "float32" and not np.isfinite(array).all():
        raise ApiError(400, f"{where} holds a value that is not finite in float32 at {int(np.argmin(np.isfinite(array)))}")
    return array


def _check_ids(ids: np.ndarray, vocab: int, where: str) -> None:
    if len(ids) and (ids.min() < 0 or ids.max() >= vocab):
        bad = int(ids[(ids < 0) | (ids >= vocab)][0])
        raise ApiError(400, f"{where} holds token id {bad}; this model's vocabulary is 0 to {vocab - 1}")


def parse_adam(body: Any) -> Adam:
    """The body of optim_step; `grad_accumulation_normalization` sits beside `adam_params`."""
    params = field_of(body, "adam_params", dict)
    defaults = Adam()
    values: dict[str, float] = {}
    for name in ("learning_rate", "beta1", "beta2", "eps", "weight_decay", "grad_clip_norm"):
        value = field_of(params, name, float, default=getattr(defaults, name))
        if not math.isfinite(value) or value < 0 or (name.startswith("beta") and value >= 1):
            raise ApiError(400, f"adam_params.{name} must be finite and >= 0{', below 1' * name.startswith('beta')}: {value}")
        values[name] = value
    normalization = field_of(body, "grad_accumulation_normalization", str, default="none")
    if normalization not in ("none", "num_loss_tokens", "num_sequences"):
        raise ApiError(400, f"grad_accumulation_normalization {normalization!r} is not none, num_loss_tokens or num_sequences")
    return Adam(**values, normalization=normalization)


def parse_completion(body: Any, vocab: int, max_length: int) -> Completion:
    """The body of inference/v1/completions; prompts are token ids."""
    prompt = field_of(body, "prompt", list)
    ids = _array(prompt, "int64", "prompt")
    if not len(ids):
        raise ApiError(400, "prompt is empty; send at least one token id")
    _check_ids(ids, vocab, "prompt")
    if field_of(body, "n", int, default=1) != 1:
        raise ApiError(400, "n must be 1; send one request per sample")
    stop = body.get("stop") or []
    stop = [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or not all(isinstance(s, str) and s for s in stop):
        raise ApiError(400, f"stop must be a list of non-empty strings, found {body.get('stop')!r:.80}")
    echo = field_of(body, "echo", bool, default=False)
    request = Completion(
        model=field_of(body, "model", str),
        prompt=prompt,
        max_tokens=field_of(body, "max_tokens", int, default=16),
        temperature=field_of(body, "temperature", float, default=1.0),
        top_p=field_of(body, "top_p", float, default=1.0),
        top_k=field_of(body, "top_k", int, default=0),
        seed=field_of(body, "seed", int, default=None),
        stop=stop,
        echo=echo,
        stream=field_of(body, "stream", bool, default=False),
        logprobs=bool(body.get("logprobs")),
        cache_key=body.get("prompt_cache_key") or body.get("user"),
    )
    if request.max_tokens < (0 if echo else 1):
        raise ApiError(400, f"max_tokens must be at least 1 (0 with echo), found {request.max_tokens}")
    room = max_length - len(ids)
    if room < min(1, request.max_tokens):
        raise ApiError(400, f"prompt of {len(ids)} tokens leaves no room: this model takes {max_length} tokens in all")
    request.max_tokens = min(request.max_tokens, room)
    if not (math.isfinite(request.temperature) and request.temperature >= 0):
        raise ApiError(400, f"temperature must be finite and >= 0, found {request.temperature}")
    if not 0 < request.top_p <= 1:
        raise ApiError(400, f"top_p must be above 0 and at most 1, found {request.top_p}")
    return request


def parse_run_path(path: str, default_run: str | None = None) -> tuple[str, str]:
    """(run id, checkpoint name) of `<account>/<run>/<name>`, or of a bare name of `default_run`. ApiError 400."""
    match = _RUN_PATH.fullmatch(path.strip().strip("/"))
    if match is not None:
        if match["account"] != ACCOUNT:
            raise ApiError(404, f"{path!r} belongs to account {match['account']!r}; this engine serves {ACCOUNT!r} alone")
        return match["run"], match["name"]
    if default_run is not None and _NAME.fullmatch(path):
        return default_run, path
    raise ApiError(400, f"{path!r} is not a checkpoint path of the form {ACCOUNT}/run-<32 hex>/<name>")


def check_name(name: str) -> str:
    """A name a checkpoint may have: a lower-case DNS label. ApiError 400 otherwise."""
    if not _NAME.fullmatch(name):
        raise ApiError(400, f"checkpoint name {name!r} must be 1 to 63 of a-z, 0-9 and '-', not starting or ending with '-'")
    return name


def parse_sampling_model(model: str) -> str | None:
    """The checkpoint path inside a completions model name, or None for the base weights. ApiError 404."""
    head, sep, rest = model.partition("/checkpoints/")
    parts = head.split("/")
    if parts[:1] != ["accounts"] or len(parts) < 3 or parts[2] not in ("trainingSessions", "trainingSamplers"):
        raise ApiError(404, f"model {model!r} is not served here; sample accounts/{ACCOUNT}/trainingSessions/<session>")
    if parts[1] != ACCOUNT:
        raise ApiError(404, f"model {model!r} belongs to account {parts[1]!r}; this engine serves {ACCOUNT!r} alone")
    return rest if sep else None
