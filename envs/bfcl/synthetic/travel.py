"""Travel: fares, bookings, invoices and insurance."""

from __future__ import annotations

from .bookings import CLASS, CONTEXT, book_flight, booking_of, card_of, config, day_of, flight_of, token_of
from .scene import Intent, Scene
from .speech import Wording
from .traveldesk import (
    authenticate,
    balance,
    budget,
    budget_from_currency,
    exchange,
    nearest,
    overview,
    register_card,
    status,
    support,
    verify,
)

__all__ = ["CLASS", "CONTEXT", "INTENTS", "config"]


def fare(scene: Scene) -> Wording:
    scene.recent.pop("flight", None)
    flight, spoken = flight_of(scene)
    cost = scene.do("get_flight_cost", **flight)["travel_cost_list"][0]
    scene.recent["cost"] = cost
    if scene.chance(0.3):
        return scene.to_ask(
            "[How much [is|would be|does it cost to take]|What is the price of|What would I pay for] {flight}?", flight=spoken
        )
    return scene.to_do(
        "[find|tell me|check|look up|estimate|get|determine] [the price|the cost|the fare|the airfare] [of|for] {flight}",
        flight=spoken,
    )


def book(scene: Scene) -> Wording:
    flight, spoken = flight_of(scene)
    token, with_token = token_of(scene)
    card, with_card = card_of(scene)
    book_flight(scene, flight, card, token)
    return scene.to_do(
        "[book|reserve|arrange|secure] {flight} [with|using|and pay with|and charge it to] {card}{token}",
        flight=spoken,
        card=with_card,
        token=with_token,
    )


def fare_and_book(scene: Scene) -> Wording:
    scene.recent.pop("flight", None)
    flight, spoken = flight_of(scene)
    token, with_token = token_of(scene)
    card, with_card = card_of(scene)
    scene.need(scene.backend(CLASS).credit_card_list[card]["balance"] > 12_000)
    scene.do("get_flight_cost", **flight)
    book_flight(scene, flight, card, token)
    return scene.to_do(
        "[check|find out|look up] [the price|the cost|the fare] of {flight} and [book|reserve] it [with|using] {card}{token}",
        flight=spoken,
        card=with_card,
        token=with_token,
    )


def cancel(scene: Scene) -> Wording:
    number, spoken = booking_of(scene)
    scene.need(scene.backend(CLASS).booking_record[number]["card_id"] in scene.backend(CLASS).credit_card_list)
    token, with_token = token_of(scene)
    scene.do("cancel_booking", access_token=token, booking_id=number)
    scene.recent.pop("booking", None)
    return scene.to_do("[cancel|call off|annul|revoke] {booking}{token}", booking=spoken, token=with_token)


def invoice(scene: Scene) -> Wording:
    number, spoken = booking_of(scene)
    token, with_token = token_of(scene)
    scene.do("retrieve_invoice", access_token=token, booking_id=number)
    return scene.to_do(
        "[get|retrieve|fetch|show|provide|generate|pull up] [the|an] [invoice|bill] [for|of] {booking}{token}",
        booking=spoken,
        token=with_token,
    )


def insure(scene: Scene) -> Wording:
    number, spoken = booking_of(scene)
    token, with_token = token_of(scene)
    card, with_card = card_of(scene)
    cost = scene.rng.choice((scene.rng.randrange(2, 60) * 25, scene.rng.randrange(50, 900)))
    limit = scene.backend(CLASS).budget_limit
    scene.need(limit is None or cost <= limit)
    kind = scene.pick(("comprehensive", "comprehensive", "comprehensive", "basic", "medical"))
    scene.do("purchase_insurance", access_token=token, insurance_type=kind, insurance_cost=cost, booking_id=number, card_id=card)
    named = kind if kind != "comprehensive" or scene.chance(0.6) else ""
    return scene.to_do(
        "[buy|purchase|get|arrange] {kind} [travel insurance|insurance] [for|worth|at a price of|costing] ${cost} "
        "for {booking} [with|using|and pay with] {card}{token}",
        kind=named,
        cost=f"{cost:,}" if scene.chance(0.4) else cost,
        booking=spoken,
        card=with_card,
        token=with_token,
    )


def airports(scene: Scene) -> Wording:
    scene.backend(CLASS)
    scene.do("list_all_airports")
    return scene.to_do("[list|show|name] all [the|available|] airports[ I can fly from| in the system|]")


def fare_of_listed(scene: Scene) -> Wording:
    backend = scene.backend(CLASS)
    listed = backend.list_all_airports()
    first, second, spoken = scene.pick(
        (
            (0, 1, "the first to the second airport"),
            (0, -1, "the first to the last airport"),
            (1, 2, "the second to the third airport"),
        )
    )
    date, day = day_of(scene)
    seat = scene.pick(("economy", "business", "first"))
    scene.do("list_all_airports")
    flight = {"travel_from": listed[first], "travel_to": listed[second], "travel_date": date, "travel_class": seat}
    scene.recent["cost"] = scene.do("get_flight_cost", **flight)["travel_cost_list"][0]
    scene.recent["flight"] = flight
    return scene.to_do(
        "[find|tell me|check|estimate] the [price|cost|fare] of a {seat} class flight from {route} on [the "
        "list|your list|the list of airports] on {day}",
        seat=seat,
        route=spoken,
        day=day,
    )


INTENTS: tuple[tuple[float, Intent], ...] = (
    (5, fare),
    (5, book),
    (4, fare_and_book),
    (4, cancel),
    (5, invoice),
    (3.5, insure),
    (2.5, support),
    (2.5, budget),
    (1.5, budget_from_currency),
    (2, exchange),
    (1.2, nearest),
    (1, airports),
    (1.2, fare_of_listed),
    (1.2, verify),
    (1, authenticate),
    (0.8, register_card),
    (0.8, balance),
    (0.6, overview),
    (0.5, status),
)
