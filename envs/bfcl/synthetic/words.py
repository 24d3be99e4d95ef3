"""Words, names and values to fill generated tasks with: file names, people, messages, identifiers.

In: a `random.Random`. Out: one value. A third of the nouns are everyday ones, a third comes from a list of some thousand
frequent English words, and a third is made of syllables, so that a policy cannot know every name by heart and has to copy
what it reads.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random


def word_list(text: str) -> tuple[str, ...]:
    """The words of a text, for lists that read better as a text."""
    return tuple(text.split())


NOUNS = word_list(
    """report summary notes budget draft plan archive record survey invoice schedule ledger outline sketch manual index
journal roster agenda minutes contract proposal estimate forecast inventory catalog memo letter script essay chapter poem
recipe diary checklist timeline roadmap blueprint diagram chart table dataset sample results metrics measurements figures
analysis review audit status update release backup snapshot export import template policy guide tutorial lesson lecture
homework thesis research experiment protocol observations findings references sources citations images photos portraits
logs errors warnings traces settings config profile account orders receipts payments taxes salaries expenses revenue profit
customers clients contacts vendors suppliers members students teachers staff team project module design prototype concept
campaign launch event meeting workshop trip itinerary booking garden kitchen workshop studio library museum harbor bridge
river valley mountain forest desert island coast meadow orchard village market station airport factory warehouse office
signal sensor engine motor battery circuit panel cable antenna satellite rocket planet comet galaxy crystal mineral fossil
weather climate rainfall harvest orchard cattle poultry honey cheese bread coffee tea spice pepper cinnamon saffron velvet
copper silver marble granite cedar maple walnut willow falcon heron otter badger salmon lynx panther tiger dolphin"""
)

ADJECTIVES = word_list(
    """annual monthly weekly daily final initial old new early late quick slow bright dark quiet loud large small
public private internal external global local central northern southern eastern western primary secondary spare extra
important urgent minor major shared personal hidden open closed active pending complete partial revised raw clean merged
golden silver green blue red amber violet crimson ancient modern digital analog manual automatic stable broken fresh frozen
warm cold gentle brave clever curious eager honest humble lively patient polite proud swift steady tidy vivid wise"""
)

VERBS = word_list(
    """check review finish prepare update discuss confirm deliver improve repair replace measure record compare organize
collect publish present launch test approve schedule send receive share explain verify inspect clean build design paint
write read translate summarize analyze explore plan order ship store pack label sort count estimate monitor support"""
)

FIRST_NAMES = word_list(
    """Amara Bram Celia Dario Edith Farid Greta Hanna Ivo Jonas Katya Lars Mira Nadia Omar Petra Quentin Rosa
Selim Tara Umar Vera Wanda Xavier Yara Zoltan Agnes Boris Clara Dmitri Elena Felix Gloria Hugo Irene Julia Kofi Lena Marco
Nina Oscar Paula Ruben Sonia Tomas Ursula Victor Wilma Yusuf Zelda Adele Bruno Carmen Diego Esther Fiona Gustav Helga Igor
Jasper Kira Leon Magda Noel Olive Pablo Rita Stefan Thea Uwe Viola Walter Ayumi Benoit Chiara Dagmar Emil Freya"""
)

LAST_NAMES = word_list(
    """Abbott Bergman Castillo Delgado Eriksen Fischer Gallagher Hoffman Ivanov Jansen Kowalski Lindqvist Moreau
