"""The report in a real browser: it draws, opens, moves, and an attack in an episode does nothing."""

from __future__ import annotations

import asyncio
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


async def test_what_stopped_an_attempt_stands_on_its_line(page: Browser, report: Path) -> None:
    await page.open(report, "#/0/step-0002")
    await page.until("document.querySelector('article')")
    marks = "[...document.querySelectorAll('.list .mark')].filter((mark) => mark.textContent)"
    assert await page.evaluate(f"{marks}.map((mark) => mark.textContent)") == ["malformed", "tool_server", "malformed"]
    assert await page.evaluate(f"{marks}.every((mark) => mark.offsetHeight < 30)")


async def test_a_press_on_a_name_hides_its_line_and_shows_it_again(page: Browser, report: Path) -> None:
    await page.open(report)
    name = "document.querySelector('[data-key=reward] .names button')"
    line = "document.querySelector('[data-key=reward] .plot').data.find((each) => each.name === 'training').visible"
    await page.until("document.querySelectorAll('[data-key=reward] .main-svg').length")
    assert await page.evaluate(f"{name}.textContent") == "training"
    for visible in (False, True):
        await page.evaluate(f"{name}.click()")
        assert await page.evaluate(line) is visible
        assert await page.evaluate(f"{name}.ariaPressed") == str(visible).lower()


async def test_what_a_call_was_parsed_as_opens_under_it(page: Browser, report: Path) -> None:
    await page.open(report, "#/0/step-0002?task=rising_2")
    await page.until("document.querySelector('article .call')")
    assert not await page.evaluate("document.querySelector('article .call').open")
    await page.evaluate("document.querySelector('article .call summary').click()")
    assert await page.evaluate("document.querySelector('article .call').innerText.includes('\"path\"')")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched")
    Report([write_run(folder / "run", planned=9)]).write(folder / "report.html", refresh_seconds=1)
    return folder / "report.html"


async def test_a_page_that_loads_itself_again_keeps_the_readers_place(page: Browser, watched: Path) -> None:
    await page.open(watched)
    await page.until("document.querySelectorAll('#tasks tbody tr').length")
    await page.evaluate("document.querySelector('[data-key=reward] .names button').click()")
    await page.evaluate(
        "[...document.querySelectorAll('#tasks .filters button')].find((e) => e.textContent.startsWith('always')).click()"
    )
    rows = await page.evaluate("document.querySelectorAll('#tasks tbody tr').length")
    await page.evaluate("scrollTo(0, 700); window.before = true")
    await page.until("window.before === undefined && document.querySelectorAll('#tasks tbody tr').length")
    await page.until("scrollY === 700")
    assert await page.evaluate("document.querySelectorAll('#tasks tbody tr').length") == rows
    assert await page.evaluate("document.querySelector('#tasks [aria-pressed=true]').textContent.startsWith('always')")
    assert await page.evaluate("document.querySelector('[data-key=reward] .names button').ariaPressed") == "false"


async def test_an_episode_that_is_read_is_not_loaded_again_and_the_overview_after_it_is(page: Browser, watched: Path) -> None:
    await page.open(watched, "#/0/step-0002")
    await page.until(SHOWN)
    await page.evaluate("scrollTo(0, 300); window.before = true")
    await asyncio.sleep(1.6)
    assert await page.evaluate("window.before === true && scrollY === 300")
    await page.press("Escape")
    await page.until("window.before === undefined && document.getElementById('overview')?.hidden === false")
    assert await page.evaluate("document.getElementById('viewer').hidden")


CONTRAST = """(() => {
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = colour;
    probe.fillRect(0, 0, 1, 1);
    return [...probe.getImageData(0, 0, 1, 1).data].map((value) => value / 255);
  };
  const over = (top, below) => top.slice(0, 3).map((value, i) => value * top[3] + below[i] * (1 - top[3]));
  const light = (colour) => {
    const [r, g, b] = colour.map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (node) => {
    const above = node.parentElement ? behind(node.parentElement) : [1, 1, 1];
    return over(rgba(getComputedStyle(node).backgroundColor), above);
  };
  return [...document.querySelectorAll("body *")]
    .filter((node) => node.checkVisibility() && !node.closest("svg, .unseen, .skip, :disabled"))
    .filter((node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()))
    .map((node) => {
      const below = behind(node);
      const pair = [light(over(rgba(getComputedStyle(node).color), below)), light(below)].sort((a, b) => b - a);
      const what = `${node.tagName}.${node.className}: ${node.textContent.slice(0, 30)}`;
      return { ratio: (pair[0] + 0.05) / (pair[1] + 0.05), what };
    })
    .filter((each) => each.ratio < 4.5);
})()"""


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("place", ["", "#/0/step-0002?task=rising_2"])
async def test_every_text_stands_out_from_what_is_behind_it(page: Browser, report: Path, dark: bool, place: str) -> None:
    """WCAG AA: 4.5 to 1, whatever the tokens are coloured by."""
    await page.open(report, place, dark=dark)
    await page.until("document.querySelector('article') || document.querySelectorAll('.main-svg').length > 12")
    for key in "mla" if place else "m":
        await page.press(key)
        assert await page.evaluate(CONTRAST) == []


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
    await page.evaluate("document.querySelector('.skip').click()")
    await page.until("document.activeElement.id === 'overview'")


async def test_the_tab_says_what_is_read(page: Browser, report: Path) -> None:
    await page.open(report, "#/0/step-0002?task=rising_2")
    await page.until("document.title === 'step 2, rising_2, attempt 0, reward 1.000 - run - turngrad'")
    await page.press("Escape")
    await page.until("document.title === 'run - turngrad'")
