"""The engine as a process: it says when it answers, binds loopback, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.local.process import engine_process
from tests.local.tiny import config, write_folder


def start(model: object, state_dir: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "turngrad.local.server", "--model", str(model), "--state-dir", str(state_dir), *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def gone_within(pid: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_it_is_ready_when_it_says_so_and_answers_on_loopback_alone(tiny_folder: Path, tmp_path: Path) -> None:
    with engine_process(tiny_folder, tmp_path) as process:
        assert process.url.startswith("http://127.0.0.1:")
        assert process.url.endswith("/training/v1/serverless")
        with urllib.request.urlopen(process.root + "/health", timeout=5) as answer:
            assert answer.read() == b'{"status":"ready"}'
        port = int(process.root.rpartition(":")[2])
        outside = socket.gethostbyname(socket.gethostname())
        if not outside.startswith("127."):
            with pytest.raises(OSError, match="refused"):
                socket.create_connection((outside, port), timeout=2)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(process.root + "/somewhere", timeout=5)
        assert refused.value.code == 404


def test_sigterm_ends_it_with_code_0_and_silence(tiny_folder: Path, tmp_path: Path) -> None:
    process = start(tiny_folder, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("TURNGRAD_ENGINE http")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_its_parent_however_that_goes(tiny_folder: Path, tmp_path: Path, how: signal.Signals) -> None:
    program = f"""
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-m", "turngrad.local.server", "--model", {str(tiny_folder)!r},
                                  "--state-dir", {str(tmp_path)!r}, "--die-with-parent"], stdout=subprocess.PIPE, text=True)
        child.stdout.readline()
        print(child.pid, flush=True)
        time.sleep(60)
    """
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.send_signal(how)
    parent.wait(timeout=5)
    assert gone_within(pid, 3)


def test_it_survives_the_end_of_the_thread_that_started_it(tiny_folder: Path, tmp_path: Path) -> None:
    import threading

    started: list[subprocess.Popen[str]] = []
    thread = threading.Thread(target=lambda: started.append(start(tiny_folder, tmp_path, "--die-with-parent")))
    thread.start()
    thread.join()
    [process] = started
    assert process.stdout is not None
    url = process.stdout.readline().split()[1]
    time.sleep(0.7)
    with urllib.request.urlopen(url.partition("/training/")[0] + "/health", timeout=5) as answer:
        assert answer.status == 200
    process.terminate()
    process.communicate(timeout=20)


def test_ctrl_c_is_left_to_the_parent(tiny_folder: Path, tmp_path: Path) -> None:
    with engine_process(tiny_folder, tmp_path) as process:
        process.popen.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.popen.poll() is None
        assert process.post("/api/v1/create_session", {})["session_id"].startswith("ts-")


def test_a_port_in_use_is_one_sentence(tiny_folder: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = start(tiny_folder, tmp_path, "--port", port)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert err.count("\n") == 1
    assert port in err


@pytest.mark.parametrize("trouble", ["absent", "no tokenizer", "gpt2", "torn weights", "other weights"])
def test_a_model_that_cannot_be_served_is_one_sentence_and_code_1(tmp_path: Path, trouble: str) -> None:
    folder = tmp_path / "model"
    expected = trouble
    if trouble == "absent":
        expected = "no such folder"
    else:
        write_folder(folder)
    if trouble == "no tokenizer":
        (folder / "tokenizer.json").unlink()
    elif trouble == "gpt2":
        (folder / "config.json").write_text(json.dumps({**config(), "model_type": "gpt2"}))
    elif trouble == "torn weights":
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-40])
        expected = "model.safetensors"
    elif trouble == "other weights":
        (folder / "config.json").write_text(json.dumps({**config(), "num_hidden_layers": 3}))
        expected = "missing"
    process = start(folder, tmp_path / "state")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out == ""
    assert err.count("\n") == 1, err
    assert expected in err
