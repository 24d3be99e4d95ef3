"""The file system: folders to walk, files to read, write, sort out and compare."""

from __future__ import annotations

from random import Random
from typing import Any

from . import words
from .scene import Intent, Scene
from .speech import Wording

CLASS = "GorillaFileSystem"

CONTEXT = (
    "[I'm tidying up my workspace|I am cleaning up my drive|We are reorganizing the shared drive] [today|this morning|at last].",
    "[The deadline for my project is close|My supervisor wants everything in order|The auditors are coming].",
    "[I lost track of my documents|My folders are a mess|I can't remember where I put things].",
    "[I've been drafting this for weeks|I worked on these files all night|The team edited these files yesterday].",
)

_FILE_WORD = "[file|document|]"
_FOLDER = "[folder|directory]"


def config(rng: Random) -> dict[str, Any]:
    """A root folder with files and up to two levels of folders below it."""
    names: set[str] = set()

    def fresh(make: Any) -> str:
        while True:
            name = make(rng)
            if name not in names:
                names.add(name)
                return name

    def files(count: int) -> dict[str, Any]:
        return {fresh(words.file_name): {"type": "file", "content": _content(rng)} for _ in range(count)}

    def folder(depth: int) -> dict[str, Any]:
        contents = files(rng.randrange(0, 4))
        if depth:
            for _ in range(rng.choice((0, 1, 1, 2))):
                contents[fresh(words.identifier)] = folder(depth - 1)
        items = list(contents.items())
        rng.shuffle(items)
        if rng.random() < 0.2:
            items.append((f".{fresh(words.noun)}", {"type": "file", "content": _content(rng)}))
        return {"type": "directory", "contents": dict(items)}

    root = {fresh(words.identifier): folder(1) for _ in range(rng.randrange(1, 4))} | files(rng.randrange(1, 4))
    items = list(root.items())
    rng.shuffle(items)
    return {"root": {fresh(words.identifier): {"type": "directory", "contents": dict(items)}}}


def _content(rng: Random) -> str:
    if rng.random() < 0.05:
        return ""
    joint = "\n" if rng.random() < 0.5 else " "
    return joint.join(words.sentence(rng) for _ in range(rng.choice((1, 1, 2, 2, 3))))


def _here(scene: Scene) -> Any:
    return scene.backend(CLASS)._current_dir


def _files(scene: Scene) -> list[str]:
    return [name for name, item in _here(scene).contents.items() if hasattr(item, "content") and not name.startswith(".")]


def _folders(scene: Scene) -> list[str]:
    return [name for name, item in _here(scene).contents.items() if not hasattr(item, "content")]


def _some_file(scene: Scene) -> tuple[str, str]:
    """A file to work on and how the request names it; now and then it is the one just spoken of."""
    recent = scene.recent.get("file")
    if recent in _files(scene) and scene.chance(0.45):
        name, wording = recent, "[it|that file|the file|the same file|that document|the previous file]"
        if scene.chance(0.5):
            return name, scene.quoted(name)
        return name, scene.to_do(wording).text
    name = scene.pick(_files(scene))
    scene.recent["file"] = name
    return name, scene.to_do(f"[the|the|] {_FILE_WORD} {{name}}", name=scene.quoted(name)).text


def _enter(scene: Scene) -> str:
    """Go into a folder below; what the request says of it."""
    name = scene.pick(_folders(scene))
    scene.do("cd", folder=name)
    scene.recent.pop("file", None)
    return scene.quoted(name)


def list_files(scene: Scene) -> Wording:
    hidden = scene.chance(0.6)
    if hidden:
        scene.do("ls", a=True)
        return scene.to_do(
            "[list|show|display|print|enumerate] [all|all the|every one of the] [files|files and folders|items|contents] "
            "[here|in this directory|in the current folder|in my present directory][,|] "
            "[including|along with|and don't leave out|together with] the hidden ones"
        )
    _here(scene)
    scene.do("ls")
    if scene.chance(0.3):
        return scene.to_ask("[What files do I have here?|What is in the current folder?|Which items are in this directory?]")
    return scene.to_do(
        "[list|show|display|print|give me] [the files|what is|everything visible|the contents] "
        "[here|in this directory|in the current folder|in the folder I'm in]"
    )


def go_and_list(scene: Scene) -> Wording:
    name = _enter(scene)
    scene.do("ls", a=True)
    return scene.to_do(
        f"[go|navigate|move|switch|change|head] [to|into] the {{name}} {_FOLDER} and [list|show|display] "
        "[everything|all files|all the contents] [in it|there|inside], [hidden files included|including hidden files|even hidden ones]",
        name=name,
    )


