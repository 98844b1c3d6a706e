"""Makes the table of docs/results.md: what the note that announced OpenAI's block-sparse kernels claimed, and
what came out here (bench/results/<device>/{lstm,char-lstm,sentiment,pixelcnn}.json)."""

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean, stdev

from generated import table
from result_files import Record

NONE = "not measured yet"
SHOWN = ("lstm", "char-lstm", "sentiment", "pixelcnn")
HEAD = ["what was claimed in 2018", "command here", "what came out here"]

Found = dict[str, dict[str, Record]]  # record's name -> device -> record


def read(folders: list[Path]) -> Found:
    """Returns the records that there are."""
    return {
        name: {
            folder.name: json.loads((folder / f"{name}.json").read_text())
            for folder in folders
            if (folder / f"{name}.json").exists()
        }
        for name in SHOWN
    }


def page(found: Found) -> str:
    """Returns a row for each claim; each device says what it has."""
    rows = [[claim, f"`{command}`", _each(found[name], say)] for claim, command, name, say in CLAIMS]
    return table(HEAD, rows)


def _each(records: dict[str, Record], say: Callable[[Record], str]) -> str:
    told = [f"{device}: {text}" for device, record in records.items() if (text := say(record))]
    return "; ".join(told) or NONE


def steps(run: Record) -> str:
    """Says how much faster a step is than the dense product alone, by density."""
    cells = [each for each in run["records"] if each["units"] == 12288]
    told = [f"{each['speedup']['median']:.1f}x at {100 * each['density']:.1f} %" for each in cells]
    return ", ".join(told)


def world(run: Record) -> str:
    """Says what a step of time of the cell with inner steps takes, forward and backward."""
    cells = [each for each in run["records"] if each["op"] == "small_world_lstm"]
    return ", ".join(f"{each['us']['median']:.0f} us a step of {each['units']} units" for each in cells)


def on_cpu(run: Record) -> str:
    """Says how much faster than nn.LSTM a sequence is, and by which clock."""
    told = [
        f"{each['direction']} {each['speedup']['median']:.1f}x nn.LSTM ({each['speedup']['p20']:.1f} to "
        f"{each['speedup']['p80']:.1f})"
        for each in run["records"]
        if (each["units"], each["batch"], each["density"]) == (2048, 16, 0.05) and "gpu" not in run
    ]
    how = f"threads: {run['machine']['threads']}, clock: {run['clock']}" if told else ""
    return ", ".join([*told, how] if told else [])


def characters(run: Record) -> str:
    """Says the bits per character of each arm."""
    arms, dense = run["arms"], run["arms"].get("dense")
    return ", ".join(
        f"{name} {arm['bits']:.4f} ± {arm['deviation']:.4f} of {arm['parameters']:,} parameters"
        + (f" ({100 * (arm['bits'] / dense['bits'] - 1):+.2f} %)" if dense and arm is not dense else "")
        for name, arm in arms.items()
    )


def sentiment(run: Record) -> str:
    """Says the percent of errors of each arm, by set."""
    told = []
    for arm in dict.fromkeys(each["arm"] for each in run["runs"].values()):
        errors = [each["errors"] for each in run["runs"].values() if each["arm"] == arm]
        sets = ", ".join(
            f"{name} {100 * mean(e[name] for e in errors):.2f} %" for name in run["setting"]["sets"]
        )
        told.append(f"{arm} {sets}")
    return "; ".join(told)


def pixels(run: Record) -> str:
    """Says the bits per dimension of each arm."""
    told = []
    for name, arm in run.items():
        bits = [each["test"] for each in arm["finals"]]
        told.append(f"{name} {mean(bits):.4f}" + (f" ± {stdev(bits):.4f}" if len(bits) > 1 else ""))
    return ", ".join(told)


#: claim, command that measures it here, its record, and what says what came out
CLAIMS: list[tuple[str, str, str, Callable[[Record], str]]] = [
    (
        "With 12288 units, blocks of 32 and a minibatch of 32 a product is faster than cuBLAS's, the more so "
        "the fewer blocks there are (a picture, on a Titan X Pascal)",
        "bench lstm --device cuda",
        "lstm",
        steps,
    ),
    (
        "LSTMs of almost twenty thousand units, 5 times wider than dense ones of as many parameters, are "
        "trained efficiently",
        "bench lstm --device cuda",
        "lstm",
        world,
    ),
    (
        "Small-world LSTMs of about 100 million parameters: 1.048 bits per character, dense ones 1.059",
        "experiment char-lstm",
        "char-lstm",
        characters,
    ),
    (
        "A linear model on their states: fewer errors than on those of dense ones, for all sets; 5.01 % for "
        "IMDB, 5.91 % before",
        "experiment sentiment",
        "sentiment",
        sentiment,
    ),
    (
        "PixelCNN++ with sparse kernels and more layers, CIFAR-10: 2.90 bits per dimension, 2.92 before",
        "experiment pixelcnn",
        "pixelcnn",
        pixels,
    ),
    ("Not claimed there: an LSTM of 2048 units, 5 % and batch 16 on a CPU", "bench lstm", "lstm", on_cpu),
]
