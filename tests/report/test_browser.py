"""The report in a real browser: it draws, opens, moves, and an attack in an episode does nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.report.browser import Browser, browser
from tests.report.runs import write_run
from turngrad.report.page import Report

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="module")]

ATTACK = "attack_1 <script>window.hacked = 1</script>"
SHOWN = "document.querySelector('article')?.getAttribute('aria-label')"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    Report([write_run(folder / "run")]).write(folder / "report.html")
    return folder / "report.html"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    async with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


async def test_every_curve_and_table_is_drawn_without_a_request_or_an_error(page: Browser, report: Path) -> None:
    await page.open(report)
    await page.until("document.querySelectorAll('.chart .main-svg').length >= 12")
    assert await page.evaluate("document.querySelectorAll('#steps tbody tr').length") == 7
    assert await page.evaluate("[...document.querySelectorAll('#tasks tbody th')].map(e => e.textContent).includes('rising_2')")
    assert page.problems == []
    assert {url.split(":")[0] for url in page.requests} <= {"file", "about"}


async def test_a_click_on_a_point_opens_the_episodes_of_its_step(page: Browser, report: Path) -> None:
    await page.open(report)
    await page.until("document.querySelectorAll('[data-key=reward] .scatterlayer .point').length > 3")
    point = await page.evaluate(
        """(() => {
          const plot = document.querySelector('[data-key=reward] .plot');
          plot.scrollIntoView({ block: 'center' });
          const trace = plot.data.findIndex((each) => each.name === 'training');
          const { xaxis, yaxis } = plot._fullLayout;
          const box = plot.getBoundingClientRect();
          return [box.x + xaxis._offset + xaxis.l2p(2), box.y + yaxis._offset + yaxis.l2p(plot.data[trace].y[1])];
        })()"""
    )
    await page.point(*point)
    await page.until("document.querySelector('[data-key=reward] .hovertext')")
    assert "training, step 2" in await page.evaluate("document.querySelector('[data-key=reward] .hovertext').textContent")
    await page.click(*point)
    await page.until("location.hash === '#/0/step-0002'")
    await page.until("document.querySelector('article')")
    assert await page.evaluate("document.getElementById('overview').hidden")


async def test_keys_move_between_episodes_and_steps_and_back(page: Browser, report: Path) -> None:
    await page.open(report, "#/0/step-0002")
    await page.until(f"{SHOWN} === {ATTACK + ', attempt 0'!r}")
    await page.press("ArrowRight")
    await page.until(f"{SHOWN} === {ATTACK + ', attempt 1'!r}")
    await page.press("ArrowLeft")
    await page.until(f"{SHOWN} === {ATTACK + ', attempt 0'!r}")
    await page.press("ArrowRight", shift=True)
    await page.until("location.hash.startsWith('#/0/step-0003')")
    await page.press("ArrowLeft", shift=True)
    await page.until("location.hash.startsWith('#/0/step-0002')")
    await page.press("Escape")
    await page.until("document.getElementById('viewer').hidden && !document.getElementById('overview').hidden")


async def test_an_episode_shows_its_messages_mask_and_calls(page: Browser, report: Path) -> None:
    await page.open(report, "#/0/step-0002?task=rising_2")
    await page.until(f"{SHOWN} === 'rising_2, attempt 0'")
    text = await page.evaluate("document.querySelector('article').innerText")
    for part in (
        "reward 1.000",
        "trained with advantage",
        "system, ",
        "user, ",
        "tool, ",
        "call ls",
        "New segment before turn 3: length",
    ):
        assert part in text, part
    tokens = "[...document.querySelectorAll('article .tokens .tok"
    assert await page.evaluate(f"{tokens}.trained')].map(e => e.textContent).join('').includes('It is done.')")
    assert not await page.evaluate(f"{tokens}:not(.out)')].some(e => e.classList.contains('trained'))")
    for key, colour in (("l", "logprob"), ("a", "advantage"), ("m", "mask")):
        await page.press(key)
        await page.until(f"document.getElementById('viewer').dataset.colour === '{colour}'")


async def test_a_hostile_episode_is_text(page: Browser, report: Path) -> None:
    await page.open(report, "#/0/step-0002")
    await page.until(f"{SHOWN} === {ATTACK + ', attempt 0'!r}")
    assert await page.evaluate("window.hacked === undefined")
    assert await page.evaluate("document.querySelectorAll('article img, article script, article b').length") == 0
    text = await page.evaluate("document.querySelector('article').textContent")
    assert "<script>window.hacked = 1</script>" in text
    assert "\\u202e" in text
    assert "\u202e" not in text
    assert page.problems == []


@pytest.mark.parametrize(("width", "dark"), [(390, False), (390, True), (1280, True)])
@pytest.mark.parametrize("place", ["", "#/0/step-0002"])
async def test_nothing_is_wider_than_the_screen_and_colours_follow_it(
    page: Browser, report: Path, width: int, dark: bool, place: str
) -> None:
    await page.open(report, place, width=width, dark=dark)
    await page.until("document.querySelector('article') || document.querySelectorAll('.main-svg').length > 12")
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    red = await page.evaluate("Number(getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0])")
    assert (red < 60) == dark


async def test_a_reader_without_sight_finds_names_headings_and_figures(page: Browser, report: Path) -> None:
    await page.open(report)
    await page.until("document.querySelectorAll('.main-svg').length > 12")
    assert await page.evaluate(
        "[...document.querySelectorAll('.plot')].every(e => e.getAttribute('aria-label').includes('at step'))"
    )
    assert await page.evaluate("[...document.querySelectorAll('button, a')].every(e => (e.ariaLabel || e.textContent).trim())")
    assert await page.evaluate("document.querySelectorAll('table caption').length === document.querySelectorAll('table').length")
