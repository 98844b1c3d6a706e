"""The program that torchrun starts on each rank."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from sparseloom.timing.rounds import Spread, ratios

from ..gpu.device import Monitor, describe, slug
from ..results import default_folder, header, write_results
from .arms import WAYS, Arm, arms
from .exposed import exposed_us
from .stack import Sizes

SUITE = "ranks"
#: Steps between two clocks, and steps before the first.
STEPS, WARM_UP = 3, 2


def measure(chosen: list[Arm], mesh: DeviceMesh, rounds: int) -> list[dict[str, Any]]:
    """Returns a record of each arm: a step's microseconds of the slowest rank, all arms in turn."""
    device = torch.device(mesh.device_type)
    for arm in chosen:
        for _ in range(WARM_UP):
            arm.step()
    times: list[list[float]] = [[] for _ in chosen]
    for _ in range(rounds):
        for arm, samples in zip(chosen, times, strict=True):
            dist.barrier()
            _wait(device)
            start = time.perf_counter()
            for _ in range(STEPS):
                arm.step()
            _wait(device)
            slowest = torch.tensor([1e6 * (time.perf_counter() - start) / STEPS], device=device)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            samples.append(slowest.item())
    of = {(arm.way, arm.sparse): samples for arm, samples in zip(chosen, times, strict=True)}
    records = []
    for arm, samples in zip(chosen, times, strict=True):
        record: dict[str, Any] = {"op": SUITE, "way": arm.way, "mlp": "sparse" if arm.sparse else "dense"}
        record |= {"tokens": arm.tokens, "us": Spread.of(samples).rounded(1)}
        record["tokens_per_s"] = round(1e6 * arm.tokens / record["us"]["median"])
        one = of.get(("mlp alone" if arm.way.startswith("mlp") else "alone", arm.sparse))
        if one is not None and not arm.way.endswith("alone"):
            more = arm.tokens / next(a.tokens for a in chosen if a.way.endswith("alone"))
            record["over_one_gpu"] = {
                k: round(more * v, 3) for k, v in ratios(one, samples).rounded(6).items()
            }
        if arm.sparse:
            record["over_dense"] = ratios(of[arm.way, False], samples).rounded(3)
        if device.type == "cuda" and not arm.way.endswith("alone"):
            sent, exposed = exposed_us(arm.step)
            record |= {"communication_us": round(sent, 1), "exposed_us": round(exposed, 1)}
        records.append(record)
    return records


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main(words: list[str] | None = None) -> None:
    """Measures, prints a line for each record, and writes <results>/<device>/ranks.json."""
    parser = argparse.ArgumentParser(prog="sparseloom_bench.bench.ranks", description=__doc__)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--way", nargs="+", default=list(WAYS), choices=WAYS, help="default: all of them")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--results", type=Path, default=None)
    for name, default in vars(Sizes()).items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    asked = parser.parse_args(words)
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    if asked.device == "cuda":
        torch.cuda.set_device(rank)
    sizes = Sizes(**{name: getattr(asked, name) for name in vars(Sizes())})
    world = int(os.environ.get("WORLD_SIZE", "1"))
    mesh = init_device_mesh(asked.device, (world,))
    dtype = torch.bfloat16 if asked.device == "cuda" else torch.float32
    records = measure(arms(asked.way, sizes, mesh, dtype), mesh, asked.rounds)
    if dist.get_rank() == 0:
        gpu = (
            describe(torch.device("cuda", rank), Monitor(torch.device("cuda", rank)))
            if asked.device == "cuda"
            else None
        )
        head = header("training", slug(gpu["name"]) if gpu else None)
        head |= {"suite": SUITE, "gpu": gpu, "world": world, "sizes": vars(sizes), "dtype": str(dtype)}
        for record in records:
            print(record, flush=True)
        print("results:", write_results(asked.results or default_folder(Path(".")), SUITE, head, records))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
