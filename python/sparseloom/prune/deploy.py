"""``sparseloom deploy``: makes a program of a sparse checkpoint, checks it, and says how fast it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._home import importing
from ..errors import Error
from ..quantize import quantize_
from ..report import Report, report
from .recipe_file import section

_OP = "deploy"
_KEYS: dict[str, type] = {
    "model": str, "output": str, "device": str, "dtype": str, "batch": int, "tokens": int, "int8": bool,
    "seconds": float, "compiled": bool,
}  # fmt: skip
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SCRIPT = '''"""Runs the program beside this file on texts: python run.py "a text" "another one"."""

import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer

{operators}

folder = Path(__file__).parent
program = {load}
tokenizer = AutoTokenizer.from_pretrained(folder)
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token or tokenizer.convert_ids_to_tokens(0)
texts = sys.argv[1:]
batch = tokenizer(texts, padding=True, return_tensors="pt")
with torch.no_grad():
    print(program(batch["input_ids"].to({device!r}), batch["attention_mask"].to({device!r})))
'''
_LOAD = 'torch.export.load(folder / "model.pt2").module()'
_LOAD_COMPILED = 'torch._inductor.aoti_load_package(str(folder / "model.pt2"))'


@dataclass(frozen=True)
class Deployed:
    """What ``run`` wrote: the program, the largest difference of its outputs to the model's relative to their
    largest, and the report of the model."""

    program: Path
    difference: float
    report: Report

    def __str__(self) -> str:
        return f"{self.report}\n{self.program}: within {self.difference:.1e} of the model's outputs"


class _Program(nn.Module):
    """A model of transformers whose result is one tensor: the logits, else the last hidden state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Maps token ids and their mask [batch, tokens] to [batch, ..., features]."""
        result: Any = self.model(input_ids=input_ids, attention_mask=attention_mask)
        found: Tensor = result["logits"] if "logits" in result else result["last_hidden_state"]
        return found


@torch.no_grad()
def run(path: Path) -> Deployed:
    """Does what the section [deploy] of a recipe file says, and returns what was written.

    ``model`` is a folder that transformers reads, ``output`` gets model.pt2 (a program of torch.export for
    any batch and number of tokens), report.txt, run.py and the tokenizer. Optional: ``device`` (cpu),
    ``dtype`` (the checkpoint's), ``int8`` (no), ``compiled`` (no; by AOTInductor, for CPUs like this one),
    and what is timed: ``batch`` (8), ``tokens`` (64), ``seconds`` a layer (0.3). Raises Error for other
    keys and values, for a model without a sparse layer, for a compiled program of a GPU, and for a program
    whose outputs are not the model's.
    """
    settings = section(_OP, path, "deploy", _KEYS, needed=("model", "output"))
    try:
        import transformers

        from .. import hf as hf  # rebuilds sparse layers
    except ImportError as error:
        raise Error(_OP, "the package transformers", str(error), "pip install transformers") from error
    source, output = settings["model"], Path(settings["output"])
    dtype = settings.get("dtype")
    if dtype is not None and dtype not in _DTYPES:
        raise Error(_OP, f"dtype = {', '.join(_DTYPES)}", dtype, "leave it out for the checkpoint's")
    config = transformers.AutoConfig.from_pretrained(source)
    cls = getattr(transformers, (config.architectures or ["AutoModel"])[0])
    model = cls.from_pretrained(source, dtype="auto" if dtype is None else _DTYPES[dtype]).eval()
    model.config.use_cache = False
    device, compiled = torch.device(settings.get("device", "cpu")), settings.get("compiled", False)
    if compiled and device.type != "cpu":
        raise Error(_OP, "device = cpu for compiled = yes", str(device), "leave compiled out")
    model.to(device)
    if settings.get("int8", False):
        quantize_(model)
    shape = settings.get("batch", 8), settings.get("tokens", 64)
    ways = ["eager"] + ["graph"] * (device.type == "cuda") + ["exported"] * compiled
    measured = report(model, _batch(config, *shape, device), seconds=settings.get("seconds", 0.3), ways=ways)
    output.mkdir(parents=True, exist_ok=True)
    (output / "report.txt").write_text(f"{measured}\n")
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(output)
    load = _LOAD_COMPILED if compiled else _LOAD
    (output / "run.py").write_text(_SCRIPT.format(device=str(device), operators=importing(), load=load))
    program = output / "model.pt2"
    difference = _export(_Program(model).eval(), config, device, program, compiled)
    return Deployed(program, difference, measured)


def _batch(config: Any, batch: int, tokens: int, device: torch.device) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(config.vocab_size, (batch, tokens), generator=generator).to(device)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _export(model: _Program, config: Any, device: torch.device, path: Path, compiled: bool) -> float:
    """Writes the program, and returns how far its outputs are from the model's for other shapes than it was
    exported with, a single text among them. Raises Error where they differ by more than rounding."""
    sizes = {0: torch.export.Dim("batch", min=1, max=4096), 1: torch.export.Dim("tokens", min=1, max=512)}
    example = tuple(_batch(config, 3, 16, device).values())
    exported = torch.export.export(model, example, dynamic_shapes=(sizes, sizes), strict=False)
    loaded: Any
    if compiled:
        torch._inductor.aoti_compile_and_package(exported, package_path=str(path))
        loaded = torch._inductor.aoti_load_package(str(path))
    else:
        torch.export.save(exported, path)
        loaded = torch.export.load(path).module()
    found = []
    for shape in ((2, 24), (1, 7)):
        other = tuple(_batch(config, *shape, device).values())
        expected, got = model(*other).float(), loaded(*other).float()
        found.append((expected - got).abs().max() / expected.abs().max().clamp(min=1e-30))
    difference = float(torch.stack(found).max())  # NaN stays
    least = 1e-2 if next(model.parameters()).dtype != torch.float32 else 1e-4
    if not difference <= least:
        remedy = "report it with the model's class and the versions of torch and transformers"
        raise Error(_OP, "the model's outputs from its program", f"a difference of {difference:.1e}", remedy)
    return difference
