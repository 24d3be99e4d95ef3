"""tinker-cookbook's `trajectory_to_data`, served over pipes: the other side of the batch benchmark.

Runs in an environment of its own, with tinker-cookbook and without turngrad. Reads one request a line, `VERB FILE`, where FILE
is a pickle of trajectories: `(advantage, [(prompt ids, output ids, logprobs), ...])`. Answers one JSON value a line: to
`time` the seconds of one pass over all of them, to `datums` the fields of every datum.
"""

import json
import pickle
import sys
import time

import tinker  # pyright: ignore[reportMissingImports]
from tinker_cookbook.completers import TokensWithLogprobs  # pyright: ignore[reportMissingImports]
from tinker_cookbook.rl.data_processing import trajectory_to_data  # pyright: ignore[reportMissingImports]
from tinker_cookbook.rl.types import Trajectory, Transition  # pyright: ignore[reportMissingImports]

FIELDS = ("target_tokens", "logprobs", "advantages", "mask")


def trajectory(turns):
    transitions = [
        Transition(
            ob=tinker.ModelInput.from_ints(prompt),
            ac=TokensWithLogprobs(tokens=output, maybe_logprobs=logprobs),
            reward=0.0,
            episode_done=False,
        )
        for prompt, output, logprobs in turns
    ]
    return Trajectory(transitions=transitions, final_ob=tinker.ModelInput.empty())


def fields(datum):
    return [datum.model_input.to_ints(), *(datum.loss_fn_inputs[name].tolist() for name in FIELDS)]


def main():
    loaded = {}
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        verb, path = line.split(maxsplit=1)
        path = path.strip()
        if path not in loaded:
            with open(path, "rb") as file:
                loaded[path] = [(advantage, trajectory(turns)) for advantage, turns in pickle.load(file)]
        started = time.perf_counter()
        results = [trajectory_to_data(one, advantage) for advantage, one in loaded[path]]
        seconds = time.perf_counter() - started
        print(json.dumps(seconds if verb == "time" else [[fields(d) for d in data] for data in results]), flush=True)


if __name__ == "__main__":
    main()
