"""The travel desk: who travels, with which card, in which currency, and within which budget."""

from __future__ import annotations

from . import words
from .bookings import AIRPORTS, CLASS, CURRENCIES, booking_of, card_of, token_of
from .scene import Scene
from .speech import Wording


def support(scene: Scene) -> Wording:
    number, spoken = booking_of(scene)
    text = words.sentence(scene.rng)
    scene.do("contact_customer_support", booking_id=number, message=text)
    return scene.to_do(
        "[contact|reach out to|write to|inform] [customer support|customer service|the support team] about {booking} "
        "[with the message|and say|saying|and tell them] {text}",
        booking=spoken,
        text=scene.said(text),
    )


def budget(scene: Scene) -> Wording:
    token, with_token = token_of(scene)
    limit = scene.rng.randrange(2, 40) * 500
    scene.do("set_budget_limit", access_token=token, budget_limit=limit)
    return scene.to_do(
        "[set|establish|fix|define] [a|my] [budget limit|travel budget|spending limit|budget] of "
        "[${limit}|{limit} dollars|{limit} USD|${comma}]{token}",
        limit=limit,
        comma=f"{limit:,}",
        token=with_token,
    )


def budget_from_currency(scene: Scene) -> Wording:
    token, with_token = token_of(scene)
    currency = scene.pick(list(CURRENCIES))
    amount = scene.rng.randrange(4, 80) * 500
    dollars = scene.do("compute_exchange_rate", base_currency=currency, target_currency="USD", value=amount)["exchanged_value"]
    scene.do("set_budget_limit", access_token=token, budget_limit=dollars)
    return scene.to_do(
        "[set|fix|establish] my [budget|budget limit|travel budget] to the [equivalent|US dollar "
        "equivalent|dollar value] of {amount} {currency}{token}",
        amount=f"{amount:,}" if scene.chance(0.5) else amount,
        currency=CURRENCIES[currency],
        token=with_token,
    )


def exchange(scene: Scene) -> Wording:
    scene.backend(CLASS)
    currency = scene.pick(list(CURRENCIES))
    recent = scene.recent.get("cost")
    if recent is not None and scene.chance(0.6):
        scene.do("compute_exchange_rate", base_currency="USD", target_currency=currency, value=recent)
        return scene.to_do(
            "[convert|change|translate] [that price|that amount|the cost|the fare] [from dollars|from USD|] [to|into] {currency}",
            currency=CURRENCIES[currency],
        )
    amount = scene.rng.randrange(1, 100) * 50
    outward = scene.chance(0.5)
    pair = ("USD", currency) if outward else (currency, "USD")
    scene.do("compute_exchange_rate", base_currency=pair[0], target_currency=pair[1], value=amount)
    spoken = ("US dollars", CURRENCIES[currency]) if outward else (CURRENCIES[currency], "US dollars")
    return scene.to_do(
        "[convert {amount} {a} [to|into] {b}|tell me how much {amount} {a} are in {b}]", amount=amount, a=spoken[0], b=spoken[1]
    )


def nearest(scene: Scene) -> Wording:
    scene.backend(CLASS)
    city = scene.pick(list(AIRPORTS))
    scene.do("get_nearest_airport_by_city", location=city)
    return scene.to_do("[find|tell me|look up|determine] [the nearest airport|the closest airport] to {city}", city=city)


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
        "[verify|confirm|check] my [traveler information|travel details|details]: [my name is|I am] {first} "
        "{last}, born [on|] "
        "[{month} {day}, {year}|{month} {nth} {year}|{iso}], [passport number|with passport|and my passport "
        "number is] {passport}",
        first=backend.user_first_name,
        last=backend.user_last_name,
        month=words.MONTHS[month - 1],
        day=day,
        nth=words.ordinal(day),
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
        "[authenticate me|log me in|sign me in] [with the travel system|to my travel account|] with [client "
        "id|the client id] {client}, "
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
    token, with_token = token_of(scene)
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
        "[expiring|valid until|expiration date] {month:02d}/{year}, [CVV|security code|verification number] "
        "{code}, [in the name of|cardholder] {holder}{token}",
        number=scene.quoted(number),
        month=month,
        year=year,
        code=code,
        holder=scene.quoted(holder),
        token=with_token,
    )


def balance(scene: Scene) -> Wording:
    token, with_token = token_of(scene)
    card, spoken = card_of(scene)
    scene.do("get_credit_card_balance", access_token=token, card_id=card)
    return scene.to_do("[check|show|tell me|get] the balance [of|on] {card}{token}", card=spoken, token=with_token)


def overview(scene: Scene) -> Wording:
    if scene.chance(0.5):
        scene.backend(CLASS)
        scene.do("get_all_credit_cards")
        return scene.to_do("[list|show] all my [registered|] [credit cards|cards]")
    token, with_token = token_of(scene)
    scene.do("get_booking_history", access_token=token)
    return scene.to_do("[list|show|retrieve] [my booking history|all my bookings|my past bookings]{token}", token=with_token)


def status(scene: Scene) -> Wording:
    scene.backend(CLASS)
    if scene.chance(0.5):
        scene.do("travel_get_login_status")
        return scene.to_do(
            "[check|verify|tell me] [whether|if] I am [logged in to|signed in to] [the travel system|my travel account]"
        )
    scene.do("get_budget_fiscal_year")
    return scene.to_do("[tell me|get|look up] the [fiscal year of my budget|budget fiscal year]")
