"""The messaging workspace: log in, write to people, look back, take back."""

from __future__ import annotations

from random import Random
from typing import Any

from . import words
from .scene import Intent, Scene
from .speech import Wording

CLASS = "MessageAPI"

CONTEXT = (
    "[I must keep my colleagues in the loop|My team is waiting to hear from me|Communication is everything in this project].",
    "[I'd rather write than call|People keep asking me about this|I promised to send word].",
)


def config(rng: Random) -> dict[str, Any] | None:
    """A workspace with some people in it; in a third of the tasks BFCL's default one."""
    if rng.random() < 0.35:
        return None
    names: list[str] = []
    while len(names) < rng.randrange(4, 8):
        name = words.person(rng)
        if name not in names:
            names.append(name)
    ids = [f"USR{number:03d}" for number in range(1, len(names) + 1)]
    inbox = [{rng.choice(ids[1:]): words.sentence(rng)} for _ in range(rng.randrange(1, 5))]
    return {
        "user_count": len(names),
        "user_map": dict(zip(names, ids, strict=True)),
        "inbox": inbox,
        "message_count": len(inbox),
        "current_user": rng.choice((None, ids[0], ids[0])),
        "random_seed": rng.randrange(10_000, 999_999),
    }


def _people(scene: Scene) -> dict[str, str]:
    return scene.backend(CLASS).user_map


def _signed_in(scene: Scene) -> str:
    """Log in first where nobody is; what the request says about it."""
    backend = scene.backend(CLASS)
    if backend.current_user:
        return ""
    user_id = scene.pick(list(backend.user_map.values()))
    scene.do("message_login", user_id=user_id)
    return (
        scene.to_do(
            "[log in as {id} and|log in with my user id {id}, then|sign me in as {id} and]", id=scene.quoted(user_id)
        ).text
        + " "
    )


def login(scene: Scene) -> Wording:
    backend = scene.backend(CLASS)
    user_id = scene.pick([user_id for user_id in backend.user_map.values() if user_id != backend.current_user])
    scene.do("message_login", user_id=user_id)
    return scene.to_do(
        "[log in|log me in|sign in|sign me in] [to the messaging app|to the workspace|to my messages|] "
        "[as|with the user id|with my id|under the id] {id}",
        id=scene.quoted(user_id),
    )


def send(scene: Scene) -> Wording:
    lead = _signed_in(scene)
    people = _people(scene)
    name = scene.pick(list(people))
    text = words.sentence(scene.rng)
    by_id = scene.chance(0.45)
    if by_id:
        receiver = people[name]
        spoken = scene.to_do(
            "[{id}|the user {id}|the user with the ID {id}|my friend {id}|{name} (id {id})]", id=receiver, name=name
        ).text
    else:
        receiver = scene.do("get_user_id", user=name)["user_id"]
        spoken = scene.to_do("[{name}|my colleague {name}|my friend {name}]", name=name).text
    scene.do("send_message", receiver_id=receiver, message=text)
    scene.recent["receiver"] = receiver
    scene.recent["receiver_name"] = name
    return scene.to_do(
        lead + "[[send|write] [a message|a note|a quick note|a short message] to {spoken} [saying|that says|with the "
        "text|reading] {text}"
        "|[message|text|notify|tell|inform] {spoken}[:| with| with the message|, the text being] {text}]",
        spoken=spoken,
        text=scene.said(text),
    )


def look_back(scene: Scene) -> Wording:
    lead = _signed_in(scene)
    scene.do("view_messages_sent")
    return scene.to_do(
        lead + "[show|display|list|review|pull up|give me] all [the|my|] messages [I have sent|I sent|that I've sent "
        "so far|sent by me]"
    )


def take_back(scene: Scene) -> Wording:
    receiver = scene.recent.get("receiver")
    scene.need(receiver and scene.backend(CLASS).current_user)
    scene.need(any(receiver in message for message in scene.backend(CLASS).inbox))
    scene.do("delete_message", receiver_id=receiver)
    name = scene.recent["receiver_name"]
    return scene.to_do(
        "[delete|remove|take back|retract] the [last|latest|most recent] message [I sent to|sent to|to] {who}",
        who=name if scene.chance(0.5) else receiver,
    )


def search(scene: Scene) -> Wording:
    lead = _signed_in(scene)
    texts = [text for message in scene.backend(CLASS).inbox for text in message.values()]
    options = [word.strip(".,!?:") for text in texts for word in text.split() if len(word) > 3]
    keyword = scene.pick(options) if options else "report"
    scene.do("search_messages", keyword=keyword)
    return scene.to_do(
        lead + "[search|look through] my messages for [the word|the keyword|anything about|] {keyword}",
        keyword=scene.quoted(keyword),
    )


def add_contact(scene: Scene) -> Wording:
    people = _people(scene)
    name = words.person(scene.rng) if scene.chance(0.5) else f"{words.person(scene.rng)} {words.surname(scene.rng)}"
    scene.need(name not in people and f"USR{scene.backend(CLASS).user_count + 1:03d}" not in people.values())
    lead = _signed_in(scene)
    new_id = scene.do("add_contact", user_name=name)["user_id"]
    if scene.chance(0.5):
        text = words.sentence(scene.rng)
        scene.do("send_message", receiver_id=new_id, message=text)
        scene.recent["receiver"], scene.recent["receiver_name"] = new_id, name
        return scene.to_do(
            lead + "[add|register] {name} [as a new contact|to my contacts] and [send them|write them|tell them] {text}",
            name=scene.quoted(name),
            text=scene.said(text),
        )
    return scene.to_do(lead + "[add|register] {name} [as a new contact|to my contacts|to the workspace]", name=scene.quoted(name))


def people(scene: Scene) -> Wording:
    scene.backend(CLASS)
    scene.do("list_users")
    return scene.to_do("[list|show|tell me] [all the users|everyone|all people] in [the|my|this] workspace")


def id_of(scene: Scene) -> Wording:
    name = scene.pick(list(_people(scene)))
    scene.do("get_user_id", user=name)
    return scene.to_do("[find|look up|get|tell me] the user [id|ID] of {name}", name=name)


def statistics(scene: Scene) -> Wording:
    lead = _signed_in(scene)
    scene.do("get_message_stats")
    return scene.to_do(lead + "[show|give me|pull up] [the statistics of my messages|my messaging statistics|my message stats]")


def status(scene: Scene) -> Wording:
    scene.backend(CLASS)
    scene.do("message_get_login_status")
    return scene.to_do("[check|verify|tell me] [whether|if] I am [logged in to|signed in to] [the messaging app|my messages]")


INTENTS: tuple[tuple[float, Intent], ...] = (
    (1.5, login),
    (6, send),
    (3, look_back),
    (1.5, take_back),
    (1, search),
    (1.2, add_contact),
    (0.7, people),
    (0.7, id_of),
    (0.5, statistics),
    (0.4, status),
)