Nakamura Okafor Petrov Quinn Rossi Schneider Tanaka Ulrich Vargas Weber Xu Yilmaz Zimmer Andersson Brandt Costa Dubois
Engel Ferrari Grant Haas Iqbal Jensen Keller Lombardi Meyer Novak Olsen Pereira Richter Santos Takeda Varga"""
)

MONTHS = word_list("January February March April May June July August September October November December")

EXTENSIONS = ("txt", "txt", "txt", "csv", "md", "pdf", "docx", "log", "json", "py", "html", "xlsx", "jpg", "doc", "js", "css")

STREETS = word_list(
    "Elm Birch Cedar Lake Hill Park Mill Church Station Bridge Garden Orchard Harbor River Sunset Walnut Chestnut"
)
STREET_KINDS = ("Street", "Avenue", "Road", "Lane", "Way", "Drive", "St", "Blvd")
TOWNS = word_list("Fairhaven Ashford Brookdale Kingsley Larkspur Montrose Northfield Ridgemont Springvale Westbury Eastlake")
STATES = word_list("CA NY TX WA OR CO AZ NV FL IL")

_VOCABULARY = Path(__file__).parent / "vocabulary.txt"
_ONSETS = word_list("b c d f g h j k l m n p r s t v w z br cr dr fl gr kl pl pr sk st tr th sh ch")
_VOWELS = word_list("a e i o u ai ea io ou")
_CODAS = ["", "", "", "n", "r", "l", "s", "t", "m", "x", "ck", "nd", "rt"]
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def invented(rng: Random) -> str:
    """A pronounceable word that exists nowhere, in lower case."""
    return "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.choice((1, 2, 2, 3))))


def noun(rng: Random) -> str:
    """An everyday, a frequent or an invented word, in lower case."""
    draw = rng.random()
    return rng.choice(NOUNS) if draw < 0.4 else rng.choice(_lower_case()) if draw < 0.75 else invented(rng)


@cache
def vocabulary() -> tuple[str, ...]:
    """Frequent English words and beginnings of words, the lower-case ones first, in the order of SmolLM2's vocabulary."""
    return tuple(_VOCABULARY.read_text(encoding="utf-8").split())


@cache
def _lower_case() -> tuple[str, ...]:
    return tuple(word for word in vocabulary() if word.islower() and len(word) > 3)


def identifier(rng: Random) -> str:
    """One name of a file, folder or tag, in one of the usual styles: `budget`, `AnnualReport`, `old_notes`, `draft2024`."""
    first, second = rng.choice(ADJECTIVES) if rng.random() < 0.5 else noun(rng), noun(rng)
    style = rng.randrange(10)
    if style <= 2:
        name = second
    elif style <= 4:
        name = f"{first}_{second}"
    elif style <= 6:
        name = first.capitalize() + second.capitalize()
    elif style == 7:
        name = second.capitalize()
    elif style == 8:
        name = f"{first.capitalize()}_{second.capitalize()}"
    else:
        name = f"{first}-{second}"
    if rng.random() < 0.2:
        name += rng.choice(["", "_"]) + str(rng.choice([rng.randrange(1, 10), rng.randrange(10, 100), rng.randrange(2015, 2027)]))
    return name


def file_name(rng: Random) -> str:
    """A file name with an extension."""
    return f"{identifier(rng)}.{rng.choice(EXTENSIONS)}"


def person(rng: Random) -> str:
    """A first name."""
    return rng.choice(FIRST_NAMES) if rng.random() < 0.8 else invented(rng).capitalize()


def surname(rng: Random) -> str:
    """A last name."""
    return rng.choice(LAST_NAMES) if rng.random() < 0.8 else invented(rng).capitalize()


def sentence(rng: Random) -> str:
    """A short message somebody might write, with the punctuation people use."""
    verb, subject, other = rng.choice(VERBS), noun(rng), noun(rng)
    adjective, name = rng.choice(ADJECTIVES), person(rng)
    return rng.choice(
        (
            f"Please {verb} the {adjective} {subject}.",
            f"We will {verb} the {subject} on {rng.choice(('Monday', 'Tuesday', 'Friday', 'Sunday'))}.",
            f"The {subject} is {adjective} and the {other} is ready.",
            f"{name} wants to {verb} the {subject} before the {other}",
            f"{adjective.capitalize()} {subject} and {adjective} {other}!",
            f"Remember to {verb} {rng.randrange(2, 90)} {subject} samples.",
            f"Just had to {verb} my {adjective} {subject}!",
            f"Can you {verb} the {other} with {name}?",
            f"{subject.capitalize()} {verb} completed.",
            f"No more {adjective} {subject}, only {other}.",
            f"{name} said the {subject} needs a {adjective} {other}.",
            f"Time to {verb} the {subject}",
            f"I could not {verb} the {adjective} {subject}, please help.",
            f"{adjective.capitalize()} news: the {subject} arrived.",
        )
    )


