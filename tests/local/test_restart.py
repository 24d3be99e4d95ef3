"""A killed engine loses no state that was saved: a new one on the same folder resumes it bit for bit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from fireworks.training.sdk import AdamParams, FiretitanServiceClient

from tests.local.process import engine_process
from tests.local.test_conformance import datum_of, logprobs_of, weighed

os.environ.setdefault("TINKER_TELEMETRY", "0")


def test_a_state_saved_before_kill_9_resumes_in_a_new_engine(tiny_folder: Path, tmp_path: Path) -> None:
    data = [datum_of([5, 6, 7, 8, 9, 10], 2, [-5.0] * 4, 1.0)]
    targets = [weighed(datum) for datum in data]
    with engine_process(tiny_folder, tmp_path) as process:
        service = FiretitanServiceClient(api_key="local", base_url=process.url)
        run = service.create_lora_training_client(base_model=str(tiny_folder), rank=4)
        run.forward_backward(data, "ppo").result()
        run.optim_step(AdamParams(learning_rate=1e-2)).result()
        path = run.save_state("before-the-kill").result().path
        saved = logprobs_of(run.forward(targets, "cross_entropy").result())
        run.forward_backward(data, "ppo").result()
        run.optim_step(AdamParams(learning_rate=1e-2)).result()
        ahead = logprobs_of(run.forward(targets, "cross_entropy").result())
        process.popen.send_signal(signal.SIGKILL)
        process.popen.wait(timeout=10)
    with engine_process(tiny_folder, tmp_path) as process:
        service = FiretitanServiceClient(api_key="local", base_url=process.url)
        resumed = service.create_training_client_from_state_with_optimizer(path)
        assert logprobs_of(resumed.forward(targets, "cross_entropy").result()) == saved
        resumed.forward_backward(data, "ppo").result()
        assert resumed.optim_step(AdamParams(learning_rate=1e-2)).result().metrics["optimizer_step"] == 2
        assert logprobs_of(resumed.forward(targets, "cross_entropy").result()) == ahead


def test_a_torn_state_is_refused_by_the_file_and_the_engine_goes_on(tiny_folder: Path, tmp_path: Path) -> None:
    with engine_process(tiny_folder, tmp_path) as process:
        service = FiretitanServiceClient(api_key="local", base_url=process.url)
        run = service.create_lora_training_client(base_model=str(tiny_folder), rank=4)
        good = run.save_state("good").result().path
        torn = run.save_state("torn").result().path
        _, run_id, name = torn.split("/")
        weights = process.state_dir / run_id / "states" / name / "weights.safetensors"
        weights.write_bytes(weights.read_bytes()[:-8])
        with pytest.raises(Exception, match=r"weights\.safetensors is torn or altered"):
            run.load_state_with_optimizer(torn).result()
        run.load_state_with_optimizer(good).result()