def go_into(scene: Scene) -> Wording:
    name = _enter(scene)
    return scene.to_do(
        f"[go|navigate|move|switch|change|head over|step|cd|jump] [to|into] [the|my|] {{name}} {_FOLDER}", name=name
    )


def go_up(scene: Scene) -> Wording:
    scene.need(_here(scene).parent is not None)
    scene.do("cd", folder="..")
    scene.recent.pop("file", None)
    return scene.to_do(f"[go back|move up|return|step back|navigate up|go] [to the parent {_FOLDER}|one level up|one {_FOLDER} up]")


def where_am_i(scene: Scene) -> Wording:
    _here(scene)
    scene.do("pwd")
    if scene.chance(0.5):
        return scene.to_ask("[Where am I|In which folder am I|What is my current path|What directory are we in][ right now|]?")
    return scene.to_do("[tell|show] me [the path of the current directory|my present working directory|where I am right now]")


def read_file(scene: Scene) -> Wording:
    name, spoken = _some_file(scene)
    scene.do("cat", file_name=name)
    if scene.chance(0.3):
        return scene.to_ask("[What's inside|What does|What is written in] {spoken}[ say|]?", spoken=spoken)
    return scene.to_do(
        "[show|display|print|reveal|open|output|read out|present] [the contents of|the content of|what's in|the full text of|] {spoken}",
        spoken=spoken,
    )


def enter_and_read(scene: Scene) -> Wording:
    scene.need(_folders(scene))
    folder = _enter(scene)
    if not _files(scene):
        return scene.to_do(f"[go|navigate|switch] [to|into] the {{folder}} {_FOLDER}", folder=folder)
    name = scene.pick(_files(scene))
    scene.recent["file"] = name
    scene.do("cat", file_name=name)
    return scene.to_do(
        f"[show|display|open|read|print] [the contents of|] {{name}} [from|in|which is in|that sits in] the {{folder}} {_FOLDER}",
        name=scene.quoted(name),
        folder=folder,
    )


def make_folder(scene: Scene) -> Wording:
    name = words.identifier(scene.rng)
    scene.need(name not in _here(scene).contents)
    scene.do("mkdir", dir_name=name)
    return scene.to_do(
        f"[create|make|set up|add|establish|generate] a [new|fresh|separate|] {_FOLDER} [called|named|titled|] {{name}}"
        "[ here| in this directory| in the current folder|]",
        name=scene.quoted(name),
    )


def make_file(scene: Scene) -> Wording:
    name = words.file_name(scene.rng)
    scene.need(name not in _here(scene).contents)
    scene.do("touch", file_name=name)
    scene.recent["file"] = name
    return scene.to_do(
        "[create|make|produce|start|set up|draft] [a|an] [new|empty|blank|] [file|document] [called|named|titled|] {name}"
        "[ here| in this directory| in the current folder|]",
        name=scene.quoted(name),
    )


def make_file_with_text(scene: Scene) -> Wording:
    name, text = words.file_name(scene.rng), words.sentence(scene.rng)
    scene.need(name not in _here(scene).contents)
    scene.do("touch", file_name=name)
    scene.do("echo", content=text, file_name=name)
    scene.recent["file"] = name
    return scene.to_do(
        "[create|make|produce|start|set up] [a|an] [new|] [file|document] [called|named|titled] {name} "
        "[with the content|that says|containing|with the text|and write into it] {text}",
        name=scene.quoted(name),
        text=_text(text),
    )


def write_text(scene: Scene) -> Wording:
    name, spoken = _some_file(scene)
    text = words.sentence(scene.rng)
    scene.do("echo", content=text, file_name=name)
    return scene.to_do(
        "[[write|put|jot down|place|record|enter|note] {text} [into|in|inside] {spoken}"
        "|[replace|overwrite|change] the [content|contents|text] of {spoken} [with|to] {text}]",
        text=_text(text),
        spoken=spoken,
    )


def show_text(scene: Scene) -> Wording:
    _here(scene)
    text = words.sentence(scene.rng)
    scene.do("echo", content=text)
    return scene.to_do("[print|echo|display|output] {text} [to|on|in] the terminal", text=_text(text))


def move_to_folder(scene: Scene) -> Wording:
    scene.need(_folders(scene))
    name, spoken = _some_file(scene)
    folder = scene.pick(_folders(scene))
    scene.need(name not in _here(scene).contents[folder].contents)
    scene.do("mv", source=name, destination=folder)
    scene.recent.pop("file", None)
    return scene.to_do(
        f"[move|transfer|relocate|shift|put] {{spoken}} [into|to|over to|inside] the {{folder}} {_FOLDER}",
        spoken=spoken,
        folder=scene.quoted(folder),
    )


