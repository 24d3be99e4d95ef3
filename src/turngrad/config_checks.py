"""Settings checked together: what does not fit, in one sentence each.

In: a config whose every setting is filled in. Out: sentences that name the flags to change, none where all is well.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from turngrad.checkpoints import is_state_path

if TYPE_CHECKING:
    from turngrad.config import TrainConfig


def problems_of(config: TrainConfig) -> list[str]:
    """One sentence for each setting that does not fit the others, by its flag; the config is filled in."""
    problems = _problems_of_environment(config)
    assert config.max_tokens is not None
    assert config.max_seq_len is not None
    if config.on_fireworks and not os.environ.get("FIREWORKS_API_KEY"):
        problems.append("FIREWORKS_API_KEY is not set; export it, or train on this machine with --backend local")
    if config.backend == "local" and config.base_url:
        problems.append("--base-url names a service; leave it out with --backend local")
    if config.base_url and not config.base_url.rstrip("/").endswith("/training/v1/serverless"):
        problems.append(f"--base-url must end in /training/v1/serverless, got {config.base_url!r}")
    if config.resume_step is not None and not is_state_path(config.resume_from or ""):
        problems.append("--resume-step is for --resume-from account/run-.../name, a state on the service")
    if config.max_tokens >= config.max_seq_len:
        problems.append(
            f"--max-tokens {config.max_tokens} leaves no room for a prompt in --max-seq-len {config.max_seq_len}; "
            "raise --max-seq-len or lower --max-tokens"
        )
    if config.train_tasks is not None and config.tasks_per_step is not None and config.train_tasks < config.tasks_per_step:
        problems.append(f"--train-tasks {config.train_tasks} is less than --tasks-per-step {config.tasks_per_step}")
    return problems


def _problems_of_environment(config: TrainConfig) -> list[str]:
    remote = config.mcp is not None and config.mcp.startswith(("http://", "https://"))
    wrong = {
        "--env-path needs --tasks-file, the tasks to play in it": config.env_path and not config.tasks_file,
        "--mcp needs --tasks-file, a .jsonl of prompts and graders": config.mcp and not config.tasks_file,
        "--mcp and --env-path are two environments; leave one out": config.mcp and config.env_path,
        "--mcp has a runtime of its own; leave out --runtime": config.mcp and config.runtime != "auto",
        "--mcp-header is for an https:// server; a command gets its secrets by --mcp-env": config.mcp_header and not remote,
        "--mcp-env and --mcp-files are for an --mcp command": (config.mcp_env or config.mcp_files) and (remote or not config.mcp),
        "--mcp-shared is for an --mcp command; a URL is shared by nature": config.mcp_shared and (remote or not config.mcp),
        "--runtime-url needs --runtime url": config.runtime_url and config.runtime != "url",
        "--runtime url needs --runtime-url, such as tcp://127.0.0.1:8765": config.runtime == "url" and not config.runtime_url,
        "--runtime-image needs --runtime docker, modal or daytona": config.runtime_image
        and config.runtime not in ("docker", "modal", "daytona"),
        "--runtime is for an environment of your own: it needs --tasks-file": config.runtime != "auto" and not config.tasks_file,
    }
    return [problem for problem, holds in wrong.items() if holds]
