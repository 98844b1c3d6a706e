"""Makes the table of sparse layers on several GPUs (bench/results/<gpu>/ranks.json)."""

from generated import table
from result_files import Record, caption

HEAD = ["way", "MLPs", "tokens/s", "over one GPU", "over dense", "NCCL ms", "of which exposed"]


def is_ranks(run: Record) -> bool:
    return run.get("suite") == "ranks"


def _ratio(record: Record, key: str) -> str:
    return f"{record[key]['median']:.2f}" if key in record else ""


def _ms(record: Record, key: str) -> str:
    return f"{record[key] / 1000:.1f}" if key in record else ""


def page(run: Record) -> str:
    """Shows a row for each way to share a model, with dense and with sparse MLPs."""
    rows = [
        [
            record["way"],
            record["mlp"],
            f"{record['tokens_per_s']:,}",
            _ratio(record, "over_one_gpu"),
            _ratio(record, "over_dense"),
            _ms(record, "communication_us"),
            _ms(record, "exposed_us"),
        ]
        for record in run["records"]
    ]
    return f"{run['world']} GPUs.\n\n{table(HEAD, rows)}\n\n{caption(run)}"
