"""A traveller's cards, flights and bookings, and how a request names them."""

from __future__ import annotations

from random import Random
from typing import Any

from . import words
from .scene import Impossible, Scene

CLASS = "TravelAPI"
CONTEXT = (
    "[I'm planning a trip|A journey is coming up|I'm organizing my travels|My vacation is near|I have a conference to attend].",
    "[I need to keep an eye on my travel costs|My company pays for this trip|I want to travel in comfort].",
    "[My plans have changed|Something unexpected came up|I have second thoughts about this trip].",
    "[I can't wait to get going|I have been looking forward to this|It will be my first trip this year].",
)
AIRPORTS = {
    "Rivermist": "RMS",
    "Stonebrook": "SBK",
    "Maplecrest": "MPC",
    "Silverpine": "SVP",
    "Shadowridge": "SHD",
    "London": "LHR",
    "Paris": "CDG",
    "Sunset Valley": "SSV",
    "Oakendale": "OKD",
    "Willowbend": "WLB",
    "Crescent Hollow": "CRH",
    "Autumnville": "ATV",
    "Pinehaven": "PHV",
    "Greenfield": "GFD",
    "San Francisco": "SFO",
    "Los Angeles": "LAX",
    "New York": "JFK",
    "Chicago": "ORD",
    "Boston": "BOS",
    "Beijing": "PEK",
    "Hong Kong": "HKG",
    "Rome": "CIA",
    "Tokyo": "HND",
}
CITIES = {code: city for city, code in AIRPORTS.items()}
CURRENCIES = {"RMB": "RMB", "EUR": "euros", "JPY": "yen", "GBP": "British pounds", "CAD": "Canadian dollars", "AUD": "AUD"}


def config(rng: Random) -> dict[str, Any] | None:
    """A signed-in traveller with a card or two and perhaps an earlier booking."""
    cards = {
        rng.choice(
            (
                words.digits(rng, 12),
                f"card_{words.digits(rng, 4)}",
                f"{words.noun(rng)}_{words.digits(rng, 3)}",
                words.secret(rng),
            )
        ): {
            "card_number": words.digits(rng, 16),
            "expiration_date": f"{rng.randrange(1, 13):02d}/{rng.randrange(2027, 2033)}",
            "cardholder_name": f"{words.person(rng)} {words.surname(rng)}",
            "card_verification_number": rng.randrange(100, 1000),
            "balance": float(rng.randrange(9_000, 60_000)),
        }
        for _ in range(rng.choice((1, 1, 2)))
    }
    bookings = {}
    if rng.random() < 0.3:
        bookings[words.digits(rng, 7)] = {
            "card_id": next(iter(cards)),
            "travel_date": f"2026-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}",
            "travel_from": "SFO",
            "travel_to": rng.choice(("LAX", "BOS", "ORD")),
            "travel_class": rng.choice(("economy", "business")),
            "travel_cost": float(rng.randrange(200, 2000)),
            "transaction_id": words.digits(rng, 8),
        }
    return {
        "credit_card_list": cards,
        "booking_record": bookings,
        "access_token": words.secret(rng),
        "token_type": "Bearer",
        "token_expires_in": 3600,
        "token_scope": "read_write",
        "user_first_name": words.person(rng),
        "user_last_name": words.surname(rng),
        "budget_limit": None,
        "random_seed": rng.randrange(10_000, 999_999),
    }


def token_of(scene: Scene) -> tuple[str, str]:
    """The access token, and the words that give it; said once, it need not be said again."""
    token = scene.backend(CLASS).access_token
    scene.need(token)
    if scene.recent.get("token") == token and scene.chance(0.65):
        return token, ""
    scene.recent["token"] = token
    return token, " " + scene.to_do(
        "[with|using] [the access token|my access token|access token|the token] {token}", token=scene.quoted(token)
    ).text


def card_of(scene: Scene) -> tuple[str, str]:
    cards = list(scene.backend(CLASS).credit_card_list)
    recent = scene.recent.get("card")
    if recent is not None and recent in cards and scene.chance(0.5):
        return recent, scene.to_do("[the same card|my card|that card|the card I used before]").text
    card = scene.pick(cards)
    scene.recent["card"] = card
    return card, scene.to_do(
        "[my card|my credit card|the card|card] [with id|with the id|with the ID|] {card}", card=scene.quoted(card)
    ).text


def day_of(scene: Scene) -> tuple[str, str]:
    """A date as the tools want it, and as people say it."""
    year, month, day = 2026, scene.rng.randrange(1, 13), scene.rng.randrange(1, 29)
    name, nth = words.MONTHS[month - 1], words.ordinal(day)
    date = f"{year}-{month:02d}-{day:02d}"
    spoken = scene.pick(
        (
            date,
            f"{name} {day}, {year}",
            f"{name} {nth}, {year}",
            f"{name} {nth} {year}",
            f"the {nth} of {name} {year}",
            f"{day} {name} {year}",
            f"{name[:3]} {day} {year}",
        )
    )
    return date, spoken


def flight_of(scene: Scene) -> tuple[dict[str, str], str]:
    """A flight that exists, as arguments and in words; that of the last enquiry, where there was one."""
    recent = scene.recent.get("flight")
    if recent is not None and scene.chance(0.6):
        return recent, scene.to_do("[that flight|this flight|the flight|the flight we just looked at|it]").text
    backend = scene.backend(CLASS)
    for _ in range(50):
        start, end = scene.rng.sample(list(CITIES), 2)
        try:
            backend.get_flight_cost(start, end, "2026-01-01", "economy")
            break
        except ValueError:
            continue
    else:
        raise Impossible
    backend._flight_cost_lookup = {}
    date, day = day_of(scene)
    seat = scene.pick(("economy", "business", "first"))
    flight = {"travel_from": start, "travel_to": end, "travel_date": date, "travel_class": seat}
    scene.recent["flight"] = flight
    code = scene.chance(0.35)
    spoken = scene.to_do(
        "[a {seat}[ class|-class] [flight|flight|ticket|seat] from {start} to {end} [on|for|departing on|leaving on] {day}"
        "|a flight from {start} to {end} on {day}[ in|,] {seat} class]",
        seat=seat,
        start=start if code else CITIES[start],
        end=end if code else CITIES[end],
        day=day,
    ).text
    return flight, spoken


def booking_of(scene: Scene) -> tuple[str, str]:
    bookings = scene.backend(CLASS).booking_record
    recent = scene.recent.get("booking")
    if recent is not None and recent in bookings and scene.chance(0.9):
        return recent, scene.to_do(
            "[that booking|the booking|my booking|the flight I just booked|my reservation|my latest booking|it]"
        ).text
    number = scene.pick(list(bookings))
    scene.recent["booking"] = number
    return number, scene.to_do(
        "[booking {id}|the booking with id {id}|my reservation {id}|the booking {id}]", id=scene.quoted(number)
    ).text


def book_flight(scene: Scene, flight: dict[str, str], card: str, token: str) -> None:
    backend = scene.backend(CLASS)
    cost = backend.get_flight_cost(**flight)["travel_cost_list"][0]
    balance = backend.credit_card_list[card]["balance"]
    scene.need(balance >= cost and (backend.budget_limit is None or balance >= backend.budget_limit))
    backend._flight_cost_lookup = {}
    booked = scene.do(
        "book_flight",
        access_token=token,
        card_id=card,
        travel_date=flight["travel_date"],
        travel_from=flight["travel_from"],
        travel_to=flight["travel_to"],
        travel_class=flight["travel_class"],
    )
    scene.recent["booking"] = booked["booking_id"]
    scene.recent.pop("flight", None)
