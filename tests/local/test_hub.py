"""Hub ids: what the cache holds is used without a network, the rest is downloaded or said in one sentence."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.local.tiny import write_folder

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "someone/tiny-model"
PROGRAM = """
import sys
from turngrad.local.models import resolve_model
try:
    print(resolve_model(sys.argv[1]))
except ValueError as error:
    sys.exit(str(error))
"""


def resolve(home: Path, name: str, endpoint: str = "http://127.0.0.1:9") -> subprocess.CompletedProcess[str]:
    """`resolve_model` in a process of its own: the hub's client reads its environment when it is imported."""
    env = {**os.environ, "HF_HOME": str(home), "HF_ENDPOINT": endpoint, "NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_XET": "1"}
    env.pop("HF_HUB_CACHE", None)
    return subprocess.run([sys.executable, "-c", PROGRAM, name], env=env, capture_output=True, text=True, timeout=60)


def cache(home: Path, *without: str) -> Path:
    """A hub cache that holds the tiny model, as a download leaves it."""
    repository = home / "hub" / "models--someone--tiny-model"
    snapshot = repository / "snapshots" / COMMIT
    write_folder(snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    for name in without:
        (snapshot / name).unlink()
    return snapshot


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as one download asks for."""

    folder: Path
    asked: list[str]

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        self.asked.append(self.path)
        path = self.path.partition("?")[0]
        start = f"/{NAME}/resolve/{COMMIT}/"
        headers = {"X-Repo-Commit": COMMIT}
        if path.startswith(start):
            file = self.folder / path.removeprefix(start)
            body, status = (file.read_bytes(), 200) if file.is_file() else (b"", 404)
            headers["ETag"] = f'"{hashlib.sha1(body).hexdigest()}"'
        elif path.startswith(f"/api/models/{NAME}"):
            files = sorted(p.name for p in self.folder.iterdir())
            tree = [{"type": "file", "path": f, "size": (self.folder / f).stat().st_size, "oid": "0" * 40} for f in files]
            siblings = [{"rfilename": f} for f in files]
            info = tree if "/tree/" in path else {"id": NAME, "sha": COMMIT, "siblings": siblings}
            body, status = json.dumps(info).encode(), 200
        else:
            body, status = b"{}", 404
            headers["X-Error-Code"] = "RepoNotFound"
        self.send_response(status)
        for key, value in (*headers.items(), ("Content-Length", str(len(body)))):
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    Hub.folder, Hub.asked = write_folder(tmp_path / "served"), []
    (Hub.folder / "pytorch_model.bin").write_bytes(b"the same weights again")
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_cached_model_needs_no_network(tmp_path: Path) -> None:
    snapshot = cache(tmp_path)
    assert resolve(tmp_path, NAME).stdout.strip() == str(snapshot)


@pytest.mark.parametrize("without", [("config.json",), ("model.safetensors",)])
def test_without_a_network_one_sentence_says_what_to_do(tmp_path: Path, without: tuple[str, ...]) -> None:
    cache(tmp_path, *without)
    refused = resolve(tmp_path, NAME)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1, refused.stderr
    assert refused.stderr.startswith(f"--base-model {NAME}: ")
    assert f"hf download {NAME}" in refused.stderr
    assert str(tmp_path / "hub") in refused.stderr


def test_a_model_that_is_not_cached_is_downloaded_once_and_weights_in_one_form_alone(tmp_path: Path, hub: str) -> None:
    first = resolve(tmp_path / "home", NAME, hub)
    folder = Path(first.stdout.strip())
    assert (folder / "model.safetensors").read_bytes() == (Hub.folder / "model.safetensors").read_bytes(), first.stderr
    assert not (folder / "pytorch_model.bin").exists()
    Hub.asked.clear()
    (Hub.folder / "config.json").unlink()
    assert resolve(tmp_path / "home", NAME, hub).stdout == first.stdout
    assert not any(NAME in path for path in Hub.asked)


def test_a_model_the_hub_does_not_have_is_one_sentence(tmp_path: Path, hub: str) -> None:
    refused = resolve(tmp_path / "home", "someone/no-such-model", hub)
    assert refused.stderr.count("\n") == 1, refused.stderr
    assert "neither a folder here nor a model the hub shows you" in refused.stderr


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from turngrad.local.models import resolve_model

    write_folder(tmp_path / "someone" / "tiny-model")
    monkeypatch.chdir(tmp_path)
    assert resolve_model(NAME) == Path(NAME)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    from turngrad.local.models import resolve_model

    folder = write_folder(tmp_path / "sharded")
    shards = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(shards))
    with pytest.raises(ValueError, match=r"no model-00002-of-00002\.safetensors in"):
        resolve_model(str(folder))
