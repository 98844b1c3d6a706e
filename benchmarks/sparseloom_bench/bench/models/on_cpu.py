"""`sparseloom bench models --device cpu`: one call of each model, by torch, onnxruntime, OpenVINO and sparse
layers, in one run and in turn."""

from __future__ import annotations

import copy
import fcntl
import importlib.metadata
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import IO, Any

import torch
from rich.table import Table
from torch import Tensor, nn

from sparseloom import advise
from sparseloom.patch import Bitmap, sparsify_
from sparseloom.quantize import quantize_
from sparseloom.report.ways import EXPORTED, forward_call
from sparseloom.timing.busy import Watch
from sparseloom.timing.rounds import Spread, in_turn, quotient

from . import runtimes
from .cpu_zoo import ALL, CpuSpec

Record = dict[str, Any]
Call = Callable[[], Tensor]

#: The columns, in order, before those of a model's unstructured weights. "torch eager" is what every ratio is
#: to; "export" is torch.export and AOTInductor, whose calls need neither Python nor guards.
COLUMNS = (
    "torch eager", "torch compile", "torch eager bf16", "torch compile bf16", "onnxruntime fp32",
    "onnxruntime int8", "openvino fp32", "openvino bf16", "openvino int8", "openvino int8 weights",
    "ours fp32", "ours bf16", "ours int8", "ours int8 in bf16", "ours compile bf16",
    "ours compile int8 in bf16", "torch export bf16", "ours export bf16", "ours export int8 in bf16",
    "ours as advised",
)  # fmt: skip
#: Of models with unstructured weights: all weights in 8 bits, none left out, by our kernels.
DENSE_INT8 = "ours export int8 of all weights"
#: A column that takes so many times as long as eager torch is called once: without units for bf16, torch
#: multiplies it by a plain loop.
SLOW = 8.0
#: Seconds in which the threads of all runtimes go to sleep: onnxruntime's take the cores for 35 ms behind a
#: call (findings/onnxruntime-threads-spin-behind-a-call.sh), torch's for 9; what followed took twice as long.
_PAUSE = 0.05
#: The column of what advise() recommends, and notes of columns that there is no time for.
_ADVISED, _LIMIT, _SMOKE = "ours as advised", "not within {:g} s", "not in --smoke"
#: The longest note.
_WORDS = 200


def columns_of(spec: CpuSpec) -> tuple[str, ...]:
    kinds = tuple(f"{way}{kind}" for way in ("", "export ") for kind in ("bf16", "int8 in bf16"))
    bitmaps = tuple(f"ours bitmap {density:g} {kind}" for density in spec.unstructured for kind in kinds)
    return COLUMNS + bitmaps + (DENSE_INT8,) * bool(bitmaps)


def measured(
    spec: CpuSpec,
    smoke: bool,
    seconds: float,
    say: Callable[[str], None],
    limit: float | None = None,
    turn: IO[str] | None = None,
) -> Record:
    """Returns the record of one model. What cannot run has "note" in place of its times. ``limit``: seconds
    after which no further column is made. ``turn``: a file that this process holds a shared lock of, for its
    own one while it measures: processes that share the file prepare at once and measure one by one."""
    begin = time.perf_counter()
    spec.require()
    sizes = spec.smoke if smoke else spec.sizes
    torch.manual_seed(0)
    model, trained = spec.make(sizes)
    model.eval()
    inputs = spec.inputs(sizes, torch.Generator().manual_seed(0))
    columns: dict[str, Record] = {name: {} for name in columns_of(spec)}
    ready: dict[str, Call] = {}
    slow = 0.0
    exact: dict[str, Tensor] = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        makers = _makers(spec, model, inputs, Path(folder), compiled=not smoke)
        for name in sorted(makers, key=_costs):
            if limit is not None and ready and time.perf_counter() - begin > limit:
                columns[name] = {"note": _LIMIT.format(limit)}
                continue
            try:
                call = makers[name]()
                result = call().float()
                start = time.perf_counter()
                call()
                took = time.perf_counter() - start
            except Exception as error:  # of another package, or of a CPU without a kernel
                columns[name] = {"note": f"{type(error).__name__}: {_line(error)}"}
                continue
            columns[name]["cosine"] = round(_cosine(result, exact.setdefault("torch", result)), 4)
            if name.startswith("ours") and "bitmap" not in name:  # what fewer bits cost the same weights
                columns[name]["of_own_fp32"] = round(_cosine(result, exact.setdefault("ours", result)), 4)
            slow = slow or SLOW * took
            if took <= slow:
                ready[name] = call
            else:
                columns[name] |= {"ms": {"median": round(1e3 * took, 3)}, "note": "called once"}
        prepared = time.perf_counter() - begin
        foretold: Record
        with _alone(turn):
            watch = Watch()
            try:
                foretold = {"note": _SMOKE} if smoke else _advised(model, inputs, ready)
            except Exception as error:
                foretold = {"note": f"{type(error).__name__}: {_line(error)}"}
            samples = in_turn(list(ready.values()), seconds * len(ready), None, pause=_PAUSE)
            watch.look()
    columns[_ADVISED] = foretold
    for name in columns:
        if name not in makers and name != _ADVISED:
            words = _SMOKE if " compile" in name or " export" in name else runtimes.NOT_INSTALLED
            columns[name] = {"note": words}
    eager = samples[0]
    for name, us in zip(ready, samples, strict=True):
        columns[name]["ms"] = Spread.of([each / 1e3 for each in us]).rounded(4)
        columns[name]["speedup"] = quotient(eager, us).rounded(3)
    if "predicted_ms" in foretold:
        words = f"advise predicted {foretold['predicted_ms']:.2f} ms"
        columns[_ADVISED]["note"] = words + " beside other work" * foretold["disturbed"]
    say(
        f"{spec}: eager {columns['torch eager']['ms']['median']:.2f} ms, {100 * watch.lost:.0f} % lost, "
        f"{len(eager)} rounds, {time.perf_counter() - begin:.0f} s"
    )
    parameters = sum(each.numel() for each in model.parameters())
    return {
        "op": "cpu model", "model": spec.name, "input": {name: list(x.shape) for name, x in inputs.items()},
        "parameters": parameters, "trained": trained, "patterns": _described(spec), "columns": columns,
        "lost": round(watch.lost, 3), "rounds": len(eager), "prepared_s": round(prepared, 1),
    }  # fmt: skip