def rename(scene: Scene) -> Wording:
    name, spoken = _some_file(scene)
    new = words.file_name(scene.rng)
    scene.need(new not in _here(scene).contents)
    scene.do("mv", source=name, destination=new)
    scene.recent["file"] = new
    return scene.to_do(
        "[rename {spoken} to {new}|change the name of {spoken} to {new}|give {spoken} the new name {new}]",
        spoken=spoken,
        new=scene.quoted(new),
    )


def copy_to_folder(scene: Scene) -> Wording:
    scene.need(_folders(scene))
    name, spoken = _some_file(scene)
    folder = scene.pick(_folders(scene))
    scene.need(name not in _here(scene).contents[folder].contents)
    scene.do("cp", source=name, destination=folder)
    return scene.to_do(
        f"[[copy|duplicate|back up] {{spoken}} [into|to|over to] the {{folder}} {_FOLDER}"
        f"|[make|put|place|keep] a [copy|duplicate|backup] of {{spoken}} in the {{folder}} {_FOLDER}]",
        spoken=spoken,
        folder=scene.quoted(folder),
    )


def copy_as(scene: Scene) -> Wording:
    name, spoken = _some_file(scene)
    new = words.file_name(scene.rng)
    scene.need(new not in _here(scene).contents)
    scene.do("cp", source=name, destination=new)
    return scene.to_do(
        "[copy|duplicate] {spoken} [as|to a new file called|under the name] {new}[ here| in the same directory|]",
        spoken=spoken,
        new=scene.quoted(new),
    )


def copy_and_rename(scene: Scene) -> Wording:
    scene.need(_folders(scene))
    name, spoken = _some_file(scene)
    folder, new = scene.pick(_folders(scene)), words.file_name(scene.rng)
    inside = _here(scene).contents[folder].contents
    scene.need(name not in inside and new not in inside)
    keep = scene.chance(0.65)
    scene.do("cp" if keep else "mv", source=name, destination=folder)
    scene.do("cd", folder=folder)
    scene.do("mv", source=name, destination=new)
    scene.recent["file"] = new
    verb = "[copy|duplicate|back up]" if keep else "[move|transfer|relocate]"
    return scene.to_do(
        f"{verb} {{spoken}} [into|to|over to] the {{folder}} {_FOLDER} and [rename it to|call it|name it|save it there as] {{new}}"
        "[ there|]",
        spoken=spoken,
        folder=scene.quoted(folder),
        new=scene.quoted(new),
    )


def search_in_file(scene: Scene) -> Wording:
    name, spoken = _some_file(scene)
    content = _here(scene).contents[name].content
    scene.need(content.split())
    pattern = scene.pick([word.strip(".,!?") for word in content.split() if len(word) > 2] or ["the"])
    scene.do("grep", file_name=name, pattern=pattern)
    return scene.to_do(
        "[[search|look through|scan|go through|check] {spoken} for "
        "[lines with|the word|the keyword|mentions of|any line that contains] {pattern}"
        "|[find|show|extract|identify|list] [the|all|every] [lines|line] in {spoken} that [contain|mention|include] {pattern}]",
        spoken=spoken,
        pattern=scene.quoted(pattern),
    )


def sort_file(scene: Scene) -> Wording:
    name, spoken = _some_file(scene)
    scene.do("sort", file_name=name)
    return scene.to_do(
        "[sort|arrange|order|organize] the [lines|contents|content|entries] of {spoken}[ alphabetically| in alphabetical order|]",
        spoken=spoken,
    )


def last_lines(scene: Scene) -> Wording:
    name, spoken = _some_file(scene)
    count = scene.rng.randrange(1, 13)
    if count == 1:
        scene.do("tail", file_name=name, lines=1)
        return scene.to_do("[show|display|print|read|give me] the [last|final|very last] line of {spoken}", spoken=spoken)
    scene.do("tail", file_name=name, lines=count)
    written = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")[count]
    return scene.to_do(
        "[show|display|print|output|give me] the [last|final|closing] {count} lines of {spoken}",
        spoken=spoken,
        count=count if scene.chance(0.6) else written,
    )


