"""Makes tables of the whole models' results files (bench/results/<gpu>/models*.json), and of the demo's."""

from typing import Any

from generated import table
from result_files import Record, caption

#: A ResNet-50 has twenty shapes; the record has them all.
MOST_SHAPES = 8


def is_models(run: Record) -> bool:
    return run.get("suite") == "models" and run.get("device") != "cpu"


def page(runs: list[Record]) -> str:
    """Shows the newest record of each model: a table of the training, one of its products, and one of batch
    sizes."""
    newest: dict[str, tuple[Record, Record]] = {}
    ways: dict[str, tuple[Record, Record]] = {}
    for run in sorted(runs, key=lambda run: str(run["date"])):
        for record in run["records"]:
            (ways if record.get("op") == "ways" else newest)[record["model"]] = record, run
    found = list(newest.values())
    head = [
        "model",
        "layers",
        "parameters",
        "steps/s (p20 to p80)",
        "dense steps/s",
        "against dense",
        "by CUDA graphs",
        "memory GB",
        "dense GB",
        "loss",
        "dense loss",
        "reloaded",
    ]
    parts = [table(head, [training_row(record) for record, _ in found])] if found else []
    if ways:
        parts += [
            "Milliseconds of ours and of dense, and dense over ours: inference in bf16, and a training step "
            "under bf16 autocast with fused AdamW; smallest: one image, text or token.",
            table(*ways_table([record for record, _ in ways.values()])),
        ]
    for record, _ in found:
        if "error" not in record:
            parts += [
                f"{about(record)}, eager, in bf16:",
                table(*layer_table(record)),
            ]
        if "error" not in record and record["model"] not in ways:  # which say it for each way to run
            parts.append(table(*batch_table(record)))
    shown = [run for _, run in [*found, *ways.values()]]
    gpus = ", ".join(dict.fromkeys(run["gpu"]["name"] for run in shown))
    captions = dict.fromkeys(caption(run) for run in shown)
    return "\n\n".join([f"{gpus}.", *parts, "\n".join(captions)])


def about(record: Record) -> str:
    chosen = ", ".join(
        f"`{regex}` {each['density']:g} of {'x'.join(map(str, each['block']))}"
        for regex, each in record["patterns"].items()
    )
    size = " x ".join(map(str, record["input"]))
    return f"{record['model']} ({record['class']} of {record['package']}), input {size}; {chosen}"


def training_row(record: Record) -> list[str]:
    if "error" in record:
        return [record["model"], f"failed: {record['error']}".replace("|", "/"), *[""] * 10]
    (before, after), rates, memory = record["parameters"], record["steps_per_s"], record["training_bytes"]
    sparse = rates["sparse"]
    losses = (f"{record[kind][0]:.3f} to {record[kind][-1]:.3f}" for kind in ("losses", "dense_losses"))
    return [
        record["model"],
        str(record["layers"]),
        f"{before / 1e6:.1f}M to {after / 1e6:.1f}M",
        f"{sparse['median']:.1f} ({sparse['p20']:.1f} to {sparse['p80']:.1f})",
        f"{rates['dense']['median']:.1f}",
        times(record["speedup"]),
        graphed(record["graphed"]),
        *("-" if memory[kind] is None else f"{memory[kind] / 1e9:.2f}" for kind in ("sparse", "dense")),
        *losses,
        "equal in every bit" if record["reloaded_equal"] else "**different**",
    ]


def ways_table(records: list[Record]) -> tuple[list[str], list[list[str]]]:
    """Returns a row for each model and kind of call, with a column for each way to run it."""
    rows, ways = list[list[str]](), list[str]()
    for record in records:
        kinds = dict[str, dict[str, str]]()
        for name, column in record.get("ways", {}).items():
            kind, _, way = name.rpartition(", ")
            kinds.setdefault(kind, {})[way] = ways_cell(column)
            if way not in ways:
                ways.append(way)
        rows += [
            [record["model"], kind, *(cells.get(way, "-") for way in ways)] for kind, cells in kinds.items()
        ]
    return ["model", "call", *ways], rows


