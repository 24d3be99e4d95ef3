"""The market and the account of a task, and how a request names a stock or an order."""

from __future__ import annotations

from random import Random
from typing import Any

from . import exchange
from .scene import Scene

CLASS = "TradingBot"
COMPANIES = {**exchange.COMPANIES, "AMZN": "Amazon"}
CONTEXT = (
    "[I've been watching the markets closely|The markets are moving|Prices look attractive today|The trend looks promising].",
    "[I'm rebalancing my portfolio|My portfolio needs some attention|I want to diversify|My broker gave me a hint].",
    "[I'm cautious with my investments|I don't want to miss this opportunity|Market dynamics changed overnight].",
    "[I keep an eye on a few companies|I am new to investing|My strategy depends on it].",
)


def config(rng: Random) -> dict[str, Any] | None:
    """An open account, signed in more often than not, with prices of its own."""
    symbols = rng.sample(list(COMPANIES), rng.randrange(7, 12))
    stocks = {}
    for symbol in symbols:
        price = round(rng.uniform(15, 900), 2)
        stocks[symbol] = {
            "price": price,
            "percent_change": round(rng.uniform(-4, 4), 2),
            "volume": round(rng.uniform(0.1, 9), 3),
            "MA(5)": round(price * rng.uniform(0.97, 1.03), 2),
            "MA(20)": round(price * rng.uniform(0.93, 1.07), 2),
        }
    counter = rng.randrange(10_000, 99_999)
    orders: dict[str, Any] = {}
    for number in range(counter - rng.randrange(1, 4), counter):
        symbol = rng.choice(symbols)
        orders[str(number)] = {
            "id": number,
            "order_type": rng.choice(("Buy", "Sell")),
            "symbol": symbol,
            "price": stocks[symbol]["price"],
            "amount": rng.randrange(1, 60),
            "status": rng.choice(("Completed", "Pending", "Open")),
        }
    return {
        "orders": orders,
        "account_info": {
            "account_id": rng.randrange(10_000, 99_999),
            "balance": float(rng.randrange(20_000, 900_000)),
            "binding_card": rng.randrange(10**15, 10**16),
        },
        "authenticated": rng.random() < 0.8,
        "market_status": rng.choice(("Open", "Open", "Closed")),
        "order_counter": counter,
        "stocks": stocks,
        "watch_list": rng.sample(symbols, rng.randrange(1, 4)),
        "transaction_history": [],
        "random_seed": rng.randrange(10_000, 999_999),
    }


def account_of(scene: Scene) -> Any:
    backend = scene.backend(CLASS)
    scene.need(backend.authenticated)
    return backend


def stock_of(scene: Scene) -> tuple[str, str]:
    """A stock, and how the request names it: by symbol, by company, or as the one just spoken of."""
    recent = scene.recent.get("symbol")
    if recent is not None and recent in scene.backend(CLASS).stocks and scene.chance(0.45):
        return recent, scene.to_do("[this stock|that stock|the stock|this company|it|the same stock]").text
    symbol = scene.pick(list(scene.backend(CLASS).stocks))
    scene.recent["symbol"] = symbol
    company = COMPANIES[symbol]
    return symbol, scene.to_do(
        "[{symbol}|{quoted}|{company}|{company}|the stock {symbol}|the stock of {company}|the company "
        "{company}|{company} ({symbol})]",
        symbol=symbol,
        quoted=scene.quoted(symbol),
        company=scene.quoted(company) if scene.chance(0.3) else company,
    ).text


def order_of(scene: Scene) -> tuple[int, str]:
    orders = scene.backend(CLASS).orders
    recent = scene.recent.get("order")
    if recent is not None and recent in orders and scene.chance(0.8):
        return recent, scene.to_do(
            "[that order|the order|this order|my latest order|the order I just placed|my most recent order|the recent order|it]"
        ).text
    number = scene.pick(list(orders))
    scene.recent["order"] = number
    return number, scene.to_do("[order {id}|the order with id {id}|order number {id}|the order with the ID {id}]", id=number).text
