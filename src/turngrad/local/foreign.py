"""Any other decoder of transformers, with its attention replaced by ours.

In: a model folder that `decoder` cannot run. Out: the same `CausalLM`. transformers lets the attention of a model be
swapped by name; ours hands q, k and v to the `Attend` of the call in progress, so packing, caching and sharing work as
for our own decoder. What that cannot express (state-space layers, sliding windows, position biases) is found by trying:
two packed sequences must give the logits that the model's own attention gives to each alone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM, PretrainedConfig
from transformers.utils import logging as transformers_logging

from turngrad.local.attention import BatchAttention
from turngrad.local.decoder import Attend, Spec
from turngrad.local.packing import pack

_NAME = "turngrad"
_TOLERANCE = 2e-3
_current: list[Attend] = []
"""The `Attend` of the forward pass in progress; one worker thread runs them all."""


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None = None, **_: Any
) -> tuple[Tensor, None]:
    """transformers' attention interface: q, k, v [1, heads, n, d] -> [1, n, heads, d]."""
    d = query.shape[-1]
    if scaling is not None and scaling != d**-0.5:
        query = query * (scaling * d**0.5)
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    mixed = _current[-1](int(module.layer_idx), q.contiguous(), k.contiguous(), v.contiguous())  # pyright: ignore[reportArgumentType]
    return mixed.view(1, len(q), -1, value.shape[-1]), None


AttentionInterface.register(_NAME, _attention)


class ForeignDecoder(nn.Module):
    """A transformers model behind our call; parameters keep their Hugging Face names."""

    def __init__(self, inner: nn.Module, spec: Spec) -> None:
        super().__init__()
        self.inner, self.spec = inner, spec

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        return self.inner.named_parameters(*args, **kwargs)

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend, keep: Tensor | None) -> Tensor:
        _current.append(attend)
        try:
            kept = 0 if keep is None else keep
            out = self.inner(
                input_ids=tokens[None], position_ids=positions[None], use_cache=False, logits_to_keep=kept, return_dict=True
            )
        finally:
            _current.pop()
        return out.logits[0].float()

    def frozen(self, weights: Mapping[str, Tensor]) -> ForeignDecoder:
        """The same architecture over `weights`, which are not copied."""
        shared: dict[int, Any] = {id(tensor): tensor for tensor in (*self.inner.parameters(), *self.inner.buffers())}
        inner = copy.deepcopy(self.inner, shared)
        for name, tensor in weights.items():
            parent, _, leaf = name.rpartition(".")
            setattr(inner.get_submodule(parent), leaf, nn.Parameter(tensor, requires_grad=False))
        if self.spec.tied and "lm_head.weight" not in weights:
            inner.tie_weights()  # pyright: ignore[reportCallIssue]
        return ForeignDecoder(inner, self.spec)


def load_foreign(folder: Path) -> ForeignDecoder:
    """Reads a folder through transformers. Raises ValueError where our attention is not this model's."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, attn_implementation="eager", output_loading_info=True
        )
        inner, report = loaded
        spec = _spec(inner.config)
    except (OSError, ValueError, KeyError, ImportError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{folder} cannot be served: {str(error).splitlines()[0]}") from error
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])[:3]
        raise ValueError(f"{folder} does not hold the weights its {spec.model_type} config.json describes: missing {missing}")
    inner = inner.eval()
    model = ForeignDecoder(inner, spec)
    _check(model, folder)
    return model


def _spec(config: PretrainedConfig) -> Spec:
    text: Any = config.get_text_config()
    heads = text.num_attention_heads
    return Spec(
        model_type=text.model_type,
        hidden=text.hidden_size,
        layers=text.num_hidden_layers,
        heads=heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        intermediate=0,
        vocab=text.vocab_size,
        max_positions=text.max_position_embeddings,
        rope_theta=0.0,
        norm_eps=0.0,
        tied=bool(getattr(text, "tie_word_embeddings", False)),
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        qk_norm=False,
    )


@torch.no_grad()
def _check(model: ForeignDecoder, folder: Path) -> None:
    """Compares two packed sequences with each alone under the model's own attention; leaves ours in place."""
    generator = torch.Generator().manual_seed(0)
    longest = min(model.spec.max_positions, 160)
    alone = [torch.randint(0, model.spec.vocab, (n,), generator=generator) for n in (longest, longest // 2)]
    expected = torch.cat([model.inner(input_ids=ids[None], use_cache=False).logits[0].float() for ids in alone])
    model.inner.set_attn_implementation(_NAME)  # pyright: ignore[reportCallIssue]
    ids = [x.numpy() for x in alone]
    [micro] = pack(ids, [x == x for x in ids], 10**6, 10**6)
    order = [place for row in range(2) for place in micro.keep[micro.kept_row == micro.members.index(row)]]
    attention = BatchAttention(micro, torch.device("cpu"))
    try:
        got = model(torch.from_numpy(micro.tokens), torch.from_numpy(micro.positions), attention, torch.tensor(order))
        gap = float((got - expected).abs().max())
    except (RuntimeError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{folder}: {model.spec.model_type} does not run with the engine's attention ({error})") from error
    if not gap < _TOLERANCE:
        raise ValueError(
            f"{folder}: {model.spec.model_type} mixes positions in a way the engine does not serve (logits differ by {gap:.2g}); "
            "it serves decoders with plain full attention"
        )
