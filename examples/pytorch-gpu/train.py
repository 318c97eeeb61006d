"""Trains a network of 400 million parameters with PyTorch, on a GPU if there is one, and resumes from its last checkpoint.

Standard output has one JSON object on each line: "event" (start, imported, resumed, checkpoint), or "step" with its "loss". The first step
of an attempt is printed when the device has done it.

Settings (environment): CHECKPOINTS (a folder; memory is fastest), WIDTH, LAYERS, STEPS, CHECKPOINT_EVERY, LOG_EVERY.
"""

import json
import os
import pathlib
import sys
import time
from typing import Any

CHECKPOINTS = pathlib.Path(os.environ.get("CHECKPOINTS", "/dev/shm"))
WIDTH = int(os.environ.get("WIDTH", "4096"))
LAYERS = int(os.environ.get("LAYERS", "24"))
STEPS = int(os.environ.get("STEPS", "1000000000"))
CHECKPOINT_EVERY = int(os.environ.get("CHECKPOINT_EVERY", "500"))
LOG_EVERY = int(os.environ.get("LOG_EVERY", "500"))
ATTEMPT = int(os.environ.get("LOCKSTEP_RESTART_ATTEMPT", "0"))
RANK = int(os.environ.get("LOCAL_RANK", "0"))
BATCH = 64


def say(**what: Any) -> None:
    print(json.dumps({"time": round(time.time(), 4), "rank": RANK, "attempt": ATTEMPT} | what), flush=True)


# From a standby, PyTorch is there already.
say(event="start", pid=os.getpid(), ahead="torch" in sys.modules)

import torch  # noqa: E402
from torch import nn  # noqa: E402

say(event="imported")


def save(steps: int, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A checkpoint is complete or absent."""
    part = CHECKPOINTS / f"checkpoint-{RANK}.part"
    torch.save({"steps": steps, "network": network.state_dict(), "optimizer": optimizer.state_dict()}, part)
    part.replace(CHECKPOINTS / f"checkpoint-{RANK}.pt")
    say(event="checkpoint", step=steps)


def main() -> None:
    device = torch.device("cuda", RANK) if torch.cuda.is_available() else torch.device("cpu")
    with device:
        network = nn.Sequential(*[layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    first = 0
    checkpoint = CHECKPOINTS / f"checkpoint-{RANK}.pt"
    if checkpoint.exists():
        kept = torch.load(checkpoint, map_location=device, weights_only=True, mmap=True)
        network.load_state_dict(kept["network"])
        optimizer.load_state_dict(kept["optimizer"])
        first = kept["steps"]
        del kept
        say(event="resumed", step=first)
    for step in range(first, STEPS):
        # The data of a step depends only on its number.
        source = torch.Generator(device).manual_seed(step)
        inputs = torch.randn(BATCH, WIDTH, device=device, generator=source)
        loss = ((network(inputs) - inputs) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == first or step % LOG_EVERY == 0:
            # The value is known once the device has done the step.
            say(step=step, loss=round(loss.item(), 6))
        if step == 0 or (step + 1) % CHECKPOINT_EVERY == 0:
            save(step + 1, network, optimizer)


if __name__ == "__main__":
    main()
