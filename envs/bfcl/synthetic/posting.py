"""The posting network: posts with tags and mentions, comments, reposts and whom to follow."""

from __future__ import annotations

from random import Random
from typing import Any

from . import words
from .scene import Intent, Scene
from .speech import Wording, spaced

CLASS = "TwitterAPI"

CONTEXT = (
    "[My followers love to hear from me|I want to keep my followers posted|My profile has been quiet for a while].",
    "[Let's share this with the world|Time for some social media|I want everyone to know].",
)


def config(rng: Random) -> dict[str, Any] | None:
    """An account with some posts, signed in half of the time."""
    username = words.user_name(rng)
    others = [words.user_name(rng) for _ in range(rng.randrange(2, 5))]
    first = rng.choice((0, 0, rng.randrange(1, 20)))
    tweets = {
        str(number): {
            "id": number,
            "username": rng.choice([username, *others]),
            "content": words.sentence(rng),
            "tags": [f"#{words.tag(rng)}" for _ in range(rng.randrange(0, 3))],
            "mentions": [f"@{rng.choice(others)}"] if rng.random() < 0.3 else [],
        }
        for number in range(first, first + rng.randrange(1, 5))
    }
    return {
        "username": username,
        "password": words.secret(rng),
        "authenticated": rng.random() < 0.5,
        "tweets": tweets,
        "comments": {},
        "retweets": {},
        "following_list": others,
        "tweet_counter": first + len(tweets) + rng.choice((0, 0, 5)),
    }


def _said(scene: Scene, template: str, **values: object) -> str:
    return spaced(scene.to_do(template, **values).text)


def _signed_in(scene: Scene) -> str:
    """Authenticate first where needed; the sentence that gives the credentials."""
    backend = scene.backend(CLASS)
    if backend.authenticated:
        return ""
    scene.do("authenticate_twitter", username=backend.username, password=backend.password)
    return scene.to_do(
        "[, with my username {user} and password {password}|, logging in as {user} with the password {password}"
        "|(my user name is {user} and my password is {password})|, using the account {user} and the password {password}]",
        user=scene.quoted(backend.username),
        password=scene.quoted(backend.password),
    ).text


def _tweet(scene: Scene) -> tuple[int, str]:
    """A post to act on, and how the request names it."""
    recent = scene.recent.get("tweet")
    if recent is not None and scene.chance(0.65):
        return recent, scene.to_do("[that tweet|the tweet|it|the tweet I just posted|my latest tweet|the post]").text
    number = scene.pick(list(scene.backend(CLASS).tweets))
    return number, scene.to_do("[the tweet with id {id}|tweet {id}|the tweet with the ID {id}|tweet number {id}]", id=number).text


def sign_in(scene: Scene) -> Wording:
    backend = scene.backend(CLASS)
    scene.need(not backend.authenticated)
    scene.do("authenticate_twitter", username=backend.username, password=backend.password)
    return scene.to_do(
        "[log me in to|sign in to|authenticate me on] [Twitter|my Twitter account|the posting platform] "
        "[with|using] [the username|my username|user name] {user} and [the|my|] password {password}",
        user=scene.quoted(backend.username),
        password=scene.quoted(backend.password),
    )


def post(scene: Scene) -> Wording:
    backend = scene.backend(CLASS)
    credentials = _signed_in(scene)
    content = words.sentence(scene.rng)
    tags = [f"#{words.tag(scene.rng)}" for _ in range(scene.rng.choice((0, 1, 1, 2)))]
    mentions = [
        f"@{scene.pick(backend.following_list) if scene.chance(0.5) else words.user_name(scene.rng)}"
        for _ in range(scene.rng.choice((0, 0, 1, 2)))
    ]
    arguments: dict[str, Any] = {"content": content}
    ending = ""
    if tags:
        arguments["tags"] = tags
        shown = [tag if scene.chance(0.6) else scene.quoted(tag) for tag in tags]
        if scene.chance(0.2):
            shown = [tag[1:] for tag in tags]
        ending += _said(
            scene,
            "[with the hashtag{s}|and the tag{s}|tagged with|using the hashtag{s}|, tagging it with] {tags}",
            s="s" if len(tags) > 1 else "",
            tags=" and ".join(shown),
        )
    if mentions:
        arguments["mentions"] = mentions
        ending += _said(scene, "[and mention|mentioning|, and mention|while mentioning] {who}", who=" and ".join(mentions))
    scene.recent["tweet"] = scene.do("post_tweet", **arguments)["id"]
    return scene.to_do(
        "[post|publish|send out|share|compose|put out] [a tweet|a tweet|an update on Twitter] "
        "[saying|that says|that reads|with the text|stating|with the content] {content}{ending}{credentials}",
        content=scene.said(content),
        ending=ending,
        credentials=spaced(credentials),
    )


