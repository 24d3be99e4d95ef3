"""Support tickets: open, look up, change, resolve and close them."""

from __future__ import annotations

from random import Random
from typing import Any

from . import words
from .scene import Intent, Scene
from .speech import Wording, spaced

CLASS = "TicketAPI"

CONTEXT = (
    "[Support has been slow lately|I ran into some trouble|Something went wrong and support should know].",
    "[I like to have things documented|The help desk asked me for it|This needs to be tracked properly].",
)


def config(rng: Random) -> dict[str, Any] | None:
    """A queue of a few tickets; the user is signed in half of the time."""
    user = words.user_name(rng)
    first = rng.choice((1, 1, rng.randrange(2, 50), rng.randrange(1000, 99_999)))
    queue = [
        {
            "id": first + offset,
            "title": words.title(rng),
            "description": words.sentence(rng),
            "status": rng.choice(("Open", "Open", "In Progress", "Closed")),
            "priority": rng.randrange(1, 6),
            "created_by": user,
        }
        for offset in range(rng.randrange(0, 4))
    ]
    return {
        "ticket_queue": queue,
        "ticket_counter": first + len(queue),
        "current_user": user if rng.random() < 0.5 else None,
    }


def _said(scene: Scene, template: str, **values: object) -> str:
    return spaced(scene.to_do(template, **values).text)


def _signed_in(scene: Scene) -> str:
    """Log in first where needed; the words that give the credentials."""
    if scene.backend(CLASS).current_user:
        return ""
    queue = scene.backend(CLASS).ticket_queue
    user = queue[0]["created_by"] if queue else words.user_name(scene.rng)
    password = words.secret(scene.rng)
    scene.do("ticket_login", username=user, password=password)
    return scene.to_do(
        "[, with my username {user} and password {password}|, logging in as {user} with password {password}"
        "|(username {user}, password {password})|; my ticket username is {user} and my password is {password}]",
        user=scene.quoted(user),
        password=scene.quoted(password),
    ).text


def _ticket(scene: Scene, *states: str) -> tuple[int, str]:
    """A ticket to act on, and how the request names it."""
    queue = {ticket["id"]: ticket for ticket in scene.backend(CLASS).ticket_queue}
    options = [number for number, ticket in queue.items() if not states or ticket["status"] in states]
    recent = scene.recent.get("ticket")
    if recent is not None and recent in options and scene.chance(0.65):
        return recent, scene.to_do(
            "[that ticket|the ticket|it|the ticket I just created|my latest ticket|the recent ticket]"
        ).text
    number = scene.pick(options)
    scene.recent["ticket"] = number
    return number, scene.to_do(
        "[ticket {id}|the ticket with id {id}|ticket number {id}|the ticket with the ID {id}]", id=number
    ).text


def sign_in(scene: Scene) -> Wording:
    scene.need(not scene.backend(CLASS).current_user)
    user, password = words.user_name(scene.rng), words.secret(scene.rng)
    scene.do("ticket_login", username=user, password=password)
    return scene.to_do(
        "[log in|log me in|sign me in] to [the ticket system|the ticketing system|my support account] [with|using|as] "
        "[the username|username|user] {user} and [the|] password {password}",
        user=scene.quoted(user),
        password=scene.quoted(password),
    )


_URGENCY = {1: "lowest", 5: "highest"}


