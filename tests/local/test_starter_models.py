"""Models by name: folders, and what is said about those that are none."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

from turngrad.local import models
from turngrad.local.models import BFCL_STARTER, SMOLLM2, renderer_for, resolve_model


def folder_with(tmp_path: Path, *names: str) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in names:
        (folder / name).write_text("{}", encoding="utf-8")
    return folder


def test_the_starter_is_a_complete_folder_of_at_most_16_mb() -> None:
    folder = resolve_model(BFCL_STARTER)
    assert (folder / "model.safetensors").stat().st_size <= 16 * 1024 * 1024
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert 2_000_000 <= sum(p.numel() for p in model.parameters()) <= 8_000_000
    assert model.config.vocab_size == len(tokenizer)
    assert model.config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    with torch.inference_mode():
        assert torch.isfinite(model(torch.tensor([tokenizer.encode("Show me 'log.txt'.")])).logits).all()


def test_a_complete_folder_is_itself(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "config.json", "tokenizer.json", "model.safetensors")
    assert resolve_model(str(folder)) == folder


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        ((), r"no config.json in .* \(it holds nothing\)"),
        (("tokenizer.json", "model.safetensors"), "no config.json"),
        (("config.json", "tokenizer.json"), "no weights"),
        (("config.json", "model.safetensors"), r"no tokenizer \(tokenizer.json\) in "),
    ],
)
def test_an_incomplete_folder_is_refused_with_what_is_missing(tmp_path: Path, names: tuple[str, ...], missing: str) -> None:
    folder = folder_with(tmp_path, *names)
    with pytest.raises(ValueError, match=missing) as caught:
        resolve_model(str(folder))
    assert str(caught.value).startswith(f"--base-model {folder}: ")


def test_a_name_that_is_no_folder_is_refused_with_the_names_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no such folder") as caught:
        resolve_model("qwen3-0.6b")
    assert BFCL_STARTER in str(caught.value)
    assert SMOLLM2 in str(caught.value)
    with pytest.raises(ValueError, match="this is a file, not a folder"):
        resolve_model(str(folder_with(tmp_path, "config.json") / "config.json"))


def test_a_folder_may_name_its_renderer(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "config.json")
    assert renderer_for(folder) is None
    (folder / "turngrad.json").write_text(json.dumps({"renderer": {"name": "qwen3", "enable_thinking": False}}))
    assert renderer_for(folder) == {"name": "qwen3", "enable_thinking": False}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"renderer": "qwen3"}', '{"renderer": {}}'])
def test_a_renderer_file_that_names_none_is_refused(tmp_path: Path, text: str) -> None:
    folder = folder_with(tmp_path, "config.json")
    (folder / "turngrad.json").write_text(text)
    with pytest.raises(ValueError, match="correct it, remove it, or pass --renderer"):
        renderer_for(folder)


def test_the_cache_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNGRAD_CACHE", str(tmp_path))
    assert models.cache_folder() == tmp_path
    monkeypatch.delenv("TURNGRAD_CACHE")
    assert models.cache_folder() == Path.home() / ".cache" / "turngrad"


@pytest.mark.full
def test_smollm2_is_converted_once_and_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("TURNGRAD_CACHE", str(tmp_path))
    folder = resolve_model(SMOLLM2)
    assert "converting SmolLM2" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    assert resolve_model(SMOLLM2) == folder
    assert capsys.readouterr().err == ""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "The capital of France is"}], return_tensors="pt")
    ids = prompt["input_ids"] if not isinstance(prompt, torch.Tensor) else prompt
    with torch.inference_mode():
        assert torch.isfinite(model(ids).logits).all()
    assert renderer_for(folder) == {"name": "default"}
