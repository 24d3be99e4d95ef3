"""The file system, changed: folders and files made, written, moved, copied and removed."""

from __future__ import annotations

from . import words
from .filestate import FOLDER, current_folder, enter_folder, folder_names, some_file
from .scene import Scene
from .speech import Wording


def make_folder(scene: Scene) -> Wording:
    name = words.identifier(scene.rng)
    scene.need(name not in current_folder(scene).contents)
    scene.do("mkdir", dir_name=name)
    return scene.to_do(
        f"[create|make|set up|add|establish|generate] a [new|fresh|separate|] {FOLDER} [called|named|titled|] {{name}}"
        "[ here| in this directory| in the current folder|]",
        name=scene.quoted(name),
    )


def make_file(scene: Scene) -> Wording:
    name = words.file_name(scene.rng)
    scene.need(name not in current_folder(scene).contents)
    scene.do("touch", file_name=name)
    scene.recent["file"] = name
    return scene.to_do(
        "[create|make|produce|start|set up|draft] [a|an] [new|empty|blank|] [file|document] [called|named|titled|] {name}"
        "[ here| in this directory| in the current folder|]",
        name=scene.quoted(name),
    )


def make_file_with_text(scene: Scene) -> Wording:
    name, text = words.file_name(scene.rng), words.sentence(scene.rng)
    scene.need(name not in current_folder(scene).contents)
    scene.do("touch", file_name=name)
    scene.do("echo", content=text, file_name=name)
    scene.recent["file"] = name
    return scene.to_do(
        "[create|make|produce|start|set up] [a|an] [new|] [file|document] [called|named|titled] {name} "
        "[with the content|that says|containing|with the text|and write into it] {text}",
        name=scene.quoted(name),
        text=scene.said(text),
    )


def write_text(scene: Scene) -> Wording:
    name, spoken = some_file(scene)
    text = words.sentence(scene.rng)
    scene.do("echo", content=text, file_name=name)
    return scene.to_do(
        "[[write|put|jot down|place|record|enter|note] {text} [into|in|inside] {spoken}"
        "|[replace|overwrite|change] the [content|contents|text] of {spoken} [with|to] {text}]",
        text=scene.said(text),
        spoken=spoken,
    )


def show_text(scene: Scene) -> Wording:
    current_folder(scene)
    text = words.sentence(scene.rng)
    scene.do("echo", content=text)
    return scene.to_do("[print|echo|display|output] {text} [to|on|in] the terminal", text=scene.said(text))


def move_to_folder(scene: Scene) -> Wording:
    scene.need(folder_names(scene))
    name, spoken = some_file(scene)
    folder = scene.pick(folder_names(scene))
    scene.need(name not in current_folder(scene).contents[folder].contents)
    scene.do("mv", source=name, destination=folder)
    scene.recent.pop("file", None)
    return scene.to_do(
        f"[move|transfer|relocate|shift|put] {{spoken}} [into|to|over to|inside] the {{folder}} {FOLDER}",
        spoken=spoken,
        folder=scene.quoted(folder),
    )


def rename(scene: Scene) -> Wording:
    name, spoken = some_file(scene)
    new = words.file_name(scene.rng)
    scene.need(new not in current_folder(scene).contents)
    scene.do("mv", source=name, destination=new)
    scene.recent["file"] = new
    return scene.to_do(
        "[rename {spoken} to {new}|change the name of {spoken} to {new}|give {spoken} the new name {new}]",
        spoken=spoken,
        new=scene.quoted(new),
    )


def copy_to_folder(scene: Scene) -> Wording:
    scene.need(folder_names(scene))
    name, spoken = some_file(scene)
    folder = scene.pick(folder_names(scene))
    scene.need(name not in current_folder(scene).contents[folder].contents)
    scene.do("cp", source=name, destination=folder)
    return scene.to_do(
        f"[[copy|duplicate|back up] {{spoken}} [into|to|over to] the {{folder}} {FOLDER}"
        f"|[make|put|place|keep] a [copy|duplicate|backup] of {{spoken}} in the {{folder}} {FOLDER}]",
        spoken=spoken,
        folder=scene.quoted(folder),
    )


def copy_as(scene: Scene) -> Wording:
    name, spoken = some_file(scene)
    new = words.file_name(scene.rng)
    scene.need(new not in current_folder(scene).contents)
    scene.do("cp", source=name, destination=new)
    return scene.to_do(
        "[copy|duplicate] {spoken} [as|to a new file called|under the name] {new}[ here| in the same directory|]",
        spoken=spoken,
        new=scene.quoted(new),
    )


def copy_and_rename(scene: Scene) -> Wording:
    scene.need(folder_names(scene))
    name, spoken = some_file(scene)
    folder, new = scene.pick(folder_names(scene)), words.file_name(scene.rng)
    inside = current_folder(scene).contents[folder].contents
    scene.need(name not in inside and new not in inside)
    keep = scene.chance(0.65)
    scene.do("cp" if keep else "mv", source=name, destination=folder)
    scene.do("cd", folder=folder)
    scene.do("mv", source=name, destination=new)
    scene.recent["file"] = new
    verb = "[copy|duplicate|back up]" if keep else "[move|transfer|relocate]"
    return scene.to_do(
        f"{verb} {{spoken}} [into|to|over to] the {{folder}} {FOLDER} and [rename it to|call it|name it|save it "
        f"there as] {{new}}"
        "[ there|]",
        spoken=spoken,
        folder=scene.quoted(folder),
        new=scene.quoted(new),
    )


def remove_file(scene: Scene) -> Wording:
    name, spoken = some_file(scene)
    scene.do("rm", file_name=name)
    scene.recent.pop("file", None)
    return scene.to_do("[delete|remove|erase|get rid of|discard] {spoken}[ for good| permanently|]", spoken=spoken)


def remove_folder(scene: Scene) -> Wording:
    empty = [name for name in folder_names(scene) if not current_folder(scene).contents[name].contents]
    name = scene.pick(empty)
    scene.do("rmdir", dir_name=name)
    return scene.to_do(f"[delete|remove|get rid of] the [empty|unused|] {{name}} {FOLDER}", name=scene.quoted(name))


def enter_and_make(scene: Scene) -> Wording:
    scene.need(folder_names(scene))
    folder, name = enter_folder(scene), words.file_name(scene.rng)
    if name not in current_folder(scene).contents:
        scene.do("touch", file_name=name)
    scene.recent["file"] = name
    return scene.to_do(
        f"[go|navigate|move|switch] [to|into] the {{folder}} {FOLDER} and [create|make|start] [a file called|a "
        f"document named|] {{name}}",
        folder=folder,
        name=scene.quoted(name),
    )
