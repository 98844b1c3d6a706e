"""Picks what README.md shows of bench/results: a picture of one layer on a GPU, six rows, and the models that
lost."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cpu_goals import torch_limit
from generated import table
from gpu_tables import is_gpu, number, times
from model_tables import is_models
from result_files import Record, runs_of
from speedup_svg import Panel

#: The layer of the picture, and of the first rows.
LAYER = {"op": "linear", "dtype": "bf16", "m": 8192, "k": 4096, "n": 4096, "pattern": "balanced"}
BLOCKS = (128, 64, 32, 16)
ROWS = ((64, 0.1),)
STEP = {"op": "step", "dtype": "bf16", "m": 8192, "k": 4096, "n": 4096, "block": [64, 64], "density": 0.2}
ON_CPU = LAYER | {"direction": "forward", "m": 1024, "block": [32, 32], "density": 0.2}
MODELS = {"vit_base_patch16_224": "ViT-B/16", "bert_base": "BERT-base", "resnet50": "ResNet-50"}
#: The way of a model's row, with which the GPU waits least for the host.
WAY = "step, graph"
HEAD = ["", "on", "density, blocks", "dense", "block-sparse", "against dense"]
Found = tuple[Record, Record]  # a record, and the run that it is of


def found(runs: Iterable[Record], wanted: Record) -> Found | None:
    """Returns the newest record that has these values; None where there is none, or where it failed."""
    pairs = (
        (record, run)
        for run in runs
        for record in run["records"]
        if all(record.get(name, "balanced" if name == "pattern" else None) == wanted[name] for name in wanted)
    )
    newest = max(pairs, key=lambda pair: str(pair[1]["date"]), default=None)
    return None if newest is None or "error" in newest[0] else newest


def fair(record: Record) -> bool:
    """Whether dense is a baseline to name on a front page: a speed-up above 1 / density tells of a slow dense
    product more than of a fast sparse one."""
    return bool(record["dense_us"] / record["us"]["median"] * record["density"] <= 1)


def panels(runs: list[Record]) -> list[Panel]:
    """Returns one panel for each direction: density -> speed-up in bursts, a line for each block."""
    drawn = []
    for direction, words in (("forward", "forward"), ("dx", "dX"), ("dw", "dW")):
        lines = {}
        for side in BLOCKS:
            wanted = LAYER | {"direction": direction, "block": [side, side]}
            densities = {
                record["density"]
                for run in runs
                for record in run["records"]
                if all(record.get(name) == value for name, value in wanted.items())
            }
            measured = (found(runs, wanted | {"density": density}) for density in sorted(densities))
            points = [(r["density"], r["dense_us"] / r["us"]["median"]) for r, _ in filter(None, measured)]
            if points:
                lines[f"{side} x {side}"] = points
        if lines:
            drawn.append(Panel(words, lines))
    return drawn


def layer_row(pair: Found, what: str, where: str) -> list[str]:
    record = pair[0]
    us, dense = record["us"]["median"], record["dense_us"]
    blocks = f"{record['density']:g} of {record['block'][0]} x {record['block'][1]}"
    return [what, where, blocks, f"{number(dense)} us", f"{number(us)} us", times(dense, us)]


def model_row(pair: Found, where: str) -> list[str]:
    record, graphed = pair[0], pair[0]["graphed"]
    dense, sparse = (f"{graphed['steps_per_s'][kind]['median']:.1f} steps/s" for kind in ("dense", "sparse"))
    gain = f"{times(graphed['speedup'], 1)}; without graphs {times(record['speedup'], 1)}"
    what = f"{MODELS[record['model']]}: training step, compiled, as a CUDA graph"
    return [what, where, blocks_of(record), dense, sparse, gain]


def is_loss(row: list[str]) -> bool:
    """Whether a model's row begins by a loss: it is told under README.md's "When not", and by no row."""
    return "slower" in row[-1].partition(";")[0]


def ways_row(pair: Found, where: str) -> list[str]:
    record, ways = pair[0], pair[0]["ways"]
    dense, sparse = (f"{ways[WAY][kind]['median']:.2f} ms" for kind in ("dense", "sparse"))
    beside = {"compiled alone": "step, compiled", "inference by a graph": "inference, graph"}
    more = [
        f"{words} {times(ways[key]['speedup'], 1)}" for words, key in beside.items() if measured(ways, key)
    ]
    what = f"{MODELS[record['model']]}: training step, compiled, by one CUDA graph"
    return [what, where, blocks_of(record), dense, sparse, "; ".join([times(ways[WAY]["speedup"], 1), *more])]


def measured(ways: Record, key: str) -> bool:
    return "speedup" in ways.get(key, {})


def blocks_of(record: Record) -> str:
    parts = record["patterns"].values()
    densities = " and ".join(dict.fromkeys(f"{part['density']:g}" for part in parts))
    return f"{densities} of {' x '.join(map(str, next(iter(parts))['block']))}"


def demo_row(run: Record, where: str) -> list[str]:
    told = {line[0]: line[1:] for line in run["table"]}
    settings = run["settings"]
    blocks = f"{settings['density']:g} of {settings['block']} x {settings['block']}"
    rate, bits = told["training, tokens/s"], told["held-out bits per byte"]
    model = f"language model of {told['parameters'][0]} parameters"
    what = f"{model}: held-out bits per byte, {settings['steps']:,} steps"
    return [what, where, blocks, bits[0], bits[1], f"{bits[2]}; trained {rate[2]} as fast"]


def sources(runs: Iterable[Record]) -> str:
    """Says in one line where figures come from: devices, torch's version, commits and dates."""
    places: dict[tuple[str, str], list[Record]] = {}
    for run in runs:
        places.setdefault((run["device"], run["versions"].get("torch", "?")), []).append(run)
    words = []
    for (device, torch), of_place in places.items():
        commits = ", ".join(dict.fromkeys(str(run["commit"])[:7] for run in of_place))
        days = sorted(str(run["date"])[:10] for run in of_place)
        when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
        words.append(f"{device}: torch {torch}, {when}, {commits}")
    return "; ".join(words) + "."