def count_in_file(scene: Scene) -> Wording:
    name, spoken = _some_file(scene)
    modes = scene.rng.sample((("l", "lines"), ("w", "words"), ("c", "characters")), scene.rng.choice((1, 1, 1, 2, 3)))
    scene.recent["numbers"] = [scene.do("wc", file_name=name, mode=mode)["count"] for mode, _ in modes]
    units = [unit for _, unit in modes]
    listed = units[0] if len(units) == 1 else ", ".join(units[:-1]) + " and " + units[-1]
    if scene.chance(0.35):
        return scene.to_ask("How many {units} [does {spoken} have|are in {spoken}|are there in {spoken}]?", units=listed, spoken=spoken)
    return scene.to_do(
        "[count|tally|determine|tell me|report|work out] [the number of|how many|] {units} [in|there are in] {spoken}",
        units=listed,
        spoken=spoken,
    )


def compare(scene: Scene) -> Wording:
    files = _files(scene)
    scene.need(len(files) > 1)
    first, second = scene.rng.sample(files, 2)
    scene.do("diff", file_name1=first, file_name2=second)
    return scene.to_do(
        "[compare {a} with {b}|compare {a} and {b}|show the differences between {a} and {b}|spot how {a} differs from {b}"
        "|tell me what is different between {a} and {b}|check whether {a} and {b} are identical]",
        a=scene.quoted(first),
        b=scene.quoted(second),
    )


def find_by_name(scene: Scene) -> Wording:
    root = _here(scene)
    names = [name for name in root.contents if not name.startswith(".")]
    for item in root.contents.values():
        names += [name for name in getattr(item, "contents", {}) if not name.startswith(".")]
    name = scene.pick(names)
    stem = name.split(".")[0]
    sought = name if scene.chance(0.6) else stem
    scene.do("find", path=".", name=sought)
    return scene.to_do(
        "[find|locate|track down|search for|look for] [the file|any file called|anything named|every file with the name"
        "|all items that have] {name}[ in its name| in their name|] [in|within|somewhere below|under] "
        "[this directory|the current folder|the current directory and its subfolders|here]",
        name=scene.quoted(sought),
    )


def disk_usage(scene: Scene) -> Wording:
    _here(scene)
    human = scene.chance(0.7)
    if human:
        scene.do("du", human_readable=True)
        return scene.to_do(
            "[show|tell me|estimate|report] [the disk usage of|how much space is taken by] [this|the current] "
            f"{_FOLDER} in [a human readable form|human-readable format|readable units]"
        )
    scene.do("du")
    return scene.to_do(f"[show|tell me|estimate|report] the [disk usage|size in bytes] of [this|the current] {_FOLDER}")


def remove_file(scene: Scene) -> Wording:
    name, spoken = _some_file(scene)
    scene.do("rm", file_name=name)
    scene.recent.pop("file", None)
    return scene.to_do("[delete|remove|erase|get rid of|discard] {spoken}[ for good| permanently|]", spoken=spoken)


def remove_folder(scene: Scene) -> Wording:
    empty = [name for name in _folders(scene) if not _here(scene).contents[name].contents]
    name = scene.pick(empty)
    scene.do("rmdir", dir_name=name)
    return scene.to_do(f"[delete|remove|get rid of] the [empty|unused|] {{name}} {_FOLDER}", name=scene.quoted(name))


def enter_and_make(scene: Scene) -> Wording:
    scene.need(_folders(scene))
    folder, name = _enter(scene), words.file_name(scene.rng)
    if name not in _here(scene).contents:
        scene.do("touch", file_name=name)
    scene.recent["file"] = name
    return scene.to_do(
        f"[go|navigate|move|switch] [to|into] the {{folder}} {_FOLDER} and [create|make|start] [a file called|a document named|] {{name}}",
        folder=folder,
        name=scene.quoted(name),
    )


def _text(text: str) -> str:
    return f'"{text}"' if "'" in text else f"'{text}'"


INTENTS: tuple[tuple[float, Intent], ...] = (
    (2, list_files),
    (2, go_and_list),
    (3, go_into),
    (1, go_up),
    (0.7, where_am_i),
    (3, read_file),
    (2, enter_and_read),
    (2, make_folder),
    (2, make_file),
    (2, make_file_with_text),
    (2.5, write_text),
    (0.5, show_text),
    (2.5, move_to_folder),
    (1.5, rename),
    (2.5, copy_to_folder),
    (1, copy_as),
    (2, copy_and_rename),
    (2.5, search_in_file),
    (2, sort_file),
    (2, last_lines),
    (2.5, count_in_file),
    (2, compare),
    (2, find_by_name),
    (0.7, disk_usage),
    (1, remove_file),
    (0.7, remove_folder),
    (1.5, enter_and_make),
)
