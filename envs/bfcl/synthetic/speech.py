"""Requests in words: templates with alternatives, and the many ways to ask for something.

In: an intent's wording (a bare verb phrase, a question or a statement). Out: what a user would type: plain, polite, wordy or
in the middle of a story. `[a|b]` in a template is one of its parts, nested as needed; `{name}` is a value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random

_CHOICE = re.compile(r"\[([^\[\]]*)\]")


def say(rng: Random, template: str, **values: object) -> str:
    """`template` with its choices made and its values filled in."""
    while True:
        chosen = _CHOICE.sub(lambda match: rng.choice(match[1].split("|")), template)
        if chosen == template:
            return re.sub(r" +", " ", chosen).strip().format(**values)
        template = chosen


@dataclass(frozen=True)
class Do:
    """Something to be done, as a bare verb phrase: "move 'a' into 'b'"."""

    text: str


@dataclass(frozen=True)
class Ask:
    """A question or a statement that stands alone: "What is in it?", "My tank is low, fill it up."."""

    text: str


Wording = Do | Ask

_FRAMES = (
    "{Vp}.",
    "{Vp}.",
    "{Vp}[, please|, would you|, if you can|]?.",
    "Please {vp}.",
    "[Kindly|Please|Just|Now|Simply] {vp}.",
    "[Could|Can|Would] you [please|kindly|possibly|quickly|] {vp}?",
    "[Could|Can|Would] you {vp}[ for me| now| right away| today|]?",
    "Would you [mind helping me to|be able to|be so kind as to|be willing to] {vp}?",
    "I'd [appreciate it|be grateful|be delighted] if you [could|would] {vp}.",
    "It would [be great|be wonderful|help a lot|mean the world|be ideal] if you could {vp}.",
    "I [need|want|would like|require] you to {vp}.",
    "I [need|want|would like|have] to {vp}.",
    "[Help me|Help me out and|Assist me to|Let's|Go ahead and|Make sure to|Be sure to|I trust you to] {vp}.",
    "[My next wish is|The next step is|What I need now is] to {vp}.",
    "[Might|May] I ask you to {vp}?",
    "[Is it possible to|Any chance you could|How about we|Do me a favor and] {vp}?",
)
_JOINS = (
    ", [then|and then|and afterwards|and once that is done|and right after that] {vp}",
    " and {vp}",
    " and [also|additionally|subsequently|finally] {vp}",
)
_LINKS = (
    "[Then|Next|After that|Afterwards|Once that's done|When that is finished|Following that|Subsequently], {vp}.",
    "[Also|Additionally|Besides|On top of that|Furthermore|In addition], {vp}.",
    "[Then|Afterwards|Also], [please|could you|kindly|would you] {vp}.",
    "[And|Oh, and] {vp}[ too| as well| while you're at it|].",
    "[As a next step|To round this off|Last but not least], I'd like you to {vp}.",
)
_OPENINGS = (
    "[Hi|Hey|Hello|Hi there|Hey there|Good morning|Greetings][!|,|.]",
    "[Alright|Okay|Great|Perfect|Fantastic|Wonderful|Thanks|Thank you|Good|Nice work][!|.|,]",
    "[While we're at it|Before I forget|One more thing|On another note|By the way|Just to be safe]:",
    "[With that sorted|With that out of the way|Now that this is settled|Having seen that], here is what comes next.",
    "[For the sake of completeness|To stay on schedule|To keep things tidy|For peace of mind],",
    "[I've been thinking|I have thought it over|Upon reflection, I changed my plans|Something just came up].",
    "[My colleague|My manager|My friend|The team|My sister|A client] [asked about this|is waiting for this|reminded me of this].",
    "[I'm in a bit of a hurry|I only have a few minutes|My next meeting starts soon|It has been a long day].",
    "[Here's the situation|Let me explain|Picture this|Here is what I have in mind]:",
)
_CLOSINGS = (
    "[Thanks|Thank you|Many thanks|Much appreciated|Thanks in advance|I appreciate it][!|.]",
    "[That would help a lot|That would be a great relief|It matters a lot to me|I'd rest easier then].",
    "[I want to be certain about it|I need to be sure that everything is right|Accuracy is essential here].",
    "[Take your time|No rush|The sooner the better|It is rather urgent].",
    "[This is for my records|It is for the [weekly|monthly|final] review|My team depends on it].",
    "[Let me know how it goes|Tell me when it's done|Keep me posted].",
)


def utter(rng: Random, wordings: list[Wording], context: tuple[str, ...] = ()) -> str:
    """One user message that says all of `wordings` in order; `context` are sentences that fit the subject."""
    parts: list[str] = []
    index = 0
    while index < len(wordings):
        wording = wordings[index]
        if isinstance(wording, Ask):
            lead = say(rng, "[Then|Next|Also|And|After that][:|,]")
            parts.append(f"{lead} {_lower(wording.text)}" if parts else wording.text)
        elif parts and rng.random() < 0.7:
            parts.append(say(rng, rng.choice(_LINKS), vp=wording.text))
        else:
            phrase = wording.text
            # Two things to do often share one sentence.
            while index + 1 < len(wordings) and isinstance(wordings[index + 1], Do) and rng.random() < 0.6:
                index += 1
                phrase += " " + say(rng, rng.choice(_JOINS), vp=wordings[index].text)
                phrase = phrase.replace(" ,", ",")
            parts.append(_frame(rng, phrase))
        index += 1
    text = " ".join(parts)
    if rng.random() < 0.3:
        opening = say(rng, rng.choice(context if context and rng.random() < 0.65 else _OPENINGS))
        text = f"{opening} {text}" if opening[-1] in ".!?:" else f"{opening} {_lower(text)}"
    if rng.random() < 0.22:
        text = f"{text} {say(rng, rng.choice(context if context and rng.random() < 0.4 else _CLOSINGS))}"
    return text


def _frame(rng: Random, phrase: str) -> str:
    framed = say(rng, rng.choice(_FRAMES), vp=phrase, Vp=phrase[0].upper() + phrase[1:])
    return framed.replace("?.", "?" if ", would you" in framed or ", if you can" in framed else ".").replace("..", ".")


def spaced(text: str) -> str:
    """`text` after a space, unless it begins with punctuation that follows a word directly."""
    return text if not text or text[0] in ",;." else " " + text


def _lower(text: str) -> str:
    return text if text[:2] in ("I ", "I'") or text[:1] in "'\"" else text[0].lower() + text[1:]
