"""Every fault at every endpoint a run uses: what is lost is what must be lost, and no update counts twice.

The genuine SDK and the program's own learner and policy live against the engine, a process, through a proxy that breaks one
thing. A life that lost nothing has the weights, the moments and the optimizer steps of an unbroken one, bit for bit. Lives wait
more than they work, so the cases of one test run side by side.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.drill.life import ENDPOINTS, SAMPLES, Life, live
from tests.drill.proxy import Fault, Proxy, proxy
from tests.tiny_engine import TinyEngine, tiny_engine
from turngrad.errors import RunError
from turngrad.faults import LearnerError, LearnerFailed, LearnerLost, LearnerRefused, LearnerUnreachable

PASSING = (408, 409, 425, 429, 500, 502, 503, 504)
CONNECTION = ("refuse", "lose", "cut", "stall", "freeze", "twice", "late", "garbage")
FORGIVEN = ("unload_model", "accounts")
"""Nothing depends on the first; the SDK asks for the second again whatever the answer was."""


@dataclass(frozen=True)
class Case:
    """Faults of one life, and what it must lose: nothing, `samples` of its samples, or with `error` its learner."""

    faults: tuple[Fault, ...]
    samples: int = 0
    error: type[Exception] | tuple[type[Exception], ...] | None = None
    says: str = ""
    name: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.name or ", ".join(f"{fault.path} {fault.how} {fault.status}" for fault in self.faults)


def of_status(path: str, status: int) -> Case:
    """One answer of a status that passes. The SDK does not ask again after each of them; what is lost then is little."""
    case = Case((Fault(path, "status", status=status),))
    if path in (*FORGIVEN, "completions"):
        return case
    final = (409, 425) if path == "retrieve_future" else (425,)
    return replace(case, error=LearnerUnreachable, says=f"busy or down ({status}") if status in final else case


def of_connection(path: str, how: Any) -> Case:
    case = Case((Fault(path, how, seconds=2.0),))
    if how == "garbage" and path not in (*FORGIVEN, "completions"):
        # Where several requests are under way it may be the next one that says first what became of this one.
        return replace(case, error=(LearnerFailed, LearnerLost), says="JSON value" if path == "retrieve_future" else "text/html")
    return case


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyEngine]:
    with tiny_engine(tmp_path_factory.mktemp("engine")) as running:
        yield running


@pytest.fixture(scope="module")
def unbroken(engine: TinyEngine) -> Life:
    life = asyncio.run(live(engine, engine.url))
    assert (life.stage, life.error, life.steps, life.lost) == ("done", None, 3, [])
    return life


async def wrong(engine: TinyEngine, unbroken: Life, case: Case, *, limit: float = 500.0) -> str:
    """What one case lost beyond what it must, in words; empty where it is as it should be."""
    with proxy(engine.url, *(replace(fault) for fault in case.faults)) as broken:
        try:
            life = await asyncio.wait_for(live(engine, broken.url), limit)
        except TimeoutError:
            return f"{case}: still waiting after {limit:g} s"
        return "; ".join(f"{case}: {found}" for found in _differences(case, life, unbroken, broken))


def _differences(case: Case, life: Life, unbroken: Life, broken: Proxy) -> Iterator[str]:
    if case.error is not None:
        if not isinstance(life.error, case.error):
            yield f"lost no learner by {case.error} but came to {life.stage!r} with {life.error!r}"
        elif case.says not in str(life.error) or "\n" in str(life.error):
            yield f"says {str(life.error)!r}"
        return
    if life.stage != "done":
        yield f"ended in {life.stage!r} by {type(life.error).__name__}: {life.error}"
        return
    if not life.same_weights(unbroken):
        yield f"other weights after {life.steps} optimizer steps"
    if len(life.lost) != case.samples or not all(case.says in lost for lost in life.lost):
        yield f"lost {len(life.lost)} samples, not {case.samples}: {life.lost[:1]}"
    if not life.same_samples(unbroken):
        yield "other samples"
    if not any(seen.how != "pass" for seen in broken.seen):
        yield "met no fault"


async def check(engine: TinyEngine, unbroken: Life, cases: Sequence[Case]) -> None:
    found = await asyncio.gather(*(wrong(engine, unbroken, case) for case in cases))
    assert not list(filter(None, found))


DIAGONAL = [
    *(of_status(path, PASSING[index % len(PASSING)]) for index, path in enumerate(ENDPOINTS)),
    of_connection("forward_backward", "lose"),
    of_connection("optim_step", "lose"),
    of_connection("optim_step", "twice"),
    of_connection("retrieve_future", "cut"),
    of_connection("completions", "cut"),
    of_connection("save_weights", "lose"),
]


async def test_a_fault_at_each_endpoint_loses_what_it_must_and_no_update_counts_twice(engine: TinyEngine, unbroken: Life) -> None:
    """A short sample of the two tests below."""
    await check(engine, unbroken, DIAGONAL)


@pytest.mark.long
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_every_passing_status_at_every_endpoint(engine: TinyEngine, unbroken: Life, path: str) -> None:
    await check(engine, unbroken, [of_status(path, status) for status in PASSING])


@pytest.mark.long
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_every_way_to_lose_a_connection_at_every_endpoint(engine: TinyEngine, unbroken: Life, path: str) -> None:
    await check(engine, unbroken, [of_connection(path, how) for how in CONNECTION])


REFUSALS = {401: "refused the key", 402: "no credit", 403: "refused the key", 404: "does not know", 422: "refused the request"}


@pytest.mark.long
@pytest.mark.parametrize(("status", "says"), REFUSALS.items())
async def test_a_refusal_ends_the_learner_with_a_sentence_for_who_acts(
    engine: TinyEngine, unbroken: Life, status: int, says: str
) -> None:
    """But of a model that the service has known before, a 404 says that the session is gone: a saved state mends that."""
    paths = ["create_session", "create_model", "forward_backward", "optim_step", "save_weights", "save_weights_for_sampler"]
    if status == 402:
        # Later ones are waited out: see below.
        paths = paths[:2]
    cases = []
    for path in paths:
        lost = status == 404 and not path.startswith("create")
        expected = says if not lost else "its session may have expired"
        cases.append(
            Case((Fault(path, "status", status=status, times=9),), error=LearnerLost if lost else LearnerRefused, says=expected)
        )
    await check(engine, unbroken, cases)


@pytest.mark.long
async def test_an_empty_account_pauses_training_and_nothing_is_lost(engine: TinyEngine, unbroken: Life) -> None:
    paths = ("retrieve_future", "forward_backward", "optim_step", "save_weights", "save_weights_for_sampler", "load_weights")
    await check(engine, unbroken, [Case((Fault(path, "status", status=402, times=2),)) for path in paths])


@pytest.mark.parametrize(("status", "says"), [(401, "check FIREWORKS_API_KEY"), (402, "no credit left")])
async def test_an_account_that_cannot_sample_ends_the_run(engine: TinyEngine, unbroken: Life, status: int, says: str) -> None:
    await check(engine, unbroken, [Case((Fault("completions", "status", status=status),), error=RunError, says=says)])


def storm(seed: int, *, share: float = 0.3, length: int = 60) -> Case:
    """A life in which about `share` of the first `length` requests breaks, each in a way that the SDK gets over."""
    rng = random.Random(seed)
    ways: list[dict[str, Any]] = [{"how": "status", "status": status} for status in (408, 429, 500, 502, 503, 504)]
    ways += [{"how": how, "seconds": 0.5} for how in ("refuse", "lose", "cut", "stall", "freeze", "twice", "late")]
    places = sorted(rng.sample(range(length), int(share * length)))
    # A fault that is not its turn yet lets the request pass to the next, so all of them count every request.
    faults = [Fault("", skip=place, **rng.choice(ways)) for place in places]
    return Case(tuple(faults), name=f"storm {seed}")


@pytest.mark.long
@pytest.mark.parametrize("block", range(3))
async def test_a_storm_of_faults_at_all_endpoints_at_once_loses_nothing(engine: TinyEngine, unbroken: Life, block: int) -> None:
    await check(engine, unbroken, [storm(seed) for seed in range(8 * block, 8 * block + 8)])


@pytest.mark.long
async def test_thirty_seconds_of_silence_lose_nothing(engine: TinyEngine, unbroken: Life) -> None:
    paths = [path for path in ENDPOINTS if path != "unload_model"]
    await check(engine, unbroken, [Case((Fault(path, "freeze", seconds=30.0),)) for path in paths])


@pytest.mark.long
@pytest.mark.parametrize("how", ["status", "refuse", "stall", "garbage"])
async def test_heartbeats_that_never_arrive_end_nothing_by_themselves(engine: TinyEngine, unbroken: Life, how: Any) -> None:
    quiet = Fault("completions", "freeze", seconds=25.0)
    with proxy(engine.url, Fault("session_heartbeat", how, seconds=5.0, times=99), quiet) as broken:
        life = await live(engine, broken.url)
    assert broken.count("session_heartbeat", how) >= 1
    assert life.error is None
    assert life.same_weights(unbroken)


@pytest.mark.long
async def test_requests_that_overtake_one_another_and_come_twice_train_once_and_in_order(
    engine: TinyEngine, unbroken: Life
) -> None:
    cases = [
        Case((Fault("forward_backward", "late", times=9),), name="every forward_backward after its optim_step"),
        Case((Fault("optim_step", "twice", times=9), Fault("forward_backward", "twice", times=9)), name="all twice"),
        Case((Fault("forward_backward", "lose", times=3), Fault("optim_step", "lose", times=3)), name="answers lost in a row"),
        Case((Fault("retrieve_future", "twice", times=99),), name="every result fetched twice"),
        # The SDK waits twice as long after each, up to 30 s: twenty would be more than the learner's own limit.
        Case((Fault("retrieve_future", "lose", times=7),), name="seven results lost in a row"),
    ]
    await check(engine, unbroken, cases)


# -- answers that are whole and wrong ------------------------------------------------------------------------------------


def edit_choice(edit: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    """Changes the choice that carries a completion, inside its server-sent event."""

    def rewrite(body: bytes) -> bytes:
        head, _, rest = body.partition(b"\n\n")
        event = json.loads(head.removeprefix(b"data: "))
        edit(event["choices"][0])
        return b"data: " + json.dumps(event).encode() + b"\n\n" + rest

    return rewrite


def _content(choice: dict[str, Any]) -> list[dict[str, Any]]:
    return choice["logprobs"]["content"]


def _ids(choice: dict[str, Any]) -> list[Any]:
    return choice["raw_output"]["completion_token_ids"]


WRONG: dict[str, Callable[[bytes], bytes]] = {
    "null logprobs": edit_choice(lambda c: [entry.update(logprob=None, sampling_logprob=None) for entry in _content(c)]),
    "one null logprob": edit_choice(lambda c: _content(c)[-1].update(logprob=None, sampling_logprob=None)),
    "a logprob that is NaN": edit_choice(lambda c: _content(c)[0].update(logprob=float("nan"), sampling_logprob=float("nan"))),
    "a logprob that is -inf": edit_choice(lambda c: _content(c)[0].update(sampling_logprob=float("-inf"))),
    "a logprob that is text": edit_choice(lambda c: _content(c)[0].update(logprob="x", sampling_logprob="x")),
    "a logprob too few": edit_choice(lambda c: _content(c).pop()),
    "a logprob too many": edit_choice(lambda c: _content(c).append({"logprob": -1.0, "sampling_logprob": -1.0})),
    "no logprobs": edit_choice(lambda c: c.pop("logprobs")),
    "a token too few": edit_choice(lambda c: _ids(c).pop()),
    "a token too many": edit_choice(lambda c: _ids(c).append(7)),
    "more tokens than asked for": edit_choice(lambda c: (_ids(c).extend([7] * 99), _content(c).extend(_content(c)[:1] * 99))),
    "no tokens": edit_choice(lambda c: c.pop("raw_output")),
    "tokens that are text": edit_choice(lambda c: _ids(c).__setitem__(0, "w1")),
    "tokens that are null": edit_choice(lambda c: c["raw_output"].update(completion_token_ids=None)),
    "a negative token": edit_choice(lambda c: _ids(c).__setitem__(0, -1)),
    "a token beyond 32 bits": edit_choice(lambda c: _ids(c).__setitem__(0, 1 << 40)),
    "the prompt echoed": edit_choice(lambda c: c["raw_output"].update(completion_token_ids=[*range(1, 30), *_ids(c)])),
    "an unknown end": edit_choice(lambda c: c.update(finish_reason="content_filter")),
    "no end": edit_choice(lambda c: c.update(finish_reason=None)),
    "no choice": lambda body: b'data: {"choices": []}\n\ndata: [DONE]\n\n',
    "only the end mark": lambda body: b"data: [DONE]\n\n",
    "nothing": lambda body: b"",
    "half an event": lambda body: body[: len(body) // 2],
    "an event that is no object": lambda body: b"data: [1, 2]\n\n" + body,
    "an error in the stream": lambda body: b'data: {"error": {"message": "overloaded", "code": 503}}\n\n',
    "no UTF-8": lambda body: body.replace(b"text", b"t\xff\xfet"),
}
FEW = ("null logprobs", "a logprob too few", "the prompt echoed", "a token beyond 32 bits", "no choice")


async def _wrong_once(engine: TinyEngine, unbroken: Life, names: Sequence[str]) -> None:
    await check(engine, unbroken, [Case((Fault("completions", "rewrite", rewrite=WRONG[name]),), name=name) for name in names])


async def test_a_wrong_answer_to_a_sample_is_asked_for_again(engine: TinyEngine, unbroken: Life) -> None:
    await _wrong_once(engine, unbroken, FEW)


@pytest.mark.long
async def test_every_wrong_answer_to_a_sample_is_asked_for_again(engine: TinyEngine, unbroken: Life) -> None:
    await _wrong_once(engine, unbroken, list(WRONG))


@pytest.mark.long
async def test_wrong_answers_without_end_lose_each_sample_and_nothing_else(engine: TinyEngine, unbroken: Life) -> None:
    faults = {name: Fault("completions", "rewrite", rewrite=rewrite, times=999) for name, rewrite in WRONG.items()}
    await check(engine, unbroken, [Case((fault,), samples=SAMPLES, name=name) for name, fault in faults.items()])


def edit_result(edit: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    """Changes the result of a forward_backward; other results pass."""

    def rewrite(body: bytes) -> bytes:
        result = json.loads(body)
        if "loss_fn_outputs" not in result:
            return body
        edit(result)
        return json.dumps(result).encode()

    return rewrite


def _first(result: dict[str, Any]) -> dict[str, Any]:
    return result["loss_fn_outputs"][0]


MISSHAPEN: dict[str, Callable[[bytes], bytes]] = {
    "no logprobs": edit_result(lambda r: [output.clear() for output in r["loss_fn_outputs"]]),
    "logprobs too short": edit_result(lambda r: _first(r)["logprobs"].update(data=[-1.0], shape=[1])),
    "an output too few": edit_result(lambda r: r["loss_fn_outputs"].pop()),
    "no outputs": edit_result(lambda r: r.update(loss_fn_outputs=[])),
    "no metrics": edit_result(lambda r: r.update(metrics={})),
}


async def test_an_update_whose_figures_come_back_misshapen_has_still_happened_once(engine: TinyEngine, unbroken: Life) -> None:
    await check(
        engine,
        unbroken,
        [Case((Fault("retrieve_future", "rewrite", rewrite=r, times=999),), name=name) for name, r in MISSHAPEN.items()],
    )


async def test_a_learner_that_the_service_broke_is_a_sentence_that_a_saved_state_mends(engine: TinyEngine) -> None:
    """A poisoned client: the request that poisons it, and every one after it, name what happened."""
    with proxy(engine.url, Fault("optim_step", "garbage")) as broken:
        life = await live(engine, broken.url)
    assert isinstance(life.error, LearnerError)
    assert life.error.resumable
    assert "an update on 2 segments in 1 steps failed" in str(life.error)
