"""Makes the table of the whole models of a CPU (bench/results/<cpu>/models*.json)."""

from generated import table
from result_files import Record, caption

#: The table's columns: their names, and the record's columns of which the fastest that ran is taken.
SHOWN = {
    "torch": ("torch eager", "torch compile"),
    "torch bf16": ("torch eager bf16", "torch compile bf16", "torch export bf16"),
    "onnxruntime int8": ("onnxruntime int8",),
    "OpenVINO bf16": ("openvino bf16",),
    "OpenVINO int8": ("openvino int8", "openvino int8 weights"),
    "ours fp32": ("ours fp32",),
    "ours bf16": ("ours bf16", "ours compile bf16", "ours export bf16"),
    "ours int8": (
        "ours int8", "ours int8 in bf16", "ours compile int8 in bf16", "ours export int8 in bf16",
    ),
    "bitmap .5 bf16": ("ours bitmap 0.5 bf16", "ours bitmap 0.5 export bf16"),
    "bitmap .5 int8": ("ours bitmap 0.5 int8 in bf16", "ours bitmap 0.5 export int8 in bf16"),
}  # fmt: skip


def is_cpu_models(run: Record) -> bool:
    return run.get("suite") == "models" and run.get("device") == "cpu" and not run.get("smoke")


def cpu_models_part(runs: list[Record]) -> str:
    """Returns milliseconds of the newest record of each model, with the fastest one bold."""
    newest: dict[str, tuple[Record, Record]] = {}
    for run in sorted(runs, key=lambda run: str(run["date"])):
        newest |= {record["model"]: (record, run) for record in run["records"] if "error" not in record}
    rows = [[name, *cells(record["columns"])] for name, (record, _) in newest.items()]
    captions = dict.fromkeys(caption(run) for _, run in newest.values())
    return "\n\n".join([table(["model", *SHOWN], rows), "\n".join(captions)])


def cells(columns: Record) -> list[str]:
    times = [
        min((columns[name]["ms"]["median"] for name in names if "ms" in columns.get(name, {})), default=None)
        for names in SHOWN.values()
    ]
    least = min(each for each in times if each is not None)
    texts = ["-" if ms is None else f"{ms:.0f}" if ms >= 100 else f"{ms:.3g}" for ms in times]
    return [f"**{text}**" if ms == least else text for text, ms in zip(texts, times, strict=True)]
