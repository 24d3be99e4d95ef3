"""Secrets stay out of what is printed and written."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from turngrad import redaction
from turngrad.cli import run_script
from turngrad.config import TrainConfig
from turngrad.errors import UserError
from turngrad.mcp_world.server import server_from_flags
from turngrad.redaction import Redacting, hidden_headers, hidden_variables, keep_secret, redacted, redacting
from turngrad.runlog import RunLog, read_rows


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_told", {})


@pytest.mark.parametrize(
    "name",
    ["FIREWORKS_API_KEY", "HUD_API_KEY", "OPENAI_API_KEY", "WANDB_API_KEY", "HF_TOKEN", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY"],
)
def test_what_an_environment_variable_called_like_a_key_holds_is_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "planted-0123")
    assert redacted("no such key: planted-0123.") == f"no such key: [{name}]."


def test_other_variables_and_short_values_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONKEY", "a-long-animal")
    monkeypatch.setenv("SOME_KEY", "local")
    monkeypatch.setenv("KEYBOARD", "qwerty-layout")
    assert redacted("a-long-animal on local with qwerty-layout") == "a-long-animal on local with qwerty-layout"


def test_a_secret_that_holds_another_is_replaced_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "planted-0123")
    monkeypatch.setenv("B_KEY", "planted-0123-and-more")
    assert redacted("planted-0123-and-more planted-0123") == "[B_KEY] [A_KEY]"


def test_a_secret_is_found_as_json_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", 'quote"back\\slash')
    assert redacted(json.dumps({"said": 'it is quote"back\\slash'})) == '{"said": "it is [A_KEY]"}'


def test_a_header_is_hidden_with_the_words_that_are_long_enough() -> None:
    keep_secret("Authorization", "Bearer planted-0123")
    assert redacted("got Bearer planted-0123") == "got [Authorization]"
    assert redacted("token planted-0123, Bearer missing") == "token [Authorization], Bearer missing"


def test_headers_and_variables_are_kept_by_name_where_they_may_be_a_key() -> None:
    assert hidden_headers(("Authorization: Bearer planted", "X-Key: ${X}")) == ["Authorization: ${AUTHORIZATION}", "X-Key: ${X}"]
    variables = ("API_TOKEN=ab", "DSN=planted-long", "PASSED_ON", "A=${B}", "MODE=fast", "STORE={workdir}/memory.jsonl")
    kept = ["API_TOKEN=${API_TOKEN}", "DSN=${DSN}", "PASSED_ON", "A=${B}", "MODE=fast", "STORE={workdir}/memory.jsonl"]
    assert hidden_variables(variables) == kept


def test_what_the_flags_of_an_mcp_server_say_is_hidden_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "planted-by-reference")
    server_from_flags("server", variables=("ACCESS=planted-by-value", "OTHER=${MINE}", "ROOT=/data/planted-path"))
    assert redacted("planted-by-value planted-by-reference /data/planted-path") == "[ACCESS] [OTHER] /data/planted-path"
    server_from_flags("https://server", headers=("Authorization: Bearer planted-in-header",))
    assert redacted("refused planted-in-header") == "refused [Authorization]"


def test_a_variable_that_is_not_set_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is how resume asks for a value that the run folder does not hold."""
    monkeypatch.delenv("DSN", raising=False)
    for variables in (hidden_variables(("DSN=planted-long",)), ("DSN",)):
        with pytest.raises(UserError, match="variable DSN is not set"):
            server_from_flags("server", variables=tuple(variables))


def test_a_malformed_header_is_refused_without_being_shown() -> None:
    with pytest.raises(UserError, match="--mcp-header: expected 'Name: value'") as caught:
        server_from_flags("https://server", headers=("Bearer planted-0123",))
    assert "planted" not in str(caught.value)


def test_rows_and_settings_on_disk_hold_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIREWORKS_API_KEY", "planted-0123")
    config = TrainConfig(output_dir=tmp_path / "run", mcp_env=("TOKEN=planted-0456",), mcp_header=("X: planted-0789",))
    log = RunLog.create(config)
    log.write_config(config)
    log.metrics({"last_error": "401: planted-0123 is not valid"})
    log.close()
    assert read_rows(log.folder / "metrics.jsonl") == [{"last_error": "401: [FIREWORKS_API_KEY] is not valid"}]
    assert json.loads((log.folder / "config.json").read_text())["mcp_env"] == ["TOKEN=${TOKEN}"]
    assert not [path for path in log.folder.rglob("*") if path.is_file() and b"planted" in path.read_bytes()]


def test_a_script_prints_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "planted-0123")
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)

    def script(arguments: list[str]) -> int:
        print("with planted-0123")
        raise UserError("planted-0123 was refused")

    assert run_script(script) == 2
    assert out.getvalue() == "with [OPENAI_API_KEY]\n"
    assert err.getvalue() == "error: [OPENAI_API_KEY] was refused\n"


def test_a_redacting_stream_is_otherwise_the_stream_it_stands_for() -> None:
    stream = io.StringIO()
    assert redacting(None) is None
    made = Redacting(stream)
    made.writelines(["a", "b"])
    made.flush()
    assert (stream.getvalue(), made.isatty()) == ("ab", False)