def gpu_rows(runs: list[Record]) -> list[tuple[list[str], Record]]:
    """Returns the rows of one GPU, each with its run; none for what was not measured."""
    suite = [run for run in runs if is_gpu(run)]
    where = next((str(run["gpu"]["name"]).removeprefix("NVIDIA ") for run in suite), "GPU")
    size = "{m} tokens, {k} x {n}".format(**LAYER)
    rows = []
    for side, density in ROWS:
        wanted = LAYER | {"direction": "forward", "block": [side, side], "density": density}
        if pair := found(suite, wanted):
            rows.append((layer_row(pair, f"layer, {size}, bf16: forward", where), pair[1]))
    if pair := found(suite, STEP):
        rows.append((layer_row(pair, "the same with bias and GELU: training step", where), pair[1]))
    rows += [(row, run) for row, run in model_rows(runs, where) if not is_loss(row)]
    rows += [(demo_row(run, where), run) for run in [run for run in runs if run.get("preset") == "h200"][-1:]]
    return rows


def model_rows(runs: list[Record], where: str) -> list[tuple[list[str], Record]]:
    """Returns a row for each model that was measured on one GPU, by one graph where that was."""
    rows = []
    of_models = [run for run in runs if is_models(run)]
    for model in MODELS:
        if (pair := found(of_models, {"op": "ways", "model": model})) and measured(pair[0]["ways"], WAY):
            rows.append((ways_row(pair, where), pair[1]))
        elif pair := found(of_models, {"op": "model", "model": model}):
            rows.append((model_row(pair, where), pair[1]))
    return rows


def losses(folders: list[Path]) -> str:
    """Returns a line for each whole model whose step took longer; "" where none did."""
    lines = []
    for folder in folders:
        runs = runs_of(folder)
        where = next(
            (str(run["gpu"]["name"]).removeprefix("NVIDIA ") for run in runs if is_models(run)), "GPU"
        )
        rows = [row for row, _ in model_rows(runs, where) if is_loss(row)]
        lines += [f"- {row[0]}, {row[2]} on {row[1]}: {row[5].replace(' **slower**', '')}." for row in rows]
    return "\n".join(lines)


def cpu_rows(folders: Iterable[Path]) -> list[tuple[list[str], Record]]:
    """Returns the newest record of bf16 on a CPU that multiplies bf16 itself, where dense is `fair`."""
    runs = [run for folder in folders for run in runs_of(folder) if not is_gpu(run) and not torch_limit(run)]
    native = [run for run in runs if "bf16" in str(run.get("machine", {}).get("isa", ""))]
    pair = found(native, ON_CPU)
    if pair is None or not fair(pair[0]):
        return []
    what = "layer, {m} tokens, {k} x {n}, bf16: forward".format(**ON_CPU)
    threads = pair[1]["machine"]["threads"]
    return [(layer_row(pair, what, f"{cpu_name(pair[1]['device'])}, {threads} threads"), pair[1])]


def cpu_name(device: str) -> str:
    """Returns "EPYC Zen 5" for "amd-epyc-zen5-2c"."""
    generation = next((part for part in device.split("-") if part.startswith("zen")), "")
    return f"EPYC Zen {generation[3:]}" if generation else device


def front(folders: list[Path]) -> str:
    """Returns the table of README.md and where it comes from."""
    rows = [row for folder in folders for row in gpu_rows(runs_of(folder))]
    layers = sum(row[0].startswith(("layer", "the same with")) for row, _ in rows)
    rows[layers:layers] = cpu_rows(folders)
    lines: list[list[str]] = [row for row, _ in rows]
    return f"{table(HEAD, lines)}\n\n{sources(run for _, run in rows)}" if rows else "No result files yet."


def picture(folders: list[Path]) -> tuple[list[Panel], str, str]:
    """Returns the panels of the GPU on which most was measured, a title and a note; no panels where nothing
    was."""
    best: tuple[Any, ...] = (0, [], "", "")
    for folder in folders:
        runs = [run for run in runs_of(folder) if is_gpu(run)]
        drawn = panels(runs)
        points = sum(len(line) for panel in drawn for line in panel.lines.values())
        if points > best[0]:
            size = "{m} tokens, {k} x {n}, bf16".format(**LAYER)
            title = f"{runs[-1]['gpu']['name']}: speed-up over torch's dense product (dense = 1), {size}"
            best = points, drawn, title, sources(runs)
    return best[1], best[2], best[3]