def _advised(model: nn.Module, inputs: dict[str, Tensor], ready: dict[str, Call]) -> Record:
    """Puts the model as advise() recommends it, of a quarter of the blocks, among the calls that are ready;
    returns its column, with the time that advise predicts."""
    advice = advise(model, inputs, densities=(0.25,))
    best = advice.best()
    if advice.model is None or not best:
        return {"note": "advise recommends nothing"}
    twin = copy.deepcopy(model)
    with torch.enable_grad():
        sparsify_(twin, best)
    twin.eval()
    ready[_ADVISED] = lambda: _first(twin(**inputs))
    foretold = advice.model
    return {"predicted_ms": round(foretold.predicted_us / 1e3, 3), "disturbed": foretold.disturbed}


@contextmanager
def _alone(turn: IO[str] | None) -> Iterator[None]:
    if turn is not None:
        fcntl.flock(turn, fcntl.LOCK_UN)  # two that wait for each other's shared lock would never get on
        fcntl.flock(turn, fcntl.LOCK_EX)
    yield
    if turn is not None:
        fcntl.flock(turn, fcntl.LOCK_UN)


def _costs(name: str) -> int:
    """Returns the place at which a column is made: with a limit of time those that take longest come last,
    but for exported ones, in which few tokens are fastest."""
    if name == "torch eager":
        return 0
    if " export " in name:
        return 2
    order = ("openvino int8", "torch compile", "ours compile", "onnxruntime int8", "onnxruntime", "openvino")
    at = next((at for at, start in enumerate(order) if name.startswith(start)), len(order))
    return len(order) - at + 1 - 2 * (name == "openvino int8 weights")  # nncf looks for no ranges then


