"""Patches, trains, saves, reloads and times one model: a record of the results file."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparseloom.io import load, save
from sparseloom.patch import Patched, sparsify_
from sparseloom.report import report

from ..timing import Spread
from .zoo import Spec

Record = dict[str, Any]
Say = Callable[[str], None]

STEPS = 20
#: The learning rate of AdamW without warm-up that a random transformer of this size bears.
LEARNING_RATE = 1e-4
#: Steps of one timed round, rounds, and steps before the first. Both models take turns, so that a clock
#: change affects both.
ROUND, ROUNDS, WARM_UP = 10, 9, 3


#: torch.compile's mode that replays CUDA graphs, so that a step no longer waits for the host.
GRAPHED = "reduce-overhead"


class Trainer:
    """Trains a model, by its ``compiled`` form, under bf16 autocast and fused AdamW on one batch."""

    def __init__(
        self,
        model: nn.Module,
        data: tuple[Tensor, Tensor],
        compiled: Callable[..., Any],
        capturable: bool = False,
    ) -> None:
        self.model, (self.x, self.target), self.compiled = model, data, compiled
        self.optimizer = torch.optim.AdamW(
            model.parameters(), LEARNING_RATE, fused=True, capturable=capturable
        )

    def step(self) -> Tensor:
        """Takes one step; returns the loss before it, still on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.x.device.type, torch.bfloat16):
            loss = F.cross_entropy(logits(self.compiled(self.x)), self.target)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def logits(result: Any) -> Tensor:
    """Returns the logits from the result of a timm model (a tensor) or a transformers model (an object that
    has them)."""
    found: Tensor = getattr(result, "logits", result)
    return found


def evaluated(model: nn.Module, x: Tensor) -> Tensor:
    """Returns the eager model's logits under bf16 autocast; leaves the model in eval mode."""
    model.eval()
    with torch.no_grad(), torch.autocast(x.device.type, torch.bfloat16):
        return logits(model(x))


def measure(
    spec: Spec, device: torch.device, seconds: float, say: Say = print, backend: str = "inductor"
) -> Record:
    """Measures the model from patching to the report. ``seconds`` is the report's, for each layer and batch
    size."""
    memory = _Memory(device)
    data = spec.data(device)
    model = spec.make(0, device)
    # This is what a user writes: this call, and the optimizer after it.
    patched = sparsify_(model, spec.patterns)
    say(f"{spec}: {str(patched).splitlines()[0]}")
    sparse = Trainer(model, data, torch.compile(model, backend=backend))
    losses, compile_s, graphs = trained(sparse, device)
    sparse_bytes = memory.peak()
    words = " ".join(f"{loss:.3f}" for loss in losses)
    say(f"{spec}: {STEPS} steps, first {compile_s:.0f} s, compiled graphs: {graphs}; loss {words}")
    file_bytes, equal, fresh_differs = reloaded(spec, model, data[0])
    say(f"{spec}: saved {file_bytes / 1e6:.0f} MB, reloaded, {'equal' if equal else 'NOT EQUAL'}")
    memory = _Memory(device)
    model_of_dense = spec.make(0, device)
    dense = Trainer(model_of_dense, data, torch.compile(model_of_dense, backend=backend))
    dense_losses, dense_compile_s, dense_graphs = trained(dense, device)
    dense_bytes = memory.peak()
    speeds = steps_per_second([sparse, dense], device)
    say(f"{spec}: {speeds[0].median:.1f} steps/s, dense {speeds[1].median:.1f}")
    skips = _graphs_skipped()
    graphed = steps_per_second(
        [
            Trainer(each.model, data, torch.compile(each.model, backend=backend, mode=GRAPHED))
            for each in (sparse, dense)
        ],
        device,
    )
    skips = _graphs_skipped() - skips
    say(
        f"{spec}: by CUDA graphs {graphed[0].median:.1f} steps/s, dense "
        f"{graphed[1].median:.1f}; {skips} parts without one"
    )

    made = report(copy.deepcopy(model).bfloat16(), _bf16(data[0]), seconds=seconds, batch_sizes=spec.batches)
    say(str(made))
    return {
        "op": "model",
        "model": spec.name,
        "package": spec.version(),
        "class": type(model).__name__,
        "input": list(data[0].shape),
        "patterns": spec.described(),
        **_counts(patched),
        "steps": STEPS,
        "losses": losses,
        "dense_losses": dense_losses,
        "compile_s": {"sparse": round(compile_s, 1), "dense": round(dense_compile_s, 1)},
        "graphs": {"sparse": graphs, "dense": dense_graphs},
        "file_bytes": file_bytes,
        "reloaded_equal": equal,
        "fresh_differs": fresh_differs,
        **_beside(speeds),
        "graphed": _beside(graphed) | {"skips": skips},
        "training_bytes": {"sparse": sparse_bytes, "dense": dense_bytes},
        "report": made.to_dict(),
    }


