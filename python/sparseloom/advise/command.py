"""The command `sparseloom report`: a model of a factory or a folder of transformers, its report as a page,
and the data beside it."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Error
from ..report.measure import report
from ..report.result import Report
from . import advise

_OP = "sparseloom report"


def run(
    factory: str | None,
    folder: str | None,
    out: Path,
    *,
    batch: int = 1,
    tokens: int = 128,
    ways: Sequence[str] = ("eager",),
    seconds: float = 0.3,
    with_advice: bool = True,
) -> Report:
    """Measures the model, prints the report, and writes ``out`` and the plain data beside it.

    ``factory`` is MODULE:NAME of what returns (model, example input), or a model, with ``example_input``
    beside it; ``folder`` one that save_pretrained wrote, whose input is random tokens [batch, tokens]. Raises
    Error for both, for neither, and where they give no model."""
    if (factory is None) == (folder is None):
        got = "neither" if factory is None else "both"
        raise Error(_OP, "MODULE:FACTORY or --hf FOLDER", got, "sparseloom report mymodels:make")
    model, example_input = _made(factory) if factory is not None else _read(str(folder), batch, tokens)
    found = report(model.eval(), example_input, ways=ways, seconds=seconds)
    if with_advice:
        found.advice = advise(model, example_input, seconds=seconds)
    found.show()
    title = f"Sparseloom report: {factory or Path(str(folder)).resolve().name}"
    found.save(out, title)
    print(f"\nwrote {out} and {out.with_suffix('.json')}")
    return found


def _made(factory: str) -> tuple[nn.Module, Any]:
    module_name, colon, name = factory.partition(":")
    if not colon or not module_name or not name:
        raise Error(_OP, "MODULE:FACTORY", repr(factory), "sparseloom report mymodels:make")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: the module may lie where the command runs
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        remedy = "run the command where the module lies, or install it"
        raise Error(_OP, f"a module {module_name!r} that can be imported", str(error), remedy) from error
    make = getattr(module, name, None)
    if make is None:
        close = difflib.get_close_matches(name, dir(module), 1, 0.5)
        remedy = f"did you mean {module_name}:{close[0]}?" if close else "define it"
        raise Error(_OP, f"{name!r} in {module_name}", "none", remedy)
    made = make() if callable(make) and not isinstance(make, nn.Module) else make
    if isinstance(made, nn.Module) and hasattr(module, "example_input"):
        example_input = module.example_input
        made = made, example_input() if callable(example_input) else example_input
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module)):
        remedy = "return (model, example_input), or a model beside a name example_input"
        raise Error(_OP, f"{factory} to return (model, example input)", type(made).__name__, remedy)
    return made


def _read(folder: str, batch: int, tokens: int) -> tuple[nn.Module, dict[str, Tensor]]:
    try:
        import transformers

        from .. import hf  # noqa: F401 - it makes sparse checkpoints readable
    except ImportError:
        remedy = "pip install transformers, or pass MODULE:FACTORY"
        raise Error(_OP, "the package transformers", "an environment without it", remedy) from None
    if not (Path(folder) / "config.json").exists():
        remedy = "pass a folder that save_pretrained wrote"
        raise Error(_OP, "a folder with a config.json", folder, remedy)
    model = transformers.AutoModel.from_pretrained(folder)
    vocabulary = getattr(model.config, "vocab_size", None)
    if vocabulary is None:
        remedy = "pass MODULE:FACTORY, which returns (model, example input)"
        raise Error(_OP, "a model of tokens", f"a {type(model).__name__} without vocab_size", remedy)
    generator = torch.Generator().manual_seed(0)
    return model, {"input_ids": torch.randint(int(vocabulary), (batch, tokens), generator=generator)}