def title(rng: Random) -> str:
    """A title of two or three words."""
    return rng.choice(
        (
            f"{rng.choice(ADJECTIVES).capitalize()} {noun(rng).capitalize()}",
            f"{noun(rng).capitalize()} {rng.choice(('Issue', 'Error', 'Request', 'Problem', 'Question', 'Update', 'Alert'))}",
            f"{rng.choice(ADJECTIVES).capitalize()} {noun(rng)} {rng.choice(('failure', 'delay', 'request', 'review'))}",
            f"{noun(rng).capitalize()} {rng.choice(VERBS)}",
        )
    )


def secret(rng: Random) -> str:
    """A password or a token as people make them up."""
    word = noun(rng)
    return rng.choice(
        (
            f"{word}{rng.randrange(10, 10000)}",
            f"{word.capitalize()}{rng.randrange(10, 1000)}{rng.choice('!#@$')}",
            f"{letters(rng, 3)}{rng.randrange(100, 1000)}{letters(rng, 3)}",
            f"{word}_{rng.choice(ADJECTIVES)}",
            f"{rng.choice(ADJECTIVES)}{word.capitalize()}{rng.randrange(1, 1000)}",
            f"{letters(rng, 2)}{rng.randrange(10, 100)}{letters(rng, 2)}{rng.randrange(10, 100)}",
            f"token_{letters(rng, 3)}{rng.randrange(10, 1000)}",
        )
    )


def user_name(rng: Random) -> str:
    """A user name of a network: `amara_weber`, `techfalcon42`."""
    return rng.choice(
        (
            f"{person(rng).lower()}_{surname(rng).lower()}",
            f"{rng.choice(ADJECTIVES)}_{noun(rng)}",
            f"{noun(rng)}{rng.randrange(1, 1000)}",
            f"{person(rng)[0].lower()}{surname(rng).lower()}",
            f"{person(rng).lower()}{rng.randrange(1, 100)}",
        )
    )


def tag(rng: Random) -> str:
    """A hashtag's word, without the sign."""
    return rng.choice(
        (
            rng.choice(ADJECTIVES).capitalize() + noun(rng).capitalize(),
            noun(rng).capitalize() + rng.choice(VERBS).capitalize(),
            noun(rng).capitalize(),
            noun(rng),
        )
    )


def digits(rng: Random, count: int) -> str:
    """`count` digits, the first not zero."""
    return str(rng.randrange(1, 10)) + "".join(str(rng.randrange(10)) for _ in range(count - 1))


def letters(rng: Random, count: int) -> str:
    """`count` lower-case letters."""
    return "".join(rng.choice(_LETTERS) for _ in range(count))


def address(rng: Random) -> str:
    """A street address as one dictates it to a navigation system."""
    street = f"{rng.randrange(1, 3000)} {rng.choice(STREETS)} {rng.choice(STREET_KINDS)}"
    town = rng.choice(TOWNS) if rng.random() < 0.7 else invented(rng).capitalize()
    return rng.choice((f"{street}, {town}, {rng.choice(STATES)}", f"{street}, {town}", f"{street}, {town}, {digits(rng, 5)}"))


def ordinal(day: int) -> str:
    """1st, 2nd, 3rd, 4th, ..."""
    return f"{day}{'th' if 10 < day < 14 else {1: 'st', 2: 'nd', 3: 'rd'}.get(day % 10, 'th')}"
