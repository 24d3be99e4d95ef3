"""A policy that says what it is told: for testing the turn loop without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from turngrad.conversation import ModelFamily
from turngrad.policy import Sample

Line = str | BaseException
"""What to say: text, of which a trailing `~` means that the token limit cut it there, or an error to raise."""


@dataclass
class ScriptedPolicy:
    """Plays `script` in every episode, or what `script(n)` gives for the n-th episode that asks; counts its samples."""

    family: ModelFamily
    script: Sequence[Line] | Callable[[int], Sequence[Line]]
    snapshot: str = "scripted"
    samples: int = 0
    prompts: list[list[int]] = field(default_factory=list)
    limits: list[int] = field(default_factory=list)
    _episodes: dict[str, tuple[Sequence[Line], int]] = field(default_factory=dict)

    async def sample(self, prompt_ids: list[int], max_tokens: int, *, cache_key: str, seed: int | None = None) -> Sample:
        self.samples += 1
        self.prompts.append(list(prompt_ids))
        self.limits.append(max_tokens)
        if cache_key not in self._episodes:
            index = len(self._episodes)
            self._episodes[cache_key] = (self.script(index) if callable(self.script) else self.script, 0)
        lines, place = self._episodes[cache_key]
        self._episodes[cache_key] = (lines, place + 1)
        line = lines[min(place, len(lines) - 1)]
        if isinstance(line, BaseException):
            raise line
        cut = line.endswith("~")
        ids = self.family.tokenizer.encode(line.removesuffix("~")) + ([] if cut else [self.family.stop_ids[0]])
        return Sample(ids, [-0.25] * len(ids), "length" if cut else "stop", 0, 0.001)
