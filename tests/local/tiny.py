"""A random Qwen3 of a few thousand weights, as a folder: enough to exercise every line of the engine in milliseconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from turngrad.local.basemodel import BaseModel, load_base_model
from turngrad.local.decoder import Decoder, Spec

CPU = torch.device("cpu")
VOCAB = 300
END = 1


def config(model_type: str = "qwen3", **overrides: Any) -> dict[str, Any]:
    """config.json of the tiny model."""
    return {
        "model_type": model_type,
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "eos_token_id": END,
        **overrides,
    }


def tokenizer() -> Tokenizer:
    """Bytes, two control tokens, and a few words that hold several characters."""
    vocab = {"<|endoftext|>": 0, "<|im_end|>": END}
    for character in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocab[character] = len(vocab)
    built = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens(["<|endoftext|>", "<|im_end|>"])
    built.add_tokens([f"<w{i}>" for i in range(VOCAB - built.get_vocab_size())])
    return built


def write_folder(folder: Path, *, scale: float = 0.3, **overrides: Any) -> Path:
    """Writes the model and its tokenizer; weights are the same every time, matrices of standard deviation `scale`."""
    folder.mkdir(parents=True, exist_ok=True)
    content = config(**overrides)
    (folder / "config.json").write_text(json.dumps(content))
    decoder = seeded_decoder(content, scale=scale)
    save_file({name: p.detach().contiguous() for name, p in decoder.named_parameters()}, folder / "model.safetensors")
    tokenizer().save(str(folder / "tokenizer.json"))
    class_of = {"eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(class_of))
    return folder


def seeded_decoder(content: dict[str, Any], seed: int = 0, scale: float = 0.3) -> Decoder:
    """A decoder whose logits vary enough for sampling to mean something."""
    generator = torch.Generator().manual_seed(seed)
    decoder = Decoder(Spec.from_config(content))
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if "norm" in name else scale * noise)
    return decoder


def base_model(folder: Path, **overrides: Any) -> BaseModel:
    """The folder, written and read."""
    return load_base_model("tiny", write_folder(folder, **overrides), CPU)