def create(scene: Scene) -> Wording:
    credentials = _signed_in(scene)
    title = words.title(scene.rng)
    arguments: dict[str, Any] = {"title": title}
    ending = ""
    if scene.chance(0.8):
        arguments["description"] = words.sentence(scene.rng)
        text = arguments["description"]
        ending += _said(
            scene,
            "[and the description|with the description|, described as|, the description being|and a description "
            "that says] {text}",
            text=scene.said(text),
        )
    if scene.chance(0.7):
        arguments["priority"] = scene.rng.randrange(1, 6)
        named = _URGENCY.get(arguments["priority"])
        if named and scene.chance(0.5):
            ending += f" with the {named} priority"
        else:
            ending += _said(
                scene,
                "[with priority {n}|and priority {n}|at priority level {n}|, priority {n}|with a priority of {n}]",
                n=arguments["priority"],
            )
    scene.recent["ticket"] = scene.do("create_ticket", **arguments)["id"]
    return scene.to_do(
        "[create|open|file|submit|raise|draft|lodge] a [support|new|] ticket [titled|with the "
        "title|called|named|labeled] {title}{ending}{credentials}",
        title=scene.quoted(title),
        ending=ending,
        credentials=spaced(credentials),
    )


def look_up(scene: Scene) -> Wording:
    number, spoken = _ticket(scene)
    scene.do("get_ticket", ticket_id=number)
    return scene.to_do("[show|fetch|retrieve|look up|pull up|display] [the details of|the status of|] {ticket}", ticket=spoken)


def close(scene: Scene) -> Wording:
    number, spoken = _ticket(scene, "Open", "In Progress")
    scene.do("close_ticket", ticket_id=number)
    return scene.to_do("[close|shut] {ticket}[, it is no longer needed|, as it is obsolete|]", ticket=spoken)


def resolve(scene: Scene) -> Wording:
    number, spoken = _ticket(scene, "Open", "In Progress")
    text = words.sentence(scene.rng)
    scene.do("resolve_ticket", ticket_id=number, resolution=text)
    return scene.to_do(
        "[resolve {ticket} with [the resolution|the note|the message]|mark {ticket} as resolved with [the "
        "resolution|the comment]|resolve {ticket}, stating] {text}",
        ticket=spoken,
        text=scene.said(text),
    )


def change(scene: Scene) -> Wording:
    number, spoken = _ticket(scene)
    if scene.chance(0.6):
        priority = scene.rng.randrange(1, 6)
        scene.do("edit_ticket", ticket_id=number, updates={"priority": priority})
        return scene.to_do("[set|change|update|raise|adjust] the priority of {ticket} to {n}", ticket=spoken, n=priority)
    if scene.chance(0.5):
        status = scene.pick(("Open", "In Progress", "Urgent", "On Hold"))
        scene.do("edit_ticket", ticket_id=number, updates={"status": status})
        return scene.to_do("[set|change|update] the status of {ticket} to {status}", ticket=spoken, status=scene.quoted(status))
    title = words.title(scene.rng)
    scene.do("edit_ticket", ticket_id=number, updates={"title": title})
    return scene.to_do("[change|edit|update] the title of {ticket} to {title}", ticket=spoken, title=scene.quoted(title))


def mine(scene: Scene) -> Wording:
    scene.need(scene.backend(CLASS).current_user)
    if scene.chance(0.5):
        scene.do("get_user_tickets")
        return scene.to_do("[list|show me|pull up] all [my tickets|tickets I created|the tickets I opened]")
    status = scene.pick(("Open", "Closed", "Resolved"))
    scene.do("get_user_tickets", status=status)
    return scene.to_do(
        "[list|show me|pull up] [all|] my tickets [with the status|that have status] {status}", status=scene.quoted(status)
    )


def sign_out(scene: Scene) -> Wording:
    scene.need(scene.backend(CLASS).current_user)
    scene.do("logout")
    return scene.to_do("[log me out of|sign out of|log out of] [the ticket system|the ticketing system]")


def status(scene: Scene) -> Wording:
    scene.backend(CLASS)
    scene.do("ticket_get_login_status")
    return scene.to_do("[check|verify|tell me] [whether|if] I am [logged in to|signed in to] the [ticket|ticketing] system")


INTENTS: tuple[tuple[float, Intent], ...] = (
    (1, sign_in),
    (7, create),
    (2.5, look_up),
    (1.5, close),
    (2.5, resolve),
    (1.5, change),
    (0.8, mine),
    (0.4, sign_out),
    (0.3, status),
)
