"""Travel: fares, bookings, cards, budgets, insurance and the support desk."""

from __future__ import annotations

from random import Random
from typing import Any

from . import words
from .augment import ordinal
from .scene import Impossible, Intent, Scene
from .speech import Wording

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
_CITIES = {code: city for city, code in AIRPORTS.items()}
_MONTHS = "January February March April May June July August September October November December".split()
_CURRENCIES = {"RMB": "RMB", "EUR": "euros", "JPY": "yen", "GBP": "British pounds", "CAD": "Canadian dollars", "AUD": "AUD"}


def config(rng: Random) -> dict[str, Any] | None:
    """A signed-in traveller with a card or two and perhaps an earlier booking."""
    cards = {
        rng.choice((words.digits(rng, 12), f"card_{words.digits(rng, 4)}", f"{words.noun(rng)}_{words.digits(rng, 3)}", words.secret(rng))): {
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


def _token(scene: Scene) -> tuple[str, str]:
    """The access token, and the words that give it; said once, it need not be said again."""
    token = scene.backend(CLASS).access_token
    scene.need(token)
    if scene.recent.get("token") == token and scene.chance(0.65):
        return token, ""
    scene.recent["token"] = token
    return token, " " + scene.to_do(
        "[with|using] [the access token|my access token|access token|the token] {token}", token=scene.quoted(token)
    ).text


def _card(scene: Scene) -> tuple[str, str]:
    cards = list(scene.backend(CLASS).credit_card_list)
    recent = scene.recent.get("card")
    if recent in cards and scene.chance(0.5):
        return recent, scene.to_do("[the same card|my card|that card|the card I used before]").text
    card = scene.pick(cards)
    scene.recent["card"] = card
    return card, scene.to_do(
        "[my card|my credit card|the card|card] [with id|with the id|with the ID|] {card}", card=scene.quoted(card)
    ).text


def _day(scene: Scene) -> tuple[str, str]:
    """A date as the tools want it, and as people say it."""
    year, month, day = 2026, scene.rng.randrange(1, 13), scene.rng.randrange(1, 29)
    name, nth = _MONTHS[month - 1], ordinal(day)
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


def _flight(scene: Scene) -> tuple[dict[str, str], str]:
    """A flight that exists, as arguments and in words; that of the last enquiry, where there was one."""
    recent = scene.recent.get("flight")
    if recent is not None and scene.chance(0.6):
        return recent, scene.to_do("[that flight|this flight|the flight|the flight we just looked at|it]").text
    backend = scene.backend(CLASS)
    for _ in range(50):
        start, end = scene.rng.sample(list(_CITIES), 2)
        try:
            backend.get_flight_cost(start, end, "2026-01-01", "economy")
            break
        except ValueError:
            continue
    else:
        raise Impossible
    backend._flight_cost_lookup = {}
    date, day = _day(scene)
    seat = scene.pick(("economy", "business", "first"))
    flight = {"travel_from": start, "travel_to": end, "travel_date": date, "travel_class": seat}
    scene.recent["flight"] = flight
    code = scene.chance(0.35)
    spoken = scene.to_do(
        "[a {seat}[ class|-class] [flight|flight|ticket|seat] from {start} to {end} [on|for|departing on|leaving on] {day}"
        "|a flight from {start} to {end} on {day}[ in|,] {seat} class]",
        seat=seat,
        start=start if code else _CITIES[start],
        end=end if code else _CITIES[end],
        day=day,
    ).text
    return flight, spoken


def _booking(scene: Scene) -> tuple[str, str]:
    bookings = scene.backend(CLASS).booking_record
    recent = scene.recent.get("booking")
    if recent in bookings and scene.chance(0.9):
        return recent, scene.to_do("[that booking|the booking|my booking|the flight I just booked|my reservation|my latest booking|it]").text
    number = scene.pick(list(bookings))
    scene.recent["booking"] = number
    return number, scene.to_do("[booking {id}|the booking with id {id}|my reservation {id}|the booking {id}]", id=scene.quoted(number)).text


def _book(scene: Scene, flight: dict[str, str], card: str, token: str) -> None:
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


def fare(scene: Scene) -> Wording:
    scene.recent.pop("flight", None)
    flight, spoken = _flight(scene)
    cost = scene.do("get_flight_cost", **flight)["travel_cost_list"][0]
    scene.recent["cost"] = cost
    if scene.chance(0.3):
        return scene.to_ask("[How much [is|would be|does it cost to take]|What is the price of|What would I pay for] {flight}?", flight=spoken)
    return scene.to_do(
        "[find|tell me|check|look up|estimate|get|determine] [the price|the cost|the fare|the airfare] [of|for] {flight}",
        flight=spoken,
    )


def book(scene: Scene) -> Wording:
    flight, spoken = _flight(scene)
    token, with_token = _token(scene)
    card, with_card = _card(scene)
    _book(scene, flight, card, token)
    return scene.to_do(
        "[book|reserve|arrange|secure] {flight} [with|using|and pay with|and charge it to] {card}{token}",
        flight=spoken,
        card=with_card,
        token=with_token,
    )


def fare_and_book(scene: Scene) -> Wording:
    scene.recent.pop("flight", None)
    flight, spoken = _flight(scene)
    token, with_token = _token(scene)
    card, with_card = _card(scene)
    scene.need(scene.backend(CLASS).credit_card_list[card]["balance"] > 12_000)
    scene.do("get_flight_cost", **flight)
    _book(scene, flight, card, token)
    return scene.to_do(
        "[check|find out|look up] [the price|the cost|the fare] of {flight} and [book|reserve] it [with|using] {card}{token}",
        flight=spoken,
        card=with_card,
        token=with_token,
    )


def cancel(scene: Scene) -> Wording:
    number, spoken = _booking(scene)
    scene.need(scene.backend(CLASS).booking_record[number]["card_id"] in scene.backend(CLASS).credit_card_list)
    token, with_token = _token(scene)
    scene.do("cancel_booking", access_token=token, booking_id=number)
    scene.recent.pop("booking", None)
    return scene.to_do("[cancel|call off|annul|revoke] {booking}{token}", booking=spoken, token=with_token)


def invoice(scene: Scene) -> Wording:
    number, spoken = _booking(scene)
    token, with_token = _token(scene)
    scene.do("retrieve_invoice", access_token=token, booking_id=number)
    return scene.to_do(
        "[get|retrieve|fetch|show|provide|generate|pull up] [the|an] [invoice|bill] [for|of] {booking}{token}", booking=spoken, token=with_token
    )


def insure(scene: Scene) -> Wording:
    number, spoken = _booking(scene)
    token, with_token = _token(scene)
    card, with_card = _card(scene)
    cost = scene.rng.choice((scene.rng.randrange(2, 60) * 25, scene.rng.randrange(50, 900)))
    limit = scene.backend(CLASS).budget_limit
    scene.need(limit is None or cost <= limit)
    kind = scene.pick(("comprehensive", "comprehensive", "comprehensive", "basic", "medical"))
    scene.do(
        "purchase_insurance", access_token=token, insurance_type=kind, insurance_cost=cost, booking_id=number, card_id=card
    )
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


def support(scene: Scene) -> Wording:
    number, spoken = _booking(scene)
    text = words.sentence(scene.rng)
    scene.do("contact_customer_support", booking_id=number, message=text)
    return scene.to_do(
        "[contact|reach out to|write to|inform] [customer support|customer service|the support team] about {booking} "
        "[with the message|and say|saying|and tell them] {text}",
        booking=spoken,
        text=f'"{text}"' if "'" in text else f"'{text}'",
    )


def budget(scene: Scene) -> Wording:
    token, with_token = _token(scene)
    limit = scene.rng.randrange(2, 40) * 500
    scene.do("set_budget_limit", access_token=token, budget_limit=limit)
    return scene.to_do(
        "[set|establish|fix|define] [a|my] [budget limit|travel budget|spending limit|budget] of [${limit}|{limit} dollars|{limit} USD|${comma}]{token}",
        limit=limit,
        comma=f"{limit:,}",
        token=with_token,
    )


def budget_from_currency(scene: Scene) -> Wording:
    token, with_token = _token(scene)
    currency = scene.pick(list(_CURRENCIES))
    amount = scene.rng.randrange(4, 80) * 500
    dollars = scene.do("compute_exchange_rate", base_currency=currency, target_currency="USD", value=amount)["exchanged_value"]
    scene.do("set_budget_limit", access_token=token, budget_limit=dollars)
    return scene.to_do(
        "[set|fix|establish] my [budget|budget limit|travel budget] to the [equivalent|US dollar equivalent|dollar value] of {amount} {currency}{token}",
        amount=f"{amount:,}" if scene.chance(0.5) else amount,
        currency=_CURRENCIES[currency],
        token=with_token,
    )


def exchange(scene: Scene) -> Wording:
    scene.backend(CLASS)
    currency = scene.pick(list(_CURRENCIES))
    recent = scene.recent.get("cost")
    if recent is not None and scene.chance(0.6):
        scene.do("compute_exchange_rate", base_currency="USD", target_currency=currency, value=recent)
        return scene.to_do(
            "[convert|change|translate] [that price|that amount|the cost|the fare] [from dollars|from USD|] [to|into] {currency}",
            currency=_CURRENCIES[currency],
        )
    amount = scene.rng.randrange(1, 100) * 50
    outward = scene.chance(0.5)
    pair = ("USD", currency) if outward else (currency, "USD")
    scene.do("compute_exchange_rate", base_currency=pair[0], target_currency=pair[1], value=amount)
    spoken = ("US dollars", _CURRENCIES[currency]) if outward else (_CURRENCIES[currency], "US dollars")
    return scene.to_do(
        "[convert {amount} {a} [to|into] {b}|tell me how much {amount} {a} are in {b}]", amount=amount, a=spoken[0], b=spoken[1]
    )


def nearest(scene: Scene) -> Wording:
    scene.backend(CLASS)
    city = scene.pick(list(AIRPORTS))
    scene.do("get_nearest_airport_by_city", location=city)
    return scene.to_do("[find|tell me|look up|determine] [the nearest airport|the closest airport] to {city}", city=city)


def airports(scene: Scene) -> Wording:
    scene.backend(CLASS)
    scene.do("list_all_airports")
    return scene.to_do("[list|show|name] all [the|available|] airports[ I can fly from| in the system|]")


def fare_of_listed(scene: Scene) -> Wording:
    backend = scene.backend(CLASS)
    listed = backend.list_all_airports()
    first, second, spoken = scene.pick(
        ((0, 1, "the first to the second airport"), (0, -1, "the first to the last airport"), (1, 2, "the second to the third airport"))
    )
    date, day = _day(scene)
    seat = scene.pick(("economy", "business", "first"))
    scene.do("list_all_airports")
    flight = {"travel_from": listed[first], "travel_to": listed[second], "travel_date": date, "travel_class": seat}
    scene.recent["cost"] = scene.do("get_flight_cost", **flight)["travel_cost_list"][0]
    scene.recent["flight"] = flight
    return scene.to_do(
        "[find|tell me|check|estimate] the [price|cost|fare] of a {seat} class flight from {route} on [the list|your list|the list of airports] on {day}",
        seat=seat,
        route=spoken,
        day=day,
    )


def verify(scene: Scene) -> Wording:
    backend = scene.backend(CLASS)
    scene.need(backend.user_first_name)
    year, month, day = scene.rng.randrange(1950, 2004), scene.rng.randrange(1, 13), scene.rng.randrange(1, 29)
    passport = "US" + words.digits(scene.rng, scene.rng.randrange(6, 10))
    scene.do(
        "verify_traveler_information",
        first_name=backend.user_first_name,
        last_name=backend.user_last_name,
        date_of_birth=f"{year}-{month:02d}-{day:02d}",
        passport_number=passport,
    )
    return scene.to_do(
        "[verify|confirm|check] my [traveler information|travel details|details]: [my name is|I am] {first} {last}, born [on|] "
        "[{month} {day}, {year}|{month} {nth} {year}|{iso}], [passport number|with passport|and my passport number is] {passport}",
        first=backend.user_first_name,
        last=backend.user_last_name,
        month=_MONTHS[month - 1],
        day=day,
        nth=ordinal(day),
        year=year,
        iso=f"{year}-{month:02d}-{day:02d}",
        passport=scene.quoted(passport),
    )


def authenticate(scene: Scene) -> Wording:
    scene.backend(CLASS)
    rng = scene.rng
    client, secret, refresh = words.secret(rng), words.secret(rng), words.secret(rng)
    grant = scene.pick(("read_write", "read_write", "read", "write"))
    first, last = words.person(rng), words.surname(rng)
    token = scene.do(
        "authenticate_travel",
        client_id=client,
        client_secret=secret,
        refresh_token=refresh,
        grant_type=grant,
        user_first_name=first,
        user_last_name=last,
    )["access_token"]
    scene.recent["token"] = token
    return scene.to_do(
        "[authenticate me|log me in|sign me in] [with the travel system|to my travel account|] with [client id|the client id] {client}, "
        "[client secret|secret] {secret} and refresh token {refresh}[,|;] [grant type|with the grant type] {grant}[,|;] "
        "[my name is|for|the user is] {first} {last}",
        client=scene.quoted(client),
        secret=scene.quoted(secret),
        refresh=scene.quoted(refresh),
        grant=grant,
        first=first,
        last=last,
    )


def register_card(scene: Scene) -> Wording:
    token, with_token = _token(scene)
    rng = scene.rng
    number = words.digits(rng, 16) if rng.random() < 0.5 else "-".join(words.digits(rng, 4) for _ in range(4))
    month, year, code = rng.randrange(1, 13), rng.randrange(2027, 2033), rng.randrange(100, 1000)
    holder = f"{words.person(rng)} {words.surname(rng)}"
    card = scene.do(
        "register_credit_card",
        access_token=token,
        card_number=number,
        expiration_date=f"{month:02d}/{year}",
        cardholder_name=holder,
        card_verification_number=code,
    )["card_id"]
    scene.recent["card"] = card
    return scene.to_do(
        "[register|add|link] [my new credit card|a new card|my card] [number|with number|with the number] {number}, "
        "[expiring|valid until|expiration date] {month:02d}/{year}, [CVV|security code|verification number] {code}, [in the name of|cardholder] {holder}{token}",
        number=scene.quoted(number),
        month=month,
        year=year,
        code=code,
        holder=scene.quoted(holder),
        token=with_token,
    )


def balance(scene: Scene) -> Wording:
    token, with_token = _token(scene)
    card, spoken = _card(scene)
    scene.do("get_credit_card_balance", access_token=token, card_id=card)
    return scene.to_do("[check|show|tell me|get] the balance [of|on] {card}{token}", card=spoken, token=with_token)


def overview(scene: Scene) -> Wording:
    if scene.chance(0.5):
        scene.backend(CLASS)
        scene.do("get_all_credit_cards")
        return scene.to_do("[list|show] all my [registered|] [credit cards|cards]")
    token, with_token = _token(scene)
    scene.do("get_booking_history", access_token=token)
    return scene.to_do("[list|show|retrieve] [my booking history|all my bookings|my past bookings]{token}", token=with_token)


def status(scene: Scene) -> Wording:
    scene.backend(CLASS)
    if scene.chance(0.5):
        scene.do("travel_get_login_status")
        return scene.to_do("[check|verify|tell me] [whether|if] I am [logged in to|signed in to] [the travel system|my travel account]")
    scene.do("get_budget_fiscal_year")
    return scene.to_do("[tell me|get|look up] the [fiscal year of my budget|budget fiscal year]")


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