def _makers(
    spec: CpuSpec, model: nn.Module, inputs: dict[str, Tensor], folder: Path, compiled: bool
) -> dict[str, Callable[[], Call]]:  # fmt: skip
    """Returns what makes the calls of the columns that are installed. Models and the file that two columns
    share are made once."""
    names, given = list(inputs), list(inputs.values())
    narrow = [x.bfloat16() if x.is_floating_point() else x for x in given]

    def of(called: Callable[..., Any], x: Sequence[Tensor]) -> Call:
        return lambda: _first(called(*x))

    @cache
    def sparse(dtype: torch.dtype, eight: bool = False, density: float | None = None) -> nn.Module:
        twin = copy.deepcopy(model).to(dtype)
        patterns: dict[str, Any] = dict(spec.patterns)
        if density is not None:
            patterns = dict.fromkeys(patterns, ALL if density == 1 else Bitmap(density))
        if eight:
            patterns |= spec.all_in_int8
        with torch.enable_grad():
            sparsify_(twin, patterns)
        if eight:
            quantize_(twin)
        return twin.eval()

    @cache
    def path() -> Path:
        found = runtimes.exported(model, inputs, folder / "dense.onnx")
        assert found is not None
        return found

    half = cache(lambda: copy.deepcopy(model).bfloat16())

    def ahead(twin: nn.Module) -> Call:
        call = forward_call(EXPORTED, twin, narrow)
        return lambda: _first(call())

    made: dict[str, Callable[[], Call]] = {
        "torch eager": lambda: of(model, given),
        "torch eager bf16": lambda: of(half(), narrow),
        "ours fp32": lambda: of(sparse(torch.float32), given),
        "ours bf16": lambda: of(sparse(torch.bfloat16), narrow),
        "ours int8": lambda: of(sparse(torch.float32, True), given),
        "ours int8 in bf16": lambda: of(sparse(torch.bfloat16, True), narrow),
    }
    for density in spec.unstructured:
        for kind, eight in (("bf16", False), ("int8 in bf16", True)):
            made[f"ours bitmap {density:g} {kind}"] = lambda density=density, eight=eight: of(  # type: ignore[misc]
                sparse(torch.bfloat16, eight, density), narrow
            )
    if compiled:
        twins = {"torch export bf16": half, "ours export bf16": lambda: sparse(torch.bfloat16)}
        twins["ours export int8 in bf16"] = lambda: sparse(torch.bfloat16, True)
        for density in spec.unstructured:
            start = f"ours bitmap {density:g} export"
            twins[f"{start} bf16"] = partial(sparse, torch.bfloat16, False, density)
            twins[f"{start} int8 in bf16"] = partial(sparse, torch.bfloat16, True, density)
        if spec.unstructured:
            twins[DENSE_INT8] = partial(sparse, torch.bfloat16, True, 1.0)
        for name, twin in twins.items():
            made[name] = lambda twin=twin: ahead(twin())  # type: ignore[misc]
        made["torch compile"] = lambda: of(torch.compile(model), given)
        made["torch compile bf16"] = lambda: of(torch.compile(half()), narrow)
        made["ours compile bf16"] = lambda: of(torch.compile(sparse(torch.bfloat16)), narrow)
        made["ours compile int8 in bf16"] = lambda: of(torch.compile(sparse(torch.bfloat16, True)), narrow)
    if not runtimes.installed("onnx", "onnxscript"):
        return made
    by: dict[str, Callable[[], runtimes.Makers]] = {
        "onnxruntime": lambda: runtimes.by_onnxruntime(path, names),
        "openvino": lambda: runtimes.by_openvino(path, names, given, "input_ids" in inputs),
    }
    for package, makers in by.items():
        if runtimes.installed(package):
            for kind, maker in makers().items():
                made[f"{package} {kind}"] = lambda maker=maker: partial(maker(), given)  # type: ignore[misc]
    return made


def run(
    specs: list[CpuSpec],
    smoke: bool,
    seconds: float,
    limit: float | None = None,
    turn: Path | None = None,
    say: Callable[[str], None] = print,
) -> tuple[Record, list[Record]]:
    """Returns what the head of the results file adds, and the records; a model that fails gets one with its
    error."""
    records = []
    shared = None if turn is None else turn.open("w")
    for spec in specs:
        if shared is not None:
            fcntl.flock(shared, fcntl.LOCK_SH)
        try:
            records.append(measured(spec, smoke, seconds, say, limit, shared))
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
    out = Table("model", "by", "ms", "of torch eager's speed", "cosine", "of its fp32", "note")
    for record in records:
        if "error" in record:
            out.add_row(record["model"], "", "", "", "", "", record["error"])
            continue
        for name, column in record["columns"].items():
            speed = column.get("speedup")
            words = f"{speed['median']:.2f} ({speed['p20']:.2f} to {speed['p80']:.2f})" if speed else ""
            ms = f"{column['ms']['median']:.2f}" if "ms" in column else ""
            quality = f"{column['cosine']:.3f}" if record["trained"] and "cosine" in column else ""
            own = f"{column['of_own_fp32']:.3f}" if "of_own_fp32" in column else ""
            out.add_row(record["model"], name, ms, words, quality, own, column.get("note", ""))
    return out


def _first(result: Any) -> Tensor:
    first: Tensor = result[0] if isinstance(result, (tuple, list)) else result
    return first


def _cosine(a: Tensor, b: Tensor) -> float:
    """Returns the mean cosine of the results' last dimension."""
    return float(torch.nn.functional.cosine_similarity(a, b, dim=-1).mean())


def _described(spec: CpuSpec) -> dict[str, dict[str, Any]]:
    return {
        regex: {"block": list(each.shape), "density": each.density} for regex, each in spec.patterns.items()
    }


def _line(error: BaseException, length: int = _WORDS) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:length]
