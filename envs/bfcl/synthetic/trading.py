"""The trading account: quotes, orders, a watchlist and money moving in and out."""

from __future__ import annotations

from . import words
from .market import CLASS, COMPANIES, CONTEXT, account_of, config, order_of, stock_of
from .scene import Intent, Scene
from .speech import Wording

__all__ = ["CLASS", "CONTEXT", "INTENTS", "config"]


def sign_in(scene: Scene) -> Wording:
    scene.need(not scene.backend(CLASS).authenticated)
    user, password = words.user_name(scene.rng), words.secret(scene.rng)
    scene.do("trading_login", username=user, password=password)
    return scene.to_do(
        "[log in|log me in|sign me in] to [my trading account|the trading platform|the trading system] [with|using] "
        "[the username|username|my username] {user} and [the|my|] password {password}",
        user=scene.quoted(user),
        password=scene.quoted(password),
    )


def quote(scene: Scene) -> Wording:
    symbol, spoken = stock_of(scene)
    scene.do("get_stock_info", symbol=symbol)
    if scene.chance(0.25):
        return scene.to_ask(
            "[What is the current price of|How is|What can you tell me about] {stock}[ doing| at the moment| right now|]?",
            stock=spoken,
        )
    return scene.to_do(
        "[show|fetch|get|retrieve|pull up|give me|look up|provide] [the latest|the current|detailed|all the|the] "
        "[market data|information|figures|price and volume|trading details|stock details|quote] [for|of|on|about] {stock}",
        stock=spoken,
    )


