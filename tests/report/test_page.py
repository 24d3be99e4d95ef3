"""The file as a whole: one, small enough, and with nothing of an episode as markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.report.runs import finish, step_groups, write_run, write_step
from turngrad.config import config_from
from turngrad.errors import UserError
from turngrad.report.page import Report, script_json, watch
from turngrad.runlog import RunLog, read_config


class Tags(HTMLParser):
    """Every element, and the text of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag == "script"
        if self.inside:
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.scripts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self.inside = False


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    out = folder / "report.html"
    Report([write_run(folder / "run <b>")]).write(out)
    return out.read_text()


def parsed(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    return tags


def data(page: str) -> dict[str, Any]:
    return json.loads(parsed(page).scripts[0])


def test_the_page_loads_nothing_and_links_nowhere_outside(page: str) -> None:
    for tag, attributes in parsed(page).tags:
        assert tag not in ("link", "img", "iframe", "object", "base"), tag
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")


def test_only_the_pages_own_scripts_may_run(page: str) -> None:
    tags = parsed(page)
    policy = next(attrs["content"] for tag, attrs in tags.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.split("style-src")[0]
    for script in tags.scripts[1:]:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy


def test_nothing_of_an_episode_is_markup(page: str) -> None:
    tags = parsed(page)
    assert [tag for tag, _ in tags.tags].count("script") == 7
    assert not [tag for tag, _ in tags.tags if tag in ("b", "img")]
    # The page's own marks are filled in once: an episode that writes one of them stays an episode.
    assert [attrs.get("id") for tag, attrs in tags.tags].count("data") == 1
    assert data(page)["runs"][0]["rows"][2]["lastError"] == "server gone <b>"
    assert data(page)["runs"][0]["name"] == "run <b>"


def test_json_in_a_script_begins_no_tag() -> None:
    nasty = ["</script>", "<!--", "]]>", "&lt;"]
    text = script_json(nasty)
    assert not set(text) & set("<>&")
    assert json.loads(text) == nasty


def test_a_report_stays_below_its_limit_with_fewer_episodes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    out = tmp_path / "report.html"
    Report([run]).write(out)
    whole = out.stat().st_size
    assert whole < 10_000_000
    limit = whole - 3_000
    Report([run], max_bytes=limit).write(out)
    assert out.stat().st_size <= limit
    kept = [(page["kept"], page["total"]) for page in data(out.read_text())["pages"]]
    assert sum(kept for kept, _ in kept) < sum(total for _, total in kept)
    with pytest.raises(UserError, match="leaves nothing for episodes"):
        Report([run], max_bytes=1_000_000).write(out)


def test_a_run_without_any_step_yet_has_a_report(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    log = RunLog.create(config_from({"output_dir": folder}))
    log.write_config(config_from({"output_dir": folder, "base_model": "bfcl-starter", "backend": "local"}))
    log.close()
    assert Report([folder]).write(tmp_path / "report.html") is False
    assert data((tmp_path / "report.html").read_text())["pages"] == []


def test_two_runs_stand_side_by_side_and_three_do_not(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, steps=1) for name in ("one", "two")]
    Report(runs).write(tmp_path / "both.html")
    found = data((tmp_path / "both.html").read_text())
    assert [(run["label"], run["name"]) for run in found["runs"]] == [("A", "one"), ("B", "two")]
    assert {page["key"].split("/")[0] for page in found["pages"]} == {"0", "1"}
    with pytest.raises(UserError, match="3 were given"):
        Report([*runs, runs[0]])


def test_without_a_tokenizer_the_page_says_so_and_shows_ids(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=1, base_model=str(tmp_path / "gone"))
    Report([run]).write(tmp_path / "report.html")
    found = data((tmp_path / "report.html").read_text())
    assert "shown as ids" in found["runs"][0]["notes"][0]
    ids, texts = found["vocabulary"]
    assert texts == [f"{token_id} " for token_id in ids]


def test_watch_writes_whenever_the_run_has_moved_and_ends_with_it(tmp_path: Path) -> None:
    folder, out = write_run(tmp_path / "run", steps=1, planned=2), tmp_path / "report.html"
    said: list[str] = []
    seen: list[tuple[int, float | None]] = []

    def trainer() -> None:
        log = RunLog.reopen(folder)
        write_step(log, 2, step_groups(2))
        finish(log, 2)
        log.close()

    def say(text: str) -> None:
        said.append(text)
        found = data(out.read_text())
        seen.append((len([row for row in found["runs"][0]["rows"] if row["kind"] == "step"]), found["refresh"]))
        if len(said) == 1:
            threading.Thread(target=trainer).start()

    watch(Report([folder]), out, 0.2, say)
    assert said[-1] == "every run has finished"
    # A page that is being watched loads itself again; the last one does not.
    assert seen[0] == (1, 0.2)
    assert seen[-1] == (2, None)
    assert config_from(read_config(folder)).steps == 2


def test_watch_leaves_the_file_alone_while_nothing_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Enough(Exception): ...

    folder, out = write_run(tmp_path / "run", steps=1, planned=2), tmp_path / "report.html"
    written: list[int] = []

    def sleep(seconds: float) -> None:
        written.append(out.stat().st_mtime_ns)
        if len(written) == 5:
            raise Enough

    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(Enough):
        watch(Report([folder]), out, 10, lambda text: None)
    assert len(set(written)) == 1


def test_a_report_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the report"):
        Report([write_run(tmp_path / "run", steps=1)]).write(tmp_path / "file" / "report.html")


def test_every_asset_is_in_the_page(page: str) -> None:
    for name in ("drawTop", "drawCharts", "drawEpisode", "route", "labelled"):
        assert re.search(rf"function {name}\b", page)
