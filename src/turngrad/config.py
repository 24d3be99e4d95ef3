"""Every setting of a run: its unit, bound, default and help.

One pydantic model behind the flags of `scripts/train.py`, the file of `--config`, and the `config.json` of a run folder.
Settings whose good value depends on where the weights live are None until `resolve` fills them from `PRESETS`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from turngrad.config_checks import problems_of
from turngrad.errors import UserError
from turngrad.presets import PRESETS

BUILT_IN_TASKSETS = (
    "arithmetic",
    "bfcl-multi-turn",
    "bfcl-multi-turn-miss-func",
    "bfcl-multi-turn-miss-param",
    "bfcl-multi-turn-long-context",
    "bfcl-multi-turn-all",
    "bfcl-synthetic",
)
ENVIRONMENT_SETTINGS = (
    "tasks_file",
    "env_path",
    "runtime",
    "runtime_url",
    "runtime_image",
    "mcp",
    "mcp_header",
    "mcp_env",
    "mcp_files",
    "mcp_shared",
    "tools",
    "exclude_tools",
)
"""The settings that name an environment of the user's own."""
FIREWORKS_URL = "https://api.fireworks.ai/training/v1/serverless"

Backend = Literal["auto", "fireworks", "local"]
Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]


class TrainConfig(BaseModel):
    """Train a language model on multi-turn tool use.

    Without a key the model is small, runs on this machine and learns in minutes; with FIREWORKS_API_KEY set, the same
    command trains on Fireworks. Settings whose default is None take the one in brackets that fits the backend and the
    taskset (bfcl / arithmetic / your own).
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    taskset: str = Field(
        default="bfcl-multi-turn",
        description=f"What to train on: {', '.join(BUILT_IN_TASKSETS)}; or, with HUD_API_KEY, a HUD taskset by name or id.",
    )
    tasks_file: Path | None = Field(
        default=None,
        description="Your own tasks instead of --taskset: HUD tasks (.py, a folder, .json, .jsonl), or with --mcp a .jsonl of "
        "prompts and graders.",
    )
    env_path: Path | None = Field(default=None, description="Your own HUD environment, a .py file or a folder, as it is.")
    runtime: Literal["auto", "local", "pool", "subprocess", "url", "docker", "modal", "daytona"] = Field(
        default="auto",
        description="Where your environment runs. auto: server processes shared by all rollouts if it is made with "
        "turngrad.envkit, else a fresh copy in this process for every rollout.",
    )
    runtime_url: str | None = Field(
        default=None, description="With --runtime url: an environment served already, tcp://host:port."
    )
    runtime_image: str | None = Field(
        default=None, description="With --runtime docker, modal or daytona: the image, for tasks that name none."
    )
    mcp: str | None = Field(
        default=None,
        description="A plain MCP server as the environment: a command such as 'uvx mcp-server-time', or an https:// URL.",
    )
    mcp_header: tuple[str, ...] = Field(
        default=(), description="HTTP headers for --mcp, 'Name: value'; ${NAME} stands for an environment variable, kept secret."
    )
    mcp_env: tuple[str, ...] = Field(
        default=(), description="Environment of the --mcp command: NAME=value, or NAME to pass it on. It gets no other secrets."
    )
    mcp_files: Path | None = Field(
        default=None,
        description="Each --mcp process starts in a fresh folder, {workdir} in its command and tasks; copy this one into it.",
    )
    mcp_shared: bool = Field(
        default=False, description="One MCP server for all rollouts, if it keeps no state; else each rollout starts its own."
    )
    tools: tuple[str, ...] = Field(default=(), description="Offer only these tools; * and ? match any letters.")
    exclude_tools: tuple[str, ...] = Field(default=(), description="Offer all tools but these; * and ? match any letters.")
    backend: Backend = Field(
        default="auto",
        description="Where the weights live. auto: Fireworks when FIREWORKS_API_KEY is set, else the engine on this machine.",
    )
    base_url: str | None = Field(
        default=None, description="A training service other than Fireworks' own: a URL that ends in /training/v1/serverless."
    )
    base_model: str | None = Field(
        default=None,
        description="What to train: a Fireworks model name, or here bfcl-starter, smollm2-135m, a Hugging Face folder or a "
        "hub id.",
    )
    tokenizer_model: str | None = Field(
        default=None, description="Hub id or folder of the tokenizer, where it differs from the model."
    )
    renderer: str = Field(
        default="auto", description="Chat format, a name of the `renderers` library; auto goes by the tokenizer."
    )
    thinking: bool = Field(default=False, description="Let a reasoning model think before it answers.")
    history: Literal["keep", "template"] = Field(
        default="keep",
        description="Reasoning of earlier user turns: keep the exact tokens (one datum an episode), or follow the model's "
        "template, which drops it (one more segment a user turn).",
    )
    tool_updates: Literal["append", "rewrite"] = Field(
        default="append",
        description="New tools in mid-episode: in the user message, or in the head of the prompt (a new segment).",
    )
    lora_rank: Positive = Field(
        default=8, description="Rank of the adapter. Models below 50 M parameters train whole on this machine."
    )

    steps: Positive | None = Field(default=None, description="Optimizer steps of the whole run, resumed steps included.")
    tasks_per_step: Positive | None = Field(default=None, description="Groups a step: tasks drawn from the training split.")
    group_size: Annotated[int, Field(ge=2)] | None = Field(
        default=None, description="Attempts at each task; their rewards are compared with one another, so at least 2."
    )
    fill_groups: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Roll out up to this many further groups a step until --tasks-per-step of them have spread."
    )
    max_lag: Annotated[int, Field(ge=0, le=1)] = Field(
        default=0,
        description="0: strictly on-policy. 1: roll out the next step while this one's update runs, under weights one step old.",
    )
    train_tasks: Positive | None = Field(default=None, description="Train on this many tasks of the training split only.")
    train_ids: Path | None = Field(
        default=None,
        description="Train on those tasks of the training split only that this file names, one id a line, such as the "
        "learnable.txt that --calibrate --output-dir FOLDER writes.",
    )
    eval_tasks: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Tasks of each evaluation, of the held-out split and of the training pool each; 0 turns it off."
    )
    eval_train: bool = Field(default=True, description="Evaluate the first tasks of the training pool as well.")
    eval_samples: Positive | None = Field(default=None, description="Attempts at each evaluation task.")
    eval_every: Annotated[int, Field(ge=0)] = Field(0, description="Evaluate every so many steps too; 0: before and after only.")
    max_tokens: Positive | None = Field(default=None, description="Most tokens of one assistant turn.")
    max_seq_len: Annotated[int, Field(ge=64)] | None = Field(
        default=None, description="Most tokens of one episode's context, prompt and answers together."
    )
    max_turns: Positive = Field(default=64, description="Most assistant turns of an episode.")
    max_tool_calls: Positive = Field(default=256, description="Most tool calls of an episode.")
    max_bad_calls: Positive = Field(default=3, description="Malformed or refused calls in a row that end an episode.")
    max_tool_tokens: Annotated[int, Field(ge=16)] | None = Field(
        default=None, description="A longer tool result keeps its head and tail, with the cut named."
    )
    parallel_tools: bool = Field(
        default=False, description="Run one turn's calls at once where the environment says that is safe."
    )
    stop_at_failed_turn: bool = Field(
        default=True, description="BFCL: end a training episode whose reward is decided (the same reward for half the sampling)."
    )

    temperature: Annotated[float, Field(gt=0)] = Field(1.0, description="Sampling temperature of the rollouts.")
    learning_rate: Annotated[float, Field(gt=0)] | None = Field(default=None, description="Adam's learning rate.")
    warmup_steps: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Steps over which the learning rate rises to its value."
    )
    schedule: Literal["constant", "linear", "cosine"] | None = Field(
        default=None, description="After the warm-up: stay, or fall to a tenth at the last step."
    )
    loss_fn: Literal["importance_sampling", "ppo", "cispo"] = Field(
        default="importance_sampling", description="Policy-gradient loss."
    )
    clip_low: Annotated[float, Field(ge=0, le=1)] = Field(0.8, description="Lower bound of the probability ratio (ppo, cispo).")
    clip_high: Annotated[float, Field(ge=1)] = Field(1.2, description="Upper bound of the probability ratio (ppo, cispo).")
    advantage: Literal["group-zscore", "group-mean", "rloo"] = Field(
        default="group-zscore", description="How the rewards of a group become advantages."
    )
    credit: Literal["episode", "turn"] = Field(
        default="turn",
        description="episode: one advantage for all of an episode's turns. turn: one for each user turn, from what the episode "
        "earned in it and after, where the environment reports that (BFCL does).",
    )
    advantage_clip: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="Largest absolute advantage; None: no clip."
    )
    normalize: Literal["token", "episode", "none"] = Field(
        default="token", description="What the summed loss is divided by: trained tokens, or trained episodes, or nothing."
    )
    minibatches: Positive = Field(default=1, description="Optimizer steps a batch is split over; an episode is never split.")
    kl_coef: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Weight of a KL penalty to the base model; costs one prefill of every trained sequence."
    )
    bad_call_penalty: Annotated[float, Field(ge=0)] = Field(
        0.0,
        description="Taken off an episode's reward, times the share of its calls that were bad; reported apart.",
    )
    check_logprobs: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Where training returns no logprobs: read this many sequences once more, for the gap.",
    )
    grad_clip: Annotated[float, Field(ge=0)] = Field(0.0, description="Largest gradient norm; 0: no clip.")

    max_concurrent: Positive | None = Field(default=None, description="Rollouts in flight at once.")
    rollout_retries: Annotated[int, Field(ge=0)] = Field(
        1, description="Fresh tries after an infrastructure failure, before the rollout is left out and counted."
    )
    tool_timeout: Seconds = Field(default=60.0, description="Seconds one tool call may take.")
    sample_timeout: Seconds = Field(default=600.0, description="Seconds one sample may take, retries included.")
    episode_timeout: Seconds = Field(
        default=900.0, description="Seconds one episode may take; grading has time of its own after that."
    )
    step_timeout: Seconds = Field(
        default=3600.0, description="Seconds one step may take before the run saves its state and ends."
    )

    min_a: int | None = Field(default=None, description="Arithmetic: smallest first factor.")
    max_a: int | None = Field(default=None, description="Arithmetic: largest first factor.")
    min_b: int | None = Field(default=None, description="Arithmetic: smallest second factor.")
    max_b: int | None = Field(default=None, description="Arithmetic: largest second factor.")
    synthetic_turns: Annotated[int, Field(ge=0, le=8)] | None = Field(
        default=None, description="bfcl-synthetic: user turns of a generated task; 0: as many as BFCL's have, 1 to 6."
    )
    synthetic_calls: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="bfcl-synthetic: most calls that a user turn of a generated task needs; 0: as BFCL's, up to 6."
    )
    prompt: Literal["work", "direct"] | None = Field(
        default=None, description="Arithmetic: ask to work the product out first (for capable models), or for the integer alone."
    )

    seed: int = Field(
        default=0, description="Order of the tasks and seeds of the samples. The train and held-out split is fixed."
    )
    config: Path | None = Field(default=None, description="Read settings from this YAML file; flags win over it.")
    output_dir: Path | None = Field(
        default=None, description="Run folder; None: a new one below runs/. Of a calibration: where learnable.txt goes."
    )
    checkpoint_every: Annotated[int, Field(ge=0)] = Field(
        10, description="Save a resumable state every so many steps; 0: at the end."
    )
    keep_states: Positive | None = Field(
        default=None,
        description="Keep only so many of the newest resumable states, with the final one and the best snapshot's; None: all.",
    )
    resume_from: str | None = Field(
        default=None, description="Go on with a run: its folder, or a state on the service, account/run-.../state-0005."
    )
    resume_step: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="With a state on the service whose name ends in no number: the step it follows."
    )
    require_update: bool = Field(default=False, description="Fail when no step could update the weights.")
    stop_if: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None, description="End the run when the reward of five steps falls below this share of the best five before."
    )
    calibrate: bool = Field(default=False, description="Roll out and report, without an update: is there anything to learn from?")
    debug_samples: Annotated[int, Field(ge=0)] = Field(0, description="Print this many whole episodes of each step.")
    track: Literal["wandb", "trackio", "tensorboard"] | None = Field(
        default=None, description="Curves there too, by the names of docs/metrics.md; needs the extra of that name."
    )
    price_sampled: Annotated[float, Field(ge=0)] | None = Field(default=None, description="Price of a million sampled tokens.")
    price_prefill: Annotated[float, Field(ge=0)] | None = Field(default=None, description="Price of a million prompt tokens.")
    price_trained: Annotated[float, Field(ge=0)] | None = Field(default=None, description="Price of a million trained tokens.")

    @property
    def on_fireworks(self) -> bool:
        """Whether the weights live behind a key; decided by `--backend`, `--base-url` and FIREWORKS_API_KEY."""
        if self.backend == "auto":
            return self.base_url is not None or bool(os.environ.get("FIREWORKS_API_KEY"))
        return self.backend == "fireworks"

    def resolve(self) -> TrainConfig:
        """The same settings with every None of `PRESETS` filled in, checked together.

        Raises:
            UserError: one sentence for each setting that does not fit the others.
        """
        if self.tasks_file is not None or self.taskset not in BUILT_IN_TASKSETS:
            family = "own"
        else:
            family = {"arithmetic": "arithmetic", "bfcl-synthetic": "synthetic"}.get(self.taskset, "bfcl")
            if self.taskset == "bfcl-multi-turn" and self.base_model in (None, "bfcl-starter") and self.train_tasks is None:
                family = "starter"
        preset = PRESETS["fireworks" if self.on_fireworks else "local", family]
        filled = self.model_copy(update={k: v for k, v in preset.items() if getattr(self, k) is None})
        if self.tasks_file is not None:
            # A run can be resumed from another folder, and is called by what it plays.
            files = {
                name: path.resolve()
                for name in ("tasks_file", "env_path", "mcp_files")
                if (path := getattr(self, name)) is not None
            }
            name = files["tasks_file"].parent.name if self.tasks_file.stem == "tasks" else self.tasks_file.stem
            filled = filled.model_copy(update={**files, "taskset": name})
        if self.train_tasks is None and filled.train_tasks is not None and filled.tasks_per_step is not None:
            filled = filled.model_copy(update={"train_tasks": max(filled.train_tasks, filled.tasks_per_step)})
        problems = problems_of(filled)
        if problems:
            raise UserError("\n".join(problems))
        return filled


def config_from(data: dict[str, Any]) -> TrainConfig:
    """A config from a file's or a folder's data, every mistake named in one go.

    Raises:
        UserError: unknown keys, wrong types, values out of bounds.
    """
    try:
        return TrainConfig.model_validate(data)
    except ValidationError as error:
        raise UserError(validation_message(error)) from None


def validation_message(error: ValidationError) -> str:
    """Pydantic's findings as one line each, by flag."""
    lines = []
    for item in error.errors():
        flag = "--" + "-".join(str(part) for part in item["loc"][:1]).replace("_", "-")
        found = "" if item["type"] == "extra_forbidden" else f" (got {item['input']!r})"
        lines.append(f"{flag}: {item['msg']}{found}")
    return "\n".join(lines)
