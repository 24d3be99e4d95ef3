"""The decoder's numbers are those of transformers, frozen or trainable."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.local.reference import causal, logits
from tests.local.tiny import config, seeded_decoder
from turngrad.local.decoder import Spec, UnsupportedModel
from turngrad.local.frozen import FrozenDecoder

KINDS: list[dict[str, Any]] = [
    {"model_type": "qwen3"},
    {"model_type": "qwen3", "tie_word_embeddings": False, "head_dim": 16},
    {"model_type": "qwen2"},
    {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    {"model_type": "mistral", "sliding_window": None},
]
TOKENS = [5, 9, 200, 17, 3, 3, 250, 40, 41, 42]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
def test_logits_equal_those_of_transformers(kind: dict[str, Any]) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    content = config(**kind)
    ours = seeded_decoder(content)
    kind_config = AutoConfig.for_model(**{"sliding_window": None, **content})
    theirs = AutoModelForCausalLM.from_config(kind_config, attn_implementation="eager").float().eval()
    state = dict(ours.named_parameters())
    if ours.spec.tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    theirs.load_state_dict(state, strict=True)
    with torch.no_grad():
        expected = theirs(torch.tensor([TOKENS])).logits[0]
        torch.testing.assert_close(logits(ours, TOKENS), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
def test_the_frozen_form_agrees_with_the_trainable_one(kind: dict[str, Any]) -> None:
    ours = seeded_decoder(config(**kind))
    frozen = FrozenDecoder(ours.spec, dict(ours.named_parameters()))
    ids = torch.tensor(TOKENS)
    with torch.no_grad():
        keep = torch.tensor([1, 4, 9])
        got = frozen(ids, torch.arange(len(ids)), causal, keep)
        torch.testing.assert_close(got, logits(ours, TOKENS)[keep], atol=1e-5, rtol=1e-5)


def test_positions_beyond_the_first_table_are_the_same_as_before_it_grew() -> None:
    ours = seeded_decoder(config(max_position_embeddings=4096))
    frozen = FrozenDecoder(ours.spec, dict(ours.named_parameters()))
    ids = torch.tensor(TOKENS)
    with torch.no_grad():
        near = frozen(ids, torch.arange(len(ids)), causal, None)
        far = frozen(ids, torch.arange(len(ids)) + 3000, causal, None)
    # Rotary attention depends on distances alone.
    torch.testing.assert_close(near, far, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"use_sliding_window": True, "sliding_window": 64}, "sliding"),
    ],
)
def test_what_it_cannot_compute_is_refused_by_name(change: dict[str, Any], word: str) -> None:
    with pytest.raises(UnsupportedModel, match=word):
        Spec.from_config({**config(), **change})