def buy_at_market(scene: Scene) -> Wording:
    account = account_of(scene)
    symbol, spoken = stock_of(scene)
    price, side = account.stocks[symbol]["price"], "Buy" if scene.chance(0.8) else "Sell"
    limit = int(account.account_info["balance"] // price) if side == "Buy" else 500
    scene.need(limit >= 1)
    amount = scene.rng.randrange(1, min(limit, 400) + 1)
    if amount > 20 and scene.chance(0.7):
        amount = max(5, amount // 10 * 10)
    price = scene.do("get_stock_info", symbol=symbol)["price"]
    scene.recent["order"] = scene.do("place_order", order_type=side, symbol=symbol, price=price, amount=amount)["order_id"]
    verb = (
        "[buy|purchase|acquire|place a buy order for|place an order for|order]"
        if side == "Buy"
        else "[sell|place a sell order for]"
    )
    return scene.to_do(
        verb + " {amount} [shares|shares|units] of {stock} at the [current|present|prevailing|going|latest] [market "
        "price|price|market rate|rate]",
        amount=amount,
        stock=spoken,
    )


def buy_at_price(scene: Scene) -> Wording:
    account = account_of(scene)
    symbol, spoken = stock_of(scene)
    side = "Buy" if scene.chance(0.8) else "Sell"
    price = scene.rng.randrange(10, 900) if scene.chance(0.6) else round(scene.rng.uniform(10, 900), 2)
    limit = int(account.account_info["balance"] // price) if side == "Buy" else 500
    scene.need(limit >= 1)
    amount = scene.rng.randrange(1, min(limit, 300) + 1)
    scene.recent["order"] = scene.do("place_order", order_type=side, symbol=symbol, price=price, amount=amount)["order_id"]
    verb = "[buy|purchase|acquire|place a buy order for|order]" if side == "Buy" else "[sell|place a sell order for]"
    return scene.to_do(
        verb + " {amount} [shares|shares|units] of {stock} [at|for] [${price}|${price}|{price} dollars] [each|per "
        "share|a share|apiece]",
        amount=amount,
        stock=spoken,
        price=price,
    )


def order_details(scene: Scene) -> Wording:
    number, spoken = order_of(scene)
    scene.do("get_order_details", order_id=number)
    return scene.to_do(
        "[show|fetch|retrieve|give me|provide|pull up|review] [the details|the specifics|the particulars|all "
        "the details|the status] of {order}",
        order=spoken,
    )


def cancel(scene: Scene) -> Wording:
    number, spoken = order_of(scene)
    scene.need(scene.backend(CLASS).orders[number]["status"] in ("Open", "Pending"))
    scene.do("cancel_order", order_id=number)
    return scene.to_do("[cancel|revoke|withdraw|call off|retract] {order}", order=spoken)


def details_and_cancel(scene: Scene) -> Wording:
    number, spoken = order_of(scene)
    scene.need(scene.backend(CLASS).orders[number]["status"] in ("Open", "Pending"))
    scene.do("get_order_details", order_id=number)
    scene.do("cancel_order", order_id=number)
    return scene.to_do(
        "[show|review|check] [the details of|the status of] {order} and [cancel|revoke|withdraw] it[ if it has "
        "not gone through yet| afterwards|]",
        order=spoken,
    )


def account(scene: Scene) -> Wording:
    account_of(scene)
    scene.do("get_account_info")
    return scene.to_do(
        "[show|give me|display|summarize|provide] [my account details|an overview of my account|my account information"
        "|my balance and the linked card|the balance and card of my account]"
    )


def watch(scene: Scene) -> Wording:
    backend = scene.backend(CLASS)
    symbol, spoken = stock_of(scene)
    scene.need(symbol not in backend.watch_list)
    scene.do("add_to_watchlist", stock=symbol)
    return scene.to_do("[add|put|include] {stock} [to|on|in] my [watchlist|watch list|list of watched stocks]", stock=spoken)


def unwatch(scene: Scene) -> Wording:
    symbol = scene.pick(account_of(scene).watch_list)
    scene.do("remove_stock_from_watchlist", symbol=symbol)
    spoken = symbol if scene.chance(0.5) else COMPANIES[symbol]
    return scene.to_do("[remove|drop|take|delete] {stock} [from|off] my [watchlist|watch list]", stock=scene.quoted(spoken))


def watchlist(scene: Scene) -> Wording:
    account_of(scene)
    watched = scene.do("get_watchlist")["watchlist"]
    if watched:
        scene.recent["symbol"] = watched[-1]
    if scene.chance(0.3):
        return scene.to_ask(
            "[What's on my watchlist|Which stocks am I watching|Which stocks are on my watch list][ right now| at present|]?"
        )
    return scene.to_do(
        "[show|list|display|review|pull up|tell me] [my watchlist|the stocks on my watchlist|the stocks I am "
        "tracking|all watched stocks]"
    )


def watched_details(scene: Scene) -> Wording:
    watched = list(account_of(scene).watch_list)
    scene.need(1 <= len(watched) <= 3)
    scene.do("get_watchlist")
    for symbol in watched:
        scene.do("get_stock_info", symbol=symbol)
    return scene.to_do("[show|fetch|retrieve|give me] the details of [every|each] stock [on|in] my watchlist")


def fund(scene: Scene) -> Wording:
    account_of(scene)
    amount = scene.rng.randrange(100, 20_000) if scene.chance(0.5) else scene.rng.randrange(1, 100) * 500
    scene.do("fund_account", amount=amount)
    return scene.to_do(
        "[add|deposit|transfer|put] [${amount}|{amount} dollars|${comma}] [to|into] [my account|my trading account|the account]",
        amount=amount,
        comma=f"{amount:,}",
    )


def withdraw(scene: Scene) -> Wording:
    account = account_of(scene)
    scene.need(account.market_status == "Open" and account.account_info["balance"] > 2000)
    amount = scene.rng.randrange(50, 2000)
    scene.do("withdraw_funds", amount=amount)
    return scene.to_do(
        "[withdraw|take out|cash out] [${amount}|{amount} dollars] from [my account|my trading account]", amount=amount
    )


def history(scene: Scene) -> Wording:
    account_of(scene)
    if scene.chance(0.5):
        numbers = scene.do("get_order_history")["history"]
        if numbers:
            scene.recent["order"] = numbers[-1]
        return scene.to_do("[show|list|retrieve] [my order history|the ids of all my orders|all my past orders]")
    scene.do("get_transaction_history")
    return scene.to_do(
        "[show|list|retrieve] [my transaction history|all my transactions|the history of deposits and withdrawals]"
    )


def sector(scene: Scene) -> Wording:
    backend = scene.backend(CLASS)
    name = scene.pick(("Technology", "Technology", "Automobile"))
    listed = scene.do("get_available_stocks", sector=name)["stock_list"]
    known = [symbol for symbol in listed if symbol in backend.stocks]
    if known and scene.chance(0.35):
        position = listed.index(scene.pick(known))
        scene.recent["symbol"] = listed[position]
        scene.do("get_stock_info", symbol=listed[position])
        return scene.to_do(
            "[list|show|find] the [available|] stocks in the {sector} sector and [fetch|get|show] the details of the {nth} one",
            sector=name,
            nth=("first", "second", "third", "fourth")[position],
        )
    return scene.to_do(
        "[list|show|identify|give me|compile] [all|] [the available|the|available] [stocks|stock symbols] "
        "[in|of|from] the {sector} sector",
        sector=name if scene.chance(0.7) else name.lower(),
    )


def filter_prices(scene: Scene) -> Wording:
    symbols = scene.rng.sample(list(scene.backend(CLASS).stocks), scene.rng.randrange(2, 5))
    low = scene.rng.randrange(10, 300)
    high = low + scene.rng.randrange(50, 500)
    scene.do("filter_stocks_by_price", stocks=symbols, min_price=low, max_price=high)
    return scene.to_do(
        "[filter|tell me which of] {stocks} [that cost|are priced|by price] between {low} and {high}[ dollars|]",
        stocks=", ".join(symbols),
        low=low,
        high=high,
    )


def alert(scene: Scene) -> Wording:
    symbols = scene.rng.sample(list(scene.backend(CLASS).stocks), scene.rng.randrange(1, 4))
    threshold = scene.rng.randrange(1, 8)
    scene.do("notify_price_change", stocks=symbols, threshold=threshold)
    return scene.to_do(
        "[notify me|tell me|alert me] [if|whether|in case] {stocks} [moved|changed] by [more than|at least] "
        "{threshold}[%| percent]",
        stocks=" and ".join(symbols),
        threshold=threshold,
    )


def clock(scene: Scene) -> Wording:
    scene.backend(CLASS)
    scene.do("get_current_time")
    if scene.chance(0.4):
        return scene.to_ask("What time is it[ now| at the moment|]?")
    return scene.to_do("[tell me|check|get] the [current|present] time")


def symbol_of(scene: Scene) -> Wording:
    scene.backend(CLASS)
    symbol = scene.pick(list(COMPANIES))
    scene.do("get_symbol_by_name", name=COMPANIES[symbol])
    return scene.to_do(
        "[find|look up|tell me] the [ticker|stock|] symbol [of|for] {company}", company=scene.quoted(COMPANIES[symbol])
    )


def status(scene: Scene) -> Wording:
    scene.backend(CLASS)
    scene.do("trading_get_login_status")
    return scene.to_do(
        "[check|verify|tell me] [whether|if] I am [logged in to|signed in to] [the trading platform|my trading account]"
    )


def sign_out(scene: Scene) -> Wording:
    account_of(scene)
    scene.do("trading_logout")
    return scene.to_do("[log me out of|sign out of|log out of] [the trading platform|my trading account|the trading system]")


INTENTS: tuple[tuple[float, Intent], ...] = (
    (2, sign_in),
    (5, quote),
    (5, buy_at_market),
    (2.5, buy_at_price),
    (5, order_details),
    (3.5, cancel),
    (0.7, details_and_cancel),
    (3, account),
    (3.5, watch),
    (1.5, unwatch),
    (3, watchlist),
    (0.7, watched_details),
    (1.2, fund),
    (0.7, withdraw),
    (0.8, history),
    (1.8, sector),
    (0.5, filter_prices),
    (0.5, alert),
    (1, clock),
    (0.6, symbol_of),
    (0.4, status),
    (0.5, sign_out),
)
