"""The file system of a task: what is in it, and how a request names a file or a folder."""

from __future__ import annotations

from random import Random
from typing import Any

from . import words
from .scene import Scene

CLASS = "GorillaFileSystem"
CONTEXT = (
    "[I'm tidying up my workspace|I am cleaning up my drive|We are reorganizing the shared drive] [today|this morning|at last].",
    "[The deadline for my project is close|My supervisor wants everything in order|The auditors are coming].",
    "[I lost track of my documents|My folders are a mess|I can't remember where I put things].",
    "[I've been drafting this for weeks|I worked on these files all night|The team edited these files yesterday].",
)
_FILE_WORD = "[file|document|]"
FOLDER = "[folder|directory]"


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


def current_folder(scene: Scene) -> Any:
    return scene.backend(CLASS)._current_dir


def file_names(scene: Scene) -> list[str]:
    return [
        name for name, item in current_folder(scene).contents.items() if hasattr(item, "content") and not name.startswith(".")
    ]


def folder_names(scene: Scene) -> list[str]:
    return [name for name, item in current_folder(scene).contents.items() if not hasattr(item, "content")]


def some_file(scene: Scene) -> tuple[str, str]:
    """A file to work on and how the request names it; now and then it is the one just spoken of."""
    recent = scene.recent.get("file")
    if recent in file_names(scene) and scene.chance(0.45):
        name, wording = recent, "[it|that file|the file|the same file|that document|the previous file]"
        if scene.chance(0.5):
            return name, scene.quoted(name)
        return name, scene.to_do(wording).text
    name = scene.pick(file_names(scene))
    scene.recent["file"] = name
    return name, scene.to_do(f"[the|the|] {_FILE_WORD} {{name}}", name=scene.quoted(name)).text


def enter_folder(scene: Scene) -> str:
    """Go into a folder below; what the request says of it."""
    name = scene.pick(folder_names(scene))
    scene.do("cd", folder=name)
    scene.recent.pop("file", None)
    return scene.quoted(name)
