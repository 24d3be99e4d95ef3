"""An episode as text: what the model read and wrote, turn by turn, with what each call came to.

In: an episode and the family that can decode it. Out: lines for a terminal. Control characters are shown, not obeyed: an
episode is untrusted text.
"""

from __future__ import annotations

from collections.abc import Sequence

from turngrad.conversation import ModelFamily
from turngrad.display import Display
from turngrad.episodes import Episode
from turngrad.rollout import Group


def transcript(episode: Episode, family: ModelFamily) -> str:
    """The whole episode, tokens decoded as they are; sampled text is marked by `>`."""
    lines = [
        f"--- {episode.task_id} attempt {episode.attempt}: reward {episode.reward}, stopped: {episode.stop_reason.value}"
        + (f", failed: {episode.failure.value} ({episode.error})" if episode.failure else "")
    ]
    for index, turn in enumerate(episode.turns, 1):
        if turn.segment_break is not None:
            lines.append(f"[turn {index} opens a new segment: {turn.segment_break.value}]")
        lines += [f"  {line}" for line in printable(family.decode(turn.context_ids)).split("\n")]
        lines += [f"> {line}" for line in printable(family.decode(turn.output_ids)).split("\n")]
    return "\n".join(lines)


def show_samples(groups: Sequence[Group], count: int, family: ModelFamily, display: Display) -> None:
    """Print `count` episodes: the best and the worst first, then others."""
    episodes = sorted(
        (episode for group in groups for episode in group.episodes), key=lambda e: -1.0 if e.reward is None else e.reward
    )
    ends = [episodes.pop(-1 if i % 2 == 0 else 0) for i in range(min(count, len(episodes)))]
    for episode in ends:
        display.say(transcript(episode, family))


def printable(text: str) -> str:
    """`text` with control characters and direction marks spelled out, newlines kept."""
    return "".join(c if c == "\n" or c.isprintable() else f"\\u{ord(c):04x}" for c in text)
