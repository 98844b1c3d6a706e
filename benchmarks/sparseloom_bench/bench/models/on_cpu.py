"""`sparseloom bench models --device cpu`: one call of each model, by torch, onnxruntime, OpenVINO and sparse
layers, in one run and in turn."""

from __future__ import annotations

import copy
import importlib.metadata
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table
from torch import Tensor, nn

from sparseloom.patch import sparsify_
from sparseloom.quantize import quantize_
from sparseloom.timing.busy import Watch
from sparseloom.timing.rounds import Spread, in_turn, quotient

from . import runtimes
from .cpu_zoo import CpuSpec

Record = dict[str, Any]
Call = Callable[[], Tensor]

#: The columns, in order. "torch eager" is what every ratio is to.
COLUMNS = (
    "torch eager", "torch compile", "torch eager bf16", "torch compile bf16", "onnxruntime fp32",
    "onnxruntime int8", "openvino fp32", "openvino bf16", "openvino int8", "ours fp32", "ours bf16",
    "ours int8",
)  # fmt: skip
#: A column that takes so many times as long as eager torch is called once: without units for bf16, torch
#: multiplies it by a plain loop.
SLOW = 8.0


def measured(spec: CpuSpec, smoke: bool, seconds: float, say: Callable[[str], None]) -> Record:
    """Returns the record of one model. What cannot run has "note" in place of its times."""
    spec.require()
    sizes = spec.smoke if smoke else spec.sizes
    torch.manual_seed(0)
    model, trained = spec.make(sizes)
    model.eval()
    inputs = spec.inputs(sizes, torch.Generator().manual_seed(0))
    columns: dict[str, Record] = {name: {} for name in COLUMNS}
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        calls = _calls(spec, model, inputs, Path(folder), columns, compiled=not smoke)
        exact = calls["torch eager"]().float()
        limit, ready = 0.0, dict[str, Call]()
        for name, call in calls.items():
            try:
                result = call()
                begin = time.perf_counter()
                call()
                took = time.perf_counter() - begin
            except Exception as error:  # of another package's runtime
                columns[name] = {"note": f"{type(error).__name__}: {_line(error, 400)}"}
                continue
            columns[name]["cosine"] = round(_cosine(result.float(), exact), 4)
            limit = limit or SLOW * took
            if took <= limit:
                ready[name] = call
            else:
                columns[name] |= {"ms": {"median": round(1e3 * took, 3)}, "note": "called once"}
        samples = in_turn(list(ready.values()), seconds * len(ready), None)
        watch.look()
    eager = samples[0]
    for name, us in zip(ready, samples, strict=True):
        columns[name]["ms"] = Spread.of([each / 1e3 for each in us]).rounded(4)
        columns[name]["speedup"] = quotient(eager, us).rounded(3)
    say(f"{spec}: eager {columns['torch eager']['ms']['median']:.2f} ms, {100 * watch.lost:.0f} % lost")
    parameters = sum(each.numel() for each in model.parameters())
    return {
        "op": "cpu model", "model": spec.name, "input": {name: list(x.shape) for name, x in inputs.items()},
        "parameters": parameters, "trained": trained, "patterns": _described(spec), "columns": columns,
        "lost": round(watch.lost, 3), "rounds": len(eager),
    }  # fmt: skip