def comment(scene: Scene) -> Wording:
    scene.need(scene.backend(CLASS).authenticated)
    number, spoken = _tweet(scene)
    content = words.sentence(scene.rng)
    scene.do("comment", tweet_id=number, comment_content=content)
    return scene.to_do(
        "[comment on {tweet} [with|saying]|add [a|the] comment to {tweet}[:| saying| that says]|leave a comment "
        "under {tweet} saying|reply to {tweet} with the comment] {content}",
        tweet=spoken,
        content=scene.said(content),
    )


def repost(scene: Scene) -> Wording:
    backend = scene.backend(CLASS)
    scene.need(backend.authenticated)
    number, spoken = _tweet(scene)
    scene.need(number not in backend.retweets.get(backend.username, []))
    scene.do("retweet", tweet_id=number)
    return scene.to_do("[retweet|repost|share again] {tweet}[ to my followers| so more people see it|]", tweet=spoken)


def mention(scene: Scene) -> Wording:
    backend = scene.backend(CLASS)
    number, spoken = _tweet(scene)
    who = f"@{scene.pick(backend.following_list)}"
    scene.do("mention", tweet_id=number, mentioned_usernames=[who])
    return scene.to_do("[mention|tag] {who} [in|on] {tweet}", who=who, tweet=spoken)


def follow(scene: Scene) -> Wording:
    backend = scene.backend(CLASS)
    scene.need(backend.authenticated)
    who = words.user_name(scene.rng)
    scene.need(who not in backend.following_list)
    scene.do("follow_user", username_to_follow=who)
    return scene.to_do("[follow|start following] [the user|the account|] {who}[ on Twitter|]", who=scene.quoted(who))


def unfollow(scene: Scene) -> Wording:
    backend = scene.backend(CLASS)
    scene.need(backend.authenticated)
    who = scene.pick(backend.following_list)
    scene.do("unfollow_user", username_to_unfollow=who)
    return scene.to_do("[unfollow|stop following] [the user|the account|] {who}[ on Twitter|]", who=scene.quoted(who))


def following(scene: Scene) -> Wording:
    scene.need(scene.backend(CLASS).authenticated)
    scene.do("list_all_following")
    return scene.to_do("[list|show me|tell me] [everyone|all the accounts|all users] [I follow|that I am following]")


def read(scene: Scene) -> Wording:
    number = scene.pick(list(scene.backend(CLASS).tweets))
    scene.do("get_tweet", tweet_id=number)
    return scene.to_do("[show|fetch|get|retrieve|display] [the tweet with id|tweet|tweet number] {id}", id=number)


def by_user(scene: Scene) -> Wording:
    who = scene.pick(list(scene.backend(CLASS).tweets.values()))["username"]
    if scene.chance(0.6):
        scene.do("get_user_tweets", username=who)
        return scene.to_do("[show|list|get] all [tweets|posts] [by|from|of] {who}", who=scene.quoted(who))
    scene.do("get_user_stats", username=who)
    return scene.to_do("[show|get|give me] the [statistics|stats] of [the user|] {who}", who=scene.quoted(who))


def search(scene: Scene) -> Wording:
    tweet = scene.pick(list(scene.backend(CLASS).tweets.values()))
    keyword = scene.pick([word.strip(".,!?:") for word in tweet["content"].split() if len(word) > 3] or ["news"])
    scene.do("search_tweets", keyword=keyword)
    return scene.to_do(
        "[search|look] for tweets [about|with the word|containing|that mention] {keyword}", keyword=scene.quoted(keyword)
    )


def comments(scene: Scene) -> Wording:
    number, spoken = _tweet(scene)
    scene.do("get_tweet_comments", tweet_id=number)
    return scene.to_do("[show|list|read] [all|the] comments [on|under|of] {tweet}", tweet=spoken)


def status(scene: Scene) -> Wording:
    scene.backend(CLASS)
    scene.do("posting_get_login_status")
    return scene.to_do("[check|verify|tell me] [whether|if] I am [logged in to|authenticated on|signed in to] Twitter")


INTENTS: tuple[tuple[float, Intent], ...] = (
    (1, sign_in),
    (7, post),
    (2.5, comment),
    (2.5, repost),
    (1.5, mention),
    (0.8, follow),
    (0.6, unfollow),
    (0.6, following),
    (0.8, read),
    (0.7, by_user),
    (0.7, search),
    (0.6, comments),
    (0.4, status),
)
