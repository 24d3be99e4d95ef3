"""Episodes on a terminal, in the report's colours.

In: the episodes of one file. Out: rich text. Every text of a run is spelled out by `printable` and styled as data: neither a
terminal's escapes nor rich's markup are obeyed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, get_args

from rich.table import Table
from rich.text import Text

from turngrad.episodes import Episode, ToolCall, Turn
from turngrad.report.blocks import blocks
from turngrad.report.decode import Decoder
from turngrad.report.pages import shown
from turngrad.report.training import Training

Colour = Literal["mask", "logprob", "advantage"]
COLOURS: tuple[Colour, ...] = get_args(Colour)

_CONTEXT = "dim"
_REDS = ("", "on #3a1d20", "on #5e252b", "on #8a2c37", "on #b83244")
"""From a sampled token with probability 1 to one of e^-4 and less."""


def episode_table(title: str, episodes: Sequence[Episode], training: Sequence[Training]) -> Table:
    """One line an episode."""
    table = Table(title=title, title_justify="left", box=None, header_style="bold")
    for name in ("task", "try", "reward", "adv.", "turns", "calls", "tokens", "stopped", "failure"):
        table.add_column(
            name, justify="left" if name in ("task", "stopped", "failure") else "right", no_wrap=name != "task", overflow="fold"
        )
    for episode, trained in zip(episodes, training, strict=True):
        cells = (
            episode.task_id,
            str(episode.attempt),
            _number(episode.reward),
            _number(trained.advantage),
            str(len(episode.turns)),
            str(sum(1 for _ in episode.tool_calls)),
            str(episode.sampled_tokens + episode.context_tokens),
            episode.stop_reason.value,
            episode.excluded or "",
        )
        table.add_row(*(Text(shown(cell)) for cell in cells))
    return table


def episode_text(episode: Episode, training: Training, decoder: Decoder, colour: Colour) -> Iterator[Text]:
    """The episode as lines of styled text, in the order things happened."""
    yield Text(f"{shown(episode.task_id)}, attempt {episode.attempt}: reward {_number(episode.reward)}", "bold")
    told = "" if training.advantage is None else f"trained with advantage {training.advantage:.3f}"
    yield Text("; ".join(filter(None, (told, training.why_not, f"stopped: {episode.stop_reason.value}"))))
    if episode.excluded:
        yield Text(f"failed: {episode.excluded} {shown(episode.error or '')}", "red")
    for key, value in episode.info.items():
        if value is not None:
            yield Text(f"  {shown(str(key))}: {shown(str(value))}", "dim")
    turns = zip(episode.turns, training.trained, training.advantages, strict=True)
    for index, (turn, trained, advantage) in enumerate(turns, 1):
        yield from _turn(index, turn, trained, decoder, _styles(colour, advantage))


def _turn(index: int, turn: Turn, trained: int, decoder: Decoder, style: Callable[[float, bool], str]) -> Iterator[Text]:
    if turn.segment_break is not None:
        yield Text(f"\n-- new segment before turn {index}: {turn.segment_break.value} --", "yellow")
    context, start = decoder.pieces(turn.context_ids), 0
    for block in blocks(context):
        yield Text(f"\n[{block.role}, {block.length} tokens]", "bold dim")
        yield Text("".join(context[start : start + block.length]), _CONTEXT)
        start += block.length
    counted = turn.untrainable and f"may not train: {shown(turn.untrainable)}"
    counted = counted or f"{trained} of {len(turn.output_ids)} tokens trained"
    yield Text(f"\n[assistant turn {index}, {counted}, finished by {shown(turn.finish_reason)}]", "bold")
    answer = Text()
    logprobs = [*turn.logprobs, *[0.0] * (len(turn.output_ids) - len(turn.logprobs))]
    for place, (piece, logprob) in enumerate(zip(decoder.pieces(turn.output_ids), logprobs, strict=True)):
        answer.append(piece, style(logprob, place < trained))
    yield answer
    for call in turn.tool_calls:
        yield _call(call)


def _call(call: ToolCall) -> Text:
    problem = f" not executed: {call.bad.value}" if call.bad else " error from the tool" if call.is_error else ""
    text = Text(f"-> {shown(call.name or call.raw)}", "cyan")
    text.append(problem, "red")
    text.append(f": {shown(call.result)}", "cyan")
    return text


def _styles(colour: Colour, advantage: float) -> Callable[[float, bool], str]:
    """The style of a sampled token by its logprob and whether it trained."""
    if colour == "logprob":
        return lambda logprob, trained: _REDS[min(len(_REDS) - 1, int(-logprob)) if logprob <= 0 else 0]
    if colour == "advantage":
        sign = "white on #2270ad" if advantage > 0 else "white on #a8501a"
        return lambda logprob, trained: sign if trained else ""
    return lambda logprob, trained: "white on #1f5c3c" if trained else "white on #6a4a10"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