def _calls(
    spec: CpuSpec, model: nn.Module, inputs: dict[str, Tensor], folder: Path, columns: dict[str, Record],
    compiled: bool,
) -> dict[str, Call]:  # fmt: skip
    """Returns the calls of the columns that can run, in their order. ``columns`` gets a note for others."""
    names, given = list(inputs), list(inputs.values())
    narrow = [x.bfloat16() if x.is_floating_point() else x for x in given]

    def of(called: Callable[..., Any], x: Sequence[Tensor]) -> Call:
        return lambda: _first(called(*x))

    sparse = copy.deepcopy(model)
    sparsify_(sparse, spec.patterns)
    small = copy.deepcopy(sparse)
    twins = {"torch eager": model, "ours fp32": sparse}
    made = {name: of(twin, given) for name, twin in twins.items()}
    half = {
        f"{name.removesuffix(' fp32')} bf16": copy.deepcopy(twin).bfloat16() for name, twin in twins.items()
    }
    made |= {name: of(twin, narrow) for name, twin in half.items()}
    try:
        quantize_(small)
        made["ours int8"] = of(small, given)
    except Exception as error:  # no layer that has 8 bits, such as in a network of convolutions
        columns["ours int8"] = {"note": _line(error)}
    if compiled:
        made["torch compile"] = of(torch.compile(model), given)
        made["torch compile bf16"] = of(torch.compile(half["torch eager bf16"]), narrow)
    else:
        columns["torch compile"] = columns["torch compile bf16"] = {"note": "not in --smoke"}
    path = None
    try:
        path = runtimes.exported(model, inputs, folder / "dense.onnx")
    except Exception as error:
        for name in COLUMNS:
            if name.startswith(("onnxruntime", "openvino")):
                columns[name] = {"note": f"not exported: {_line(error)}"}
    for package, by in (("onnxruntime", runtimes.by_onnxruntime), ("openvino", runtimes.by_openvino)):
        if path is not None and runtimes.installed(package):
            try:
                made |= {
                    f"{package} {kind}": (lambda call=call: call(given))  # type: ignore[misc]
                    for kind, call in by(path, names).items()
                }
            except Exception as error:
                columns[f"{package} fp32"] = {"note": _line(error)}
    for name in COLUMNS:
        if name not in made and "note" not in columns[name]:
            columns[name] = {"note": runtimes.NOT_INSTALLED}
    return {name: made[name] for name in COLUMNS if name in made}


def run(
    specs: list[CpuSpec], smoke: bool, seconds: float, say: Callable[[str], None] = print
) -> tuple[Record, list[Record]]:
    """Returns what the head of the results file adds, and the records; a model that fails gets one with its
    error."""
    records = []
    for spec in specs:
        try:
            records.append(measured(spec, smoke, seconds, say))
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            words = f"{type(error).__name__}: {_line(error)}"
            records.append({"op": "cpu model", "model": spec.name, "error": words})
        torch._dynamo.reset()  # torch.compile's graphs hold the model
    versions = {}
    for package in ("onnxruntime", "openvino", "nncf", "transformers", "timm", "torchvision"):
        if runtimes.installed(package):
            versions[package] = importlib.metadata.version(package)
    return {"suite": "models", "device": "cpu", "smoke": smoke, "packages": versions}, records


def failed(records: list[Record]) -> list[str]:
    """Returns a sentence for everything that does not hold: an error, a column that is not a number, or one
    whose result has nothing of eager torch's though all weights are there."""
    sentences = []
    for record in records:
        if "error" in record:
            sentences.append(f"{record['model']}: {record['error']}")
            continue
        for name, column in record["columns"].items():
            dense = not name.startswith("ours") and "cosine" in column
            if dense and not column["cosine"] > 0.9:
                sentences.append(f"{record['model']}, {name}: cosine {column['cosine']} with eager torch")
    return sentences


def table(records: list[Record]) -> Table:
    """Returns the table to print: a row per model and column."""
    out = Table("model", "by", "ms", "of torch eager's speed", "cosine", "note")
    for record in records:
        if "error" in record:
            out.add_row(record["model"], "", "", "", "", record["error"])
            continue
        for name, column in record["columns"].items():
            speed = column.get("speedup")
            words = f"{speed['median']:.2f} ({speed['p20']:.2f} to {speed['p80']:.2f})" if speed else ""
            ms = f"{column['ms']['median']:.2f}" if "ms" in column else ""
            quality = f"{column['cosine']:.3f}" if record["trained"] and "cosine" in column else ""
            out.add_row(record["model"], name, ms, words, quality, column.get("note", ""))
    return out


def _first(result: Any) -> Tensor:
    first: Tensor = result[0] if isinstance(result, tuple) else result
    return first


def _cosine(a: Tensor, b: Tensor) -> float:
    """Returns the mean cosine of the results' last dimension."""
    return float(torch.nn.functional.cosine_similarity(a, b, dim=-1).mean())


def _described(spec: CpuSpec) -> dict[str, dict[str, Any]]:
    return {
        regex: {"block": list(each.shape), "density": each.density} for regex, each in spec.patterns.items()
    }


def _line(error: BaseException, length: int = 200) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:length]
