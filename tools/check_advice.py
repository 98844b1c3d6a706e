"""Checks whether advise() is right: random layers are advised on, made sparse and measured beside dense.

At most 2 % of what it recommends may end below .97x, and at least 90 % of the layers that gain 1.2x or more
by some block must be recommended. Features are drawn log-uniformly from 64 to 8192, tokens from 1 to 4096,
fp32 or bf16, inference or training; tokens are halved until a dense call takes less than a tenth of a second.
Advice is asked for with the defaults of advise, at one of its densities.

A layer is counted when its ratio repeats: the rounds are cut into five parts, one after the other, and of the
parts' median ratios the second and the fourth in size lie within 5 % of each other. Layers whose ratio does
not repeat are measured again, up to three times.

The script writes bench/results/<device>/advice.json, a record for each layer, after every layer: a run that
was stopped, by --minutes or otherwise, goes on with the same command. The exit status is 1 when a target is
missed and all layers are there.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import math
import random
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

import sparseloom
from sparseloom import BlockSparse
from sparseloom.pattern import Block, block_shape
from sparseloom.report.trial import Trial
from sparseloom.timing import rounds
from sparseloom_bench.bench.results import default_folder, device_slug, header, write_results

BLOCKS, DENSITIES = (16, 32, 64), (0.1, 0.25, 0.5)
DENSE_SECONDS = 0.1
PARTS, ROUNDS, MOST_SPREAD, TRIES = 5, 15, 0.05, 3
SLOWER, FASTER = 0.97, 1.2
WRONG, FOUND = 0.02, 0.90
CLOCKS = {"wall": time.perf_counter, "thread": time.thread_time}

Record = dict[str, Any]


def drawn(seed: int, number: int) -> Record:
    """Draws layer `number` of a seed, independently of what was drawn before it."""
    draw = random.Random(f"{seed}/{number}")

    def log_uniform(low: int, high: int) -> int:
        return round(math.exp(draw.uniform(math.log(low), math.log(high))))

    return {
        "op": "advice",
        "number": number,
        "out_features": log_uniform(64, 8192),
        "in_features": log_uniform(64, 8192),
        "tokens": log_uniform(1, 4096),
        "dtype": draw.choice(("float32", "bfloat16")),
        "training": draw.random() < 0.5,
        "density": draw.choice(DENSITIES),
    }


def named(block: Block) -> str:
    return "{}x{}".format(*block_shape("advise", block))


def seconds_of(trial: Trial) -> float:
    trial.call()
    start = rounds.clock()
    trial.call()
    return rounds.clock() - start


def fitting(dense: nn.Module, most: int, training: bool) -> int:
    """Returns `most`, halved until a call takes less than DENSE_SECONDS.

    The search starts from few tokens: with many, torch's naive bf16 products would take minutes.
    """
    sizes = [most >> halvings for halvings in range(most.bit_length())]
    found = sizes.pop()
    while sizes and 2 * seconds_of(Trial(dense, found, training)) <= DENSE_SECONDS:
        found = sizes.pop()
    return found


def measured(dense: Trial, sparse: Trial, seconds: float) -> tuple[dict[str, float], float]:
    """Returns the rounds' ratio, dense over sparse, with the median times, and the spread of its parts.

    The module's docstring defines the spread. Of up to TRIES measurements it returns the one with the least
    spread.
    """
    found = []
    for _ in range(TRIES):
        dense_us, us = rounds.in_turn([dense.call, sparse.call], seconds, least=ROUNDS)
        parts = [slice(len(us) * i // PARTS, len(us) * (i + 1) // PARTS) for i in range(PARTS)]
        inner = sorted(rounds.ratios(dense_us[part], us[part]).median for part in parts if us[part])[
            1:-1
        ] or [math.nan]
        ratio = rounds.ratios(dense_us, us)
        found.append((max(inner) / min(inner) - 1, ratio, statistics.median(dense_us), statistics.median(us)))
        if found[-1][0] <= MOST_SPREAD:
            break
    spread, ratio, dense_median, median = min(found, key=lambda each: each[0])
    return ratio.rounded(4) | {"us": round(median, 2), "dense_us": round(dense_median, 2)}, round(spread, 4)


def sparse_of(net: nn.Sequential, patterns: dict[str, BlockSparse], tokens: int, training: bool) -> Trial:
    made = copy.deepcopy(net)
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warns of block rows in which magnitude keeps no block
        sparseloom.sparsify_(made, patterns)
    return Trial(made[0], tokens, training)


def checked(layer: Record, seconds: float) -> Record:
    """Asks for advice on one layer and measures it."""
    shape = layer["in_features"], layer["out_features"]
    training = layer["training"]
    net = nn.Sequential(nn.Linear(*shape, dtype=getattr(torch, layer["dtype"])))
    tokens = fitting(net[0], layer["tokens"], training)
    dense = Trial(net[0], tokens, training)
    advice = sparseloom.advise(net, dense.x.detach(), blocks=BLOCKS, densities=DENSITIES, training=training)
    (found,), density = advice.layers, layer["density"]
    patterns = advice.patterns(density)
    options = [option for option in found.options if option.density == density and not option.bare_rows]
    tried = list(patterns.values()) or [BlockSparse(option.block, density) for option in options]
    results = {}
    for pattern in tried:
        results[named(pattern.block)] = measured(
            dense, sparse_of(net, {"0": pattern}, tokens, training), seconds
        )
    best = max(results, key=lambda block: results[block][0]["median"], default=None)
    told = {named(o.block): [round(o.us, 2), round(o.speedup(found.dense_us), 3)] for o in options}
    return layer | {
        "tokens": tokens,
        "recommended": next((block for block in results if patterns), None),
        "best": best,
        "ratio": None if best is None else results[best][0],
        "spread": None if best is None else results[best][1],
        "told": told,
        "lost": round(advice.lost, 3),
    }


def summary(records: list[Record]) -> Record:
    """Counts what the targets are about."""
    counted = [r for r in records if r["spread"] is not None and r["spread"] <= MOST_SPREAD]
    recommended = [r for r in counted if r["recommended"]]
    slower = [r for r in recommended if r["ratio"]["median"] < SLOWER]
    wins = [r for r in counted if r["ratio"]["median"] >= FASTER]
    found = [r for r in wins if r["recommended"]]
    return {
        "layers": len(records),
        "no_block_fits": sum(r["spread"] is None for r in records),
        "spread_too_wide": sum(r["spread"] is not None for r in records) - len(counted),
        "counted": len(counted),
        "recommended": len(recommended),
        "recommended_but_slower": len(slower),
        "wins": len(wins),
        "wins_recommended": len(found),
        "share_slower": round(len(slower) / max(1, len(recommended)), 4),
        "share_found": round(len(found) / max(1, len(wins)), 4),
    }


def missed(told: Record) -> bool:
    """Returns whether a summary misses a target."""
    return bool(told["share_slower"] > WRONG or told["share_found"] < FOUND or not told["counted"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--layers", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="stop after so many; the same command goes on"
    )
    parser.add_argument("--seconds", type=float, default=0.3, help="of timing for each layer and block")
    parser.add_argument("--threads", type=int, default=None, help="default: torch's own number")
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="thread: CPU time of one, on a machine that others use",
    )
    parser.add_argument(
        "--results", type=Path, default=None, help="default: bench/results of the checkout, else here"
    )
    asked = parser.parse_args(arguments)
    if asked.clock == "thread":
        asked.threads = 1
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    rounds.clock = CLOCKS[asked.clock]
    folder = asked.results or default_folder(Path("."))
    path = folder / device_slug() / "advice.json"
    about = {"suite": "advice", "seed": asked.seed, "clock": asked.clock, "seconds_per_block": asked.seconds}
    records: list[Record] = []
    if path.is_file():
        before = json.loads(path.read_text())
        if all(before.get(key) == value for key, value in about.items()):
            records = before["records"]
    end, head = time.monotonic() + 60 * asked.minutes, header("burst") | about
    for number in range(len(records), asked.layers):
        if time.monotonic() > end:
            break
        records.append(checked(drawn(asked.seed, number), asked.seconds))
        write_results(folder, "advice", head | {"counts": summary(records)}, records)
    told = summary(records)
    print(json.dumps(told, indent=2))
    for record in records:
        if record["recommended"] and record["spread"] <= MOST_SPREAD and record["ratio"]["median"] < SLOWER:
            print("slower:", record)
    return int(missed(told) and len(records) >= asked.layers)


if __name__ == "__main__":
    sys.exit(main())
