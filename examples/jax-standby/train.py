"""Trains a small network with JAX, and resumes from its last checkpoint.

The data of a step depends only on its number. Standard output has one JSON object on each line, as that of ../pytorch-ddp/train.py:
"event" (start, imported, resumed, checkpoint, done), or "step" with its "loss".

Settings (environment): CHECKPOINTS (a folder), STEPS, CHECKPOINT_EVERY, LOG_EVERY.
"""

import functools
import json
import os
import pathlib
import pickle
import time
from typing import Any

CHECKPOINTS = pathlib.Path(os.environ["CHECKPOINTS"])
STEPS = int(os.environ.get("STEPS", "2000"))
CHECKPOINT_EVERY = int(os.environ.get("CHECKPOINT_EVERY", "20"))
LOG_EVERY = int(os.environ.get("LOG_EVERY", "1"))
ATTEMPT = int(os.environ.get("LOCKSTEP_RESTART_ATTEMPT", "0"))
INPUTS, HIDDEN, OUTPUTS, BATCH, RATE = 64, 512, 8, 64, 0.05


def say(**what: Any) -> None:
    print(json.dumps({"time": round(time.time(), 4), "rank": 0, "attempt": ATTEMPT} | what), flush=True)


say(event="start", pid=os.getpid())

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

say(event="imported")


@functools.partial(jax.jit, static_argnames="hidden")
def network(hidden: int, seed: int) -> list[jax.Array]:
    first, second = jax.random.split(jax.random.key(seed))
    return [jax.random.normal(first, (INPUTS, hidden)) / INPUTS**0.5, jax.random.normal(second, (hidden, OUTPUTS)) / hidden**0.5]


def outputs(weights: list[jax.Array], inputs: jax.Array) -> jax.Array:
    return jnp.tanh(inputs @ weights[0]) @ weights[1]


@jax.jit
def advance(weights: list[jax.Array], teacher: list[jax.Array], step: int) -> tuple[list[jax.Array], jax.Array]:
    inputs = jax.random.normal(jax.random.fold_in(jax.random.key(2), step), (BATCH, INPUTS))
    expected = outputs(teacher, inputs)
    loss, slopes = jax.value_and_grad(lambda now: jnp.mean((outputs(now, inputs) - expected) ** 2))(weights)
    return [weight - RATE * slope for weight, slope in zip(weights, slopes, strict=True)], loss


def save(steps: int, weights: list[jax.Array]) -> None:
    """A checkpoint is complete or absent."""
    part = CHECKPOINTS / "weights.part"
    with part.open("wb") as file:
        pickle.dump((steps, jax.device_get(weights)), file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(CHECKPOINTS / "weights.pickle")
    say(event="checkpoint", step=steps)


def main() -> None:
    CHECKPOINTS.mkdir(parents=True, exist_ok=True)
    if (CHECKPOINTS / "weights.pickle").exists():
        first, weights = pickle.loads((CHECKPOINTS / "weights.pickle").read_bytes())
        say(event="resumed", step=first)
    else:
        first, weights = 0, network(HIDDEN, seed=0)
    teacher = network(32, seed=1)
    for step in range(first, STEPS):
        weights, loss = advance(weights, teacher, step)
        if step == first or step % LOG_EVERY == 0:
            say(step=step, loss=round(float(loss), 6))
        if (step + 1) % CHECKPOINT_EVERY == 0:
            save(step + 1, weights)
    say(event="done", step=STEPS)


if __name__ == "__main__":
    main()