def trained(trainer: Trainer, device: torch.device) -> tuple[list[float], float, int]:
    """Trains STEPS steps; returns the losses, the seconds of the first step (nearly all of them compiling),
    and the graphs that it was cut into."""
    from torch._dynamo.utils import counters  # imports all of dynamo: a second that only this suite pays

    before = counters["stats"]["unique_graphs"]
    _wait(device)
    start = time.perf_counter()
    losses = [trainer.step()]
    _wait(device)
    first = time.perf_counter() - start
    losses += [trainer.step() for _ in range(STEPS - 1)]
    return [round(float(loss), 4) for loss in losses], first, counters["stats"]["unique_graphs"] - before


def reloaded(spec: Spec, model: nn.Module, x: Tensor) -> tuple[int, bool, bool]:
    """Saves the model and loads it into one made anew from other random weights.

    Returns the file's size in bytes, whether both models then have the same tensors and give the same logits
    in every bit, and whether their logits differed before.
    """
    expected = evaluated(model, x)
    fresh = spec.make(1, x.device)
    sparsify_(fresh, spec.patterns)
    differs = not torch.equal(evaluated(fresh, x), expected)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save(model, path)
        load(path, fresh)
        size = path.stat().st_size
    mine, theirs = model.state_dict(), fresh.state_dict()
    equal = mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    equal = equal and torch.equal(evaluated(fresh, x), expected)
    model.train()
    return size, equal, differs


def steps_per_second(trainers: list[Trainer], device: torch.device) -> list[Spread]:
    """Returns the steps per second of each trainer, in rounds taken in turn."""
    seconds = rounds_in_turn([trainer.step for trainer in trainers], device, ROUND, ROUNDS, WARM_UP)
    return [Spread.of([ROUND / each for each in of_trainer]) for of_trainer in seconds]


def rounds_in_turn(
    calls: Sequence[Callable[[], Any]], device: torch.device, count: int, rounds: int, warm_up: int
) -> list[list[float]]:
    """Returns for each call the seconds of its rounds of ``count`` calls; the calls take turns."""
    for call in calls:
        for _ in range(warm_up):
            call()
    samples: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, seconds in zip(calls, samples, strict=True):
            _wait(device)
            start = time.perf_counter()
            for _ in range(count):
                call()
            _wait(device)
            seconds.append(time.perf_counter() - start)
    return samples


def _graphs_skipped() -> int:
    """Returns how many compiled parts inductor has not put into a CUDA graph so far."""
    from torch._dynamo.utils import counters  # imported here for the reason that `trained` gives

    return int(counters["inductor"]["cudagraph_skips"])


def _beside(speeds: list[Spread]) -> Record:
    sparse, dense = speeds
    return {
        "steps_per_s": {"sparse": sparse.rounded(3), "dense": dense.rounded(3)},
        "speedup": round(sparse.median / dense.median, 3),
    }


class _Memory:
    """Measures how many bytes torch allocated at most since it was made, beyond those allocated then; None on
    the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._gpu = device if device.type == "cuda" else None
        if self._gpu is not None:
            torch.cuda.reset_peak_memory_stats(self._gpu)
            self._before = torch.cuda.memory_allocated(self._gpu)

    def peak(self) -> int | None:
        return None if self._gpu is None else torch.cuda.max_memory_allocated(self._gpu) - self._before


def _counts(patched: Patched) -> Record:
    return {
        "layers": len(patched.changed),
        "skipped": len(patched.skipped),
        "parameters": list(patched.parameters),
    }


def _bf16(x: Tensor) -> Tensor:
    return x.bfloat16() if x.is_floating_point() else x


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
