"""Model families for tests: every renderer that can be driven by Qwen's real ranks plus the family's own control tokens."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from renderers import create_renderer
from renderers.configs import _CONFIG_BY_NAME

from tests.qwen import QwenTokenizer, qwen_tokenizer
from turngrad.conversation import ModelFamily

QWEN_FAMILIES = ("qwen3", "qwen3.5", "qwen3.6", "qwen3.8", "prime-qwen3", "nemotron-3")
OTHER_FAMILIES = ("glm-4.5", "glm-5", "llama-3", "minimax-m2", "kimi-k2", "deepseek-v3")
FAMILIES = QWEN_FAMILIES + OTHER_FAMILIES


class ExtendedTokenizer(QwenTokenizer):
    """Qwen's ranks with further control tokens: one that a renderer looks up and Qwen lacks gets an id of its own."""

    def __init__(self) -> None:
        # The ranks are the shared ones: building them takes a second and a half.
        self.__dict__.update(vars(qwen_tokenizer()))
        self._extra: dict[str, int] = {}

    def add(self, token: str) -> int:
        return self._extra.setdefault(token, 300_000 + len(self._extra))

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        if isinstance(tokens, str):
            known = super().convert_tokens_to_ids(tokens)
            return self.add(tokens) if known is None else known
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        if not self._extra:
            return super().encode(text)
        ids: list[int] = []
        for piece in re.split("(" + "|".join(map(re.escape, self._extra)) + ")", text):
            ids += [self._extra[piece]] if piece in self._extra else super().encode(piece)
        return ids

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **options: Any) -> str:
        names = {number: token for token, number in self._extra.items()}
        ids = [token_ids] if isinstance(token_ids, int) else list(map(int, token_ids))
        text, plain = "", []
        for token_id in ids:
            if token_id in names:
                text += super().decode(plain, skip_special_tokens) + ("" if skip_special_tokens else names[token_id])
                plain = []
            else:
                plain.append(token_id)
        return text + super().decode(plain, skip_special_tokens)


@lru_cache
def family(name: str, *, thinking: bool = False, history: str = "keep") -> ModelFamily:
    """The family `name` as `load_family` would configure it."""
    config_class = _CONFIG_BY_NAME[name]
    settings: dict[str, Any] = {}
    if "enable_thinking" in config_class.model_fields:
        settings["enable_thinking"] = thinking
    if history == "keep":
        settings["thinking_retention"] = "all"
    tokenizer: Any = qwen_tokenizer() if name in QWEN_FAMILIES else ExtendedTokenizer()
    if name.startswith("deepseek"):
        for token in ("begin▁of▁sentence", "end▁of▁sentence", "User", "Assistant"):
            tokenizer.add(f"<｜{token}｜>")
        for token in ("calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep", "outputs▁begin", "outputs▁end"):
            tokenizer.add(f"<｜tool▁{token}｜>")
        for token in ("output▁begin", "output▁end"):
            tokenizer.add(f"<｜tool▁{token}｜>")
    return ModelFamily(tokenizer, create_renderer(tokenizer, config_class(**settings)), name=name)