def ways_cell(column: Record) -> str:
    if "error" in column:
        return "failed"
    sparse, dense = (column[kind]["median"] for kind in ("sparse", "dense"))
    return f"{sparse:.3g} / {dense:.3g} = {times(column['speedup'])}"


def graphed(rates: Record) -> str:
    sparse, dense = (rates["steps_per_s"][kind]["median"] for kind in ("sparse", "dense"))
    return f"{sparse:.1f} / {dense:.1f} = {times(rates['speedup'])}"


def layer_table(record: Record) -> tuple[list[str], list[list[str]]]:
    """Returns a table with the first layer of each shape, of those shapes that most layers have."""
    shapes: dict[tuple[Any, ...], list[Record]] = {}
    for layer in record["report"]["layers"]:
        if layer["times"]:
            shapes.setdefault((*layer["shape"], *layer["block"], layer["tokens"]), []).append(layer)
    rows = []
    for layers in sorted(shapes.values(), key=len, reverse=True)[:MOST_SHAPES]:
        first = layers[0]
        kernels = ", ".join(dict.fromkeys(first["kernels"].values()))
        even = (first["break_even"].get(direction) for direction in ("forward", "backward"))
        rows.append(
            [
                f"{first['name']} and {len(layers) - 1} more",
                " x ".join(map(str, first["shape"])),
                str(first["tokens"] or ""),
                f"{first['density']:.3g}",
                kernels,
                *timed(first),
                " / ".join("never" if density is None else f"{density:.2f}" for density in even),
            ]
        )
    return ["layer", "shape", "tokens", "density", "kernels", "forward us", "backward us", "break-even"], rows


def batch_table(record: Record) -> tuple[list[str], list[list[str]]]:
    rows = [
        [str(batch["batch"]), *timed(batch), batch["note"].replace("|", "/")]
        for batch in record["report"]["batches"]
    ]
    return ["batch, whole model", "forward us", "backward us", "note"], rows


def timed(entry: Record) -> list[str]:
    """Returns forward and backward times, beside dense's."""
    cells = []
    for direction in ("forward", "backward"):
        if direction not in (entry["times"] or {}):
            cells.append("-")
            continue
        ours, dense = entry["times"][direction], (entry["dense_times"] or {}).get(direction)
        cells.append(
            f"{ours:,.0f}" if dense is None else f"{ours:,.0f} / {dense:,.0f} = {times(dense / ours)}"
        )
    return cells


def times(speedup: float) -> str:
    """Formats a speed-up; one below 1 is marked as slower."""
    return f"{speedup:.2f}x" + (" **slower**" if speedup < 1 else "")


def quality_table(run: Record) -> str:
    """Returns the demo's experiment: held-out bits per byte of both models, medians over seeds at each one's
    best learning rate."""
    rows = []
    for entry in run["summary"]:
        excess = entry.get("excess_percent")
        against = "" if excess is None else f"{excess:+.1f} %"
        rows.append(
            [
                entry["model"],
                f"{entry['held_out_bits_per_byte']:.3f}",
                against,
                f"{entry['lr']:g}",
                str(entry["seeds"]),
            ]
        )
    settings = run["settings"]
    about = (
        f"Density {settings['density']:g}, blocks of {settings['block']}, "
        f"{settings['steps']} steps on {run['text']['name']}"
    )
    head = ["model", "bits per byte", "against dense", "learning rate", "seeds"]
    return f"{table(head, rows)}\n\n{about}. {caption(run)}"


def demo_table(run: Record) -> str:
    """Returns the demo's own table of figures, of a model trained on a GPU."""
    settings = run["settings"]
    size = ", ".join(
        f"{key} {settings[key]}"
        for key in ("width", "layers", "density", "block", "steps")
        if key in settings
    )
    head = ["", "dense", "block-sparse", "sparse against dense"]
    return (
        f"{table(head, run['table'])}\n\n{size}; {run['gpu']}, {run['seconds']:.0f} s in all. {caption(run)}"
    )
