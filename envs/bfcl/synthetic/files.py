"""The file system: folders to walk, files to read, search, sort and compare."""

from __future__ import annotations

from .filechanges import (
    copy_and_rename,
    copy_as,
    copy_to_folder,
    enter_and_make,
    make_file,
    make_file_with_text,
    make_folder,
    move_to_folder,
    remove_file,
    remove_folder,
    rename,
    show_text,
    write_text,
)
from .filestate import CLASS, CONTEXT, FOLDER, config, current_folder, enter_folder, file_names, folder_names, some_file
from .scene import Intent, Scene
from .speech import Wording

__all__ = ["CLASS", "CONTEXT", "INTENTS", "config"]


def list_files(scene: Scene) -> Wording:
    hidden = scene.chance(0.6)
    if hidden:
        scene.do("ls", a=True)
        return scene.to_do(
            "[list|show|display|print|enumerate] [all|all the|every one of the] [files|files and folders|items|contents] "
            "[here|in this directory|in the current folder|in my present directory][,|] "
            "[including|along with|and don't leave out|together with] the hidden ones"
        )
    current_folder(scene)
    scene.do("ls")
    if scene.chance(0.3):
        return scene.to_ask("[What files do I have here?|What is in the current folder?|Which items are in this directory?]")
    return scene.to_do(
        "[list|show|display|print|give me] [the files|what is|everything visible|the contents] "
        "[here|in this directory|in the current folder|in the folder I'm in]"
    )


def go_and_list(scene: Scene) -> Wording:
    name = enter_folder(scene)
    scene.do("ls", a=True)
    return scene.to_do(
        f"[go|navigate|move|switch|change|head] [to|into] the {{name}} {FOLDER} and [list|show|display] "
        "[everything|all files|all the contents] [in it|there|inside], [hidden files included|including hidden "
        "files|even hidden ones]",
        name=name,
    )


def go_into(scene: Scene) -> Wording:
    name = enter_folder(scene)
    return scene.to_do(
        f"[go|navigate|move|switch|change|head over|step|cd|jump] [to|into] [the|my|] {{name}} {FOLDER}", name=name
    )


def go_up(scene: Scene) -> Wording:
    scene.need(current_folder(scene).parent is not None)
    scene.do("cd", folder="..")
    scene.recent.pop("file", None)
    return scene.to_do(f"[go back|move up|return|step back|navigate up|go] [to the parent {FOLDER}|one level up|one {FOLDER} up]")


def where_am_i(scene: Scene) -> Wording:
    current_folder(scene)
    scene.do("pwd")
    if scene.chance(0.5):
        return scene.to_ask("[Where am I|In which folder am I|What is my current path|What directory are we in][ right now|]?")
    return scene.to_do("[tell|show] me [the path of the current directory|my present working directory|where I am right now]")


def read_file(scene: Scene) -> Wording:
    name, spoken = some_file(scene)
    scene.do("cat", file_name=name)
    if scene.chance(0.3):
        return scene.to_ask("[What's inside|What does|What is written in] {spoken}[ say|]?", spoken=spoken)
    return scene.to_do(
        "[show|display|print|reveal|open|output|read out|present] [the contents of|the content of|what's in|the "
        "full text of|] {spoken}",
        spoken=spoken,
    )


def enter_and_read(scene: Scene) -> Wording:
    scene.need(folder_names(scene))
    folder = enter_folder(scene)
    if not file_names(scene):
        return scene.to_do(f"[go|navigate|switch] [to|into] the {{folder}} {FOLDER}", folder=folder)
    name = scene.pick(file_names(scene))
    scene.recent["file"] = name
    scene.do("cat", file_name=name)
    return scene.to_do(
        f"[show|display|open|read|print] [the contents of|] {{name}} [from|in|which is in|that sits in] the {{folder}} {FOLDER}",
        name=scene.quoted(name),
        folder=folder,
    )


def search_in_file(scene: Scene) -> Wording:
    name, spoken = some_file(scene)
    content = current_folder(scene).contents[name].content
    scene.need(content.split())
    pattern = scene.pick([word.strip(".,!?") for word in content.split() if len(word) > 2] or ["the"])
    scene.do("grep", file_name=name, pattern=pattern)
    return scene.to_do(
        "[[search|look through|scan|go through|check] {spoken} for "
        "[lines with|the word|the keyword|mentions of|any line that contains] {pattern}"
        "|[find|show|extract|identify|list] [the|all|every] [lines|line] in {spoken} that "
        "[contain|mention|include] {pattern}]",
        spoken=spoken,
        pattern=scene.quoted(pattern),
    )


def sort_file(scene: Scene) -> Wording:
    name, spoken = some_file(scene)
    scene.do("sort", file_name=name)
    return scene.to_do(
        "[sort|arrange|order|organize] the [lines|contents|content|entries] of {spoken}[ alphabetically| in alphabetical order|]",
        spoken=spoken,
    )


def last_lines(scene: Scene) -> Wording:
    name, spoken = some_file(scene)
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
    name, spoken = some_file(scene)
    modes = scene.rng.sample((("l", "lines"), ("w", "words"), ("c", "characters")), scene.rng.choice((1, 1, 1, 2, 3)))
    scene.recent["numbers"] = [scene.do("wc", file_name=name, mode=mode)["count"] for mode, _ in modes]
    units = [unit for _, unit in modes]
    listed = units[0] if len(units) == 1 else ", ".join(units[:-1]) + " and " + units[-1]
    if scene.chance(0.35):
        return scene.to_ask(
            "How many {units} [does {spoken} have|are in {spoken}|are there in {spoken}]?", units=listed, spoken=spoken
        )
    return scene.to_do(
        "[count|tally|determine|tell me|report|work out] [the number of|how many|] {units} [in|there are in] {spoken}",
        units=listed,
        spoken=spoken,
    )


def compare(scene: Scene) -> Wording:
    files = file_names(scene)
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
    root = current_folder(scene)
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
    current_folder(scene)
    human = scene.chance(0.7)
    if human:
        scene.do("du", human_readable=True)
        return scene.to_do(
            "[show|tell me|estimate|report] [the disk usage of|how much space is taken by] [this|the current] "
            f"{FOLDER} in [a human readable form|human-readable format|readable units]"
        )
    scene.do("du")
    return scene.to_do(f"[show|tell me|estimate|report] the [disk usage|size in bytes] of [this|the current] {FOLDER}")


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
