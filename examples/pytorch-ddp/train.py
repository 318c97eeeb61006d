"""Trains a small network with PyTorch's DistributedDataParallel, and resumes from its last checkpoint.

Every rank learns from its own share of synthetic data, and gloo adds up the gradients after each step.
A rank that dies breaks the connections of the others, so all of them end and must be restarted together.
Rank 0 then reads the last checkpoint and sends it to the others. The data of a step depends only on its
number, so repeated steps give the same losses.

Standard output has one JSON object on each line: "event" (start, imported, resumed, checkpoint, done), or "step" with its "loss".

Settings (environment):
  RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT  as in PyTorch
  CHECKPOINTS               folder for checkpoints, which only rank 0 uses
  STEPS                     steps to train, then exit 0
  CHECKPOINT_EVERY          steps between two checkpoints
  LOG_EVERY                 steps between two lines of each rank; the first step after a start is always logged
  LOCKSTEP_RESTART_ATTEMPT  how often the group was restarted in place; Lockstep sets it
  LOCKSTEP_HEARTBEAT        a file to touch after each step; Lockstep sets it, too
"""

import json
import os
import pathlib
import signal
import socket
import time
from typing import Any

# PID 1 of a container ignores SIGTERM unless it handles it.
if os.getpid() == 1:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
MASTER = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
CHECKPOINTS = pathlib.Path(os.environ["CHECKPOINTS"])
STEPS = int(os.environ.get("STEPS", "2000"))
CHECKPOINT_EVERY = int(os.environ.get("CHECKPOINT_EVERY", "20"))
LOG_EVERY = int(os.environ.get("LOG_EVERY", "1"))
ATTEMPT = int(os.environ.get("LOCKSTEP_RESTART_ATTEMPT", "0"))
HEARTBEAT = os.environ.get("LOCKSTEP_HEARTBEAT")

START_TIMEOUT = 300.0  # seconds for all ranks to find each other
KEPT = 2  # checkpoints
BATCH, INPUTS, HIDDEN, OUTPUTS = 64, 64, 512, 8


def say(**what: Any) -> None:
    print(json.dumps({"time": round(time.time(), 4), "rank": RANK, "attempt": ATTEMPT} | what), flush=True)


say(event="start", pid=os.getpid())

# This import takes a second of CPU time.
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

say(event="imported")


def network(hidden: int, seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(INPUTS, hidden), nn.Tanh(), nn.Linear(hidden, OUTPUTS))


class Data:
    """Random inputs, and the outputs of another, fixed network with noise."""

    def __init__(self) -> None:
        self.teacher = network(hidden=32, seed=1)
        # Inputs have very different scales, so that some are learned quickly and others slowly.
        self.scale = 1 / torch.arange(1, INPUTS + 1)

    @torch.no_grad()
    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The share of this rank."""
        random = torch.Generator().manual_seed(step * WORLD + RANK)
        inputs = torch.randn(BATCH, INPUTS, generator=random)
        noise = torch.randn(BATCH, OUTPUTS, generator=random)
        return inputs * self.scale, 3 * self.teacher(inputs) + 0.05 * noise


def steps_of(checkpoint: pathlib.Path) -> int:
    return int(checkpoint.stem)


def complete() -> list[pathlib.Path]:
    """The checkpoints, the latest last. A file gets its name only when all of it is on disk."""
    return sorted(CHECKPOINTS.glob("*.pt"), key=steps_of)


def save(steps: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Writes the state after this many steps."""
    checkpoint = CHECKPOINTS / f"{steps}.pt"
    part = checkpoint.with_suffix(".part")
    with part.open("wb") as file:
        torch.save({"steps": steps, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    part.rename(checkpoint)
    # The name must reach the disk, too.
    folder = os.open(CHECKPOINTS, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    for old in complete()[:-KEPT]:
        old.unlink()
    say(event="checkpoint", step=steps)


def load(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Resumes all ranks from the last checkpoint of rank 0. Returns the number of finished steps."""
    found: list[Any] = [None]
    if RANK == 0:
        CHECKPOINTS.mkdir(parents=True, exist_ok=True)
        found = [torch.load(last, map_location="cpu") for last in complete()[-1:]] or [None]
    dist.broadcast_object_list(found, src=0)
    state = found[0]
    if state is None:
        return 0
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    say(event="resumed", step=state["steps"])
    return int(state["steps"])


def await_master() -> None:
    """Waits until rank 0 listens, since PyTorch itself polls only once a second."""
    deadline = time.monotonic() + START_TIMEOUT
    while RANK != 0:
        try:
            return socket.create_connection(MASTER, timeout=5).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def train() -> None:
    model = network(HIDDEN, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    first = load(model, optimizer)
    parallel = DistributedDataParallel(model)
    data = Data()
    for step in range(first, STEPS):
        inputs, expected = data.batch(step)
        loss = nn.functional.mse_loss(parallel(inputs), expected)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if HEARTBEAT:
            os.utime(HEARTBEAT)
        if step == first or step % LOG_EVERY == 0:
            mean = loss.detach()
            dist.all_reduce(mean)
            say(step=step, loss=round(mean.item() / WORLD, 6))
        if RANK == 0 and (step + 1) % CHECKPOINT_EVERY == 0:
            save(step + 1, model, optimizer)
    # No rank leaves before all have finished.
    dist.barrier()
    say(event="done", step=STEPS)


def main() -> None:
    torch.set_num_threads(1)
    await_master()
    dist.init_process_group("gloo")
    train()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
