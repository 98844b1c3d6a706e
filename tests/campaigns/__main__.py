"""PYTHONPATH=python:tests python -m campaigns NAME --minutes N: see campaigns/__init__.py."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .record import RECORDS, Record, Run, machine

#: Each is a module with ``case(seed) -> {kind: cases}``, which raises AssertionError at a wrong outcome.
CAMPAIGNS = {
    "products": "random products of every family on the CPU against fp64",
    "files": "damaged files of every kind that load reads",
    "arguments": "hostile arguments to operators, layers and layouts",
    "faults": "kills, full disks, interrupts, memory limits, forks and threads",
    "cpp": "hostile calls of the C++ API under sanitizers, by the program that make sanitizers builds",
    "soak": "topologies that move for long, beside a masked twin in fp64",
    "gpu": "a GPU: products, two streams, graphs of moving topologies, too little memory, two devices",
}
#: Seconds between two writings of the record.
SAVED = 30


def run(name: str, seconds: float, path: Path | None, seed: int | None = None, seeds: int = 1) -> Run:
    """Runs a campaign for so many seconds and seeds at least, from where its record ends or from ``seed``."""
    module = importlib.import_module(f"campaigns.{name}")
    record = Record(name, path)
    first = record.next_seed if seed is None else seed
    done = Run(first, first, machine=machine(module.gpu() if hasattr(module, "gpu") else ""))
    began = saved = time.monotonic()
    while (now := time.monotonic()) < began + seconds or done.next < first + seeds:
        try:
            done.add(module.case(done.next))
        except AssertionError as error:
            done.report(done.next, str(error))
            print(f"{name}, seed {done.next}: {error}"[:2000], file=sys.stderr, flush=True)
        done.next += 1
        done.seconds = time.monotonic() - began
        if now - saved > SAVED:
            record.write(done)
            saved = now
    record.write(done)
    return done


def main(arguments: Sequence[str] | None = None) -> int:
    epilog = "\n".join(f"  {name:10} {text}" for name, text in CAMPAIGNS.items())
    parser = argparse.ArgumentParser(
        prog="campaigns", epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=CAMPAIGNS)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--seed", type=int, help="the first seed; default: where the record ends")
    parser.add_argument("--record", type=Path, help="the record to add to; default: bench/results/campaigns")
    parser.add_argument("--no-record", action="store_true", help="read and write no record")
    options = parser.parse_args(arguments)
    refusal = getattr(importlib.import_module(f"campaigns.{options.name}"), "refusal", str)()
    if refusal:
        parser.exit(2, f"{refusal}\n")
    path = None if options.no_record else options.record or RECORDS / f"{options.name}.json"
    done = run(options.name, 60 * options.minutes + options.seconds, path, options.seed)
    print(f"{options.name}: {done.cases} cases of {done.next - done.first} seeds in {done.seconds:.0f} s")
    print(f"found: {done.found}", *done.findings, sep="\n  ")
    return 1 if done.found else 0


if __name__ == "__main__":
    sys.exit(main())
