"""``sparseloom prune``: prunes a transformers checkpoint as a recipe file says, and writes another one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Error
from ..patch import BlockSparse, InLayout, Semi24
from ..patch.recipe import Recipe
from .api import prune_
from .evaluators import embedding_agreement, perplexity
from .recipe_file import checked, sections
from .result import Pruned

_OP = "prune"
_KEYS: dict[str, type] = {
    **dict.fromkeys(
        ("model", "output", "data", "evaluate", "method", "quantize", "device", "checkpoint"), str
    ),
    **dict.fromkeys(("samples", "tokens", "swaps", "refit", "reconstruct"), int),
    **dict.fromkeys(("damping", "max_loss"), float),
    **dict.fromkeys(("compensate_bias", "zeros"), bool),
}
#: Keys that are arguments of prune_.
_PASSED = (
    "method",
    "quantize",
    "compensate_bias",
    "device",
    "checkpoint",
    "swaps",
    "refit",
    "reconstruct",
    "damping",
    "max_loss",
)
#: (a target's text, the recipe of its numbers)
_TARGETS = (
    (re.compile(r"2:4"), lambda match: Semi24()),
    (re.compile(r"(\d+):(\d+)"), lambda match: InLayout("nm", n=int(match[1]), m=int(match[2]))),
    (
        re.compile(r"block (\d+)(?:x(\d+))? ([.\d]+)"),
        lambda match: BlockSparse((int(match[1]), int(match[2] or match[1])), float(match[3])),
    ),
    (re.compile(r"(csr|coo) ([.\d]+)"), lambda match: InLayout(match[1], density=float(match[2]))),
)


def read(path: Path) -> tuple[dict[str, Any], dict[str, Recipe]]:
    """Returns the settings of a recipe file and its targets, {regex: recipe}.

    The file has two sections: [prune] with model, output, data and other arguments of prune_, and [layers]
    with a line ``regex = target`` for each pattern, where a target is 2:4, n:m, "block 32 0.5" or "csr 0.5".
    Raises Error that names what is missing, unknown or no number.
    """
    prune, layers = sections(_OP, path, ["prune", "layers"])
    settings = {"zeros": False} | checked(_OP, "prune", prune, _KEYS, needed=("model", "output"))
    for key in ("samples", "tokens"):
        if settings.get(key, 1) < 1:
            raise Error(_OP, f"{key} to be 1 or more", str(settings[key]), "leave it out for the default")
    return settings, {regex: target_of(text) for regex, text in layers.items()}


def target_of(text: str) -> Recipe:
    """Returns the recipe of a target's text. Raises Error for another one."""
    for pattern, made in _TARGETS:
        if match := pattern.fullmatch(text.strip()):
            return made(match)
    raise Error(_OP, "a target 2:4, n:m, block 32 0.5 or csr 0.5", repr(text), "write one of these")


def run(path: Path) -> Pruned:
    """Does what the recipe file says, and returns the result. Raises Error as read and prune_ do, and for a
    data file that is too short."""
    settings, targets = read(path)
    try:
        import transformers

        from .. import hf as hf  # makes the checkpoint that is written readable, and writes its description
    except ImportError as error:
        raise Error(_OP, "the package transformers", str(error), "pip install transformers") from error
    source, output = settings["model"], Path(settings["output"])
    config = transformers.AutoConfig.from_pretrained(source)
    cls = getattr(transformers, (config.architectures or ["AutoModel"])[0])
    model = cls.from_pretrained(source, dtype="auto").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    samples, length = settings.get("samples", 128), settings.get("tokens", 512)
    options: dict[str, Any] = {key: settings[key] for key in _PASSED if key in settings}
    if "data" in settings:
        options["data"] = _batches(tokenizer, Path(settings["data"]), samples, length)
    if "evaluate" in settings:
        held_out = _batches(tokenizer, Path(settings["evaluate"]), samples, length)
        options["evaluate"] = _evaluator(model, held_out)
    result = prune_(model, targets, exchange=not settings["zeros"], **options)
    model.save_pretrained(output)
    tokenizer.save_pretrained(output)
    return result


def _evaluator(model: Any, batches: list[Tensor]) -> Callable[[nn.Module], float]:
    name = type(model).__name__
    decodes = name.endswith(("ForCausalLM", "LMHeadModel")) or getattr(model.config, "is_decoder", False)
    if decodes and model.get_output_embeddings() is not None:
        return perplexity(batches)
    return embedding_agreement(model, batches, forward=_states)


def _states(model: Any, batch: Tensor) -> Any:
    return model.base_model(batch)  # a head for masked tokens gives logits alone


def _batches(tokenizer: Any, path: Path, samples: int, length: int) -> list[Tensor]:
    """Returns at most ``samples`` pieces of a text, [1, length] token ids each, from all over it."""
    try:
        ids = tokenizer(path.read_text(), add_special_tokens=False)["input_ids"]
    except OSError as error:
        raise Error(_OP, f"a text in {path}", str(error), "name a text file") from error
    count = len(ids) // length
    if not count:
        remedy = "name a longer text, or write a smaller number for tokens"
        raise Error(_OP, f"a text of {length} tokens or more in {path}", f"{len(ids)} tokens", remedy)
    pieces = [ids[at * length : (at + 1) * length] for at in range(count)]
    chosen = [pieces[at * count // samples] for at in range(samples)] if count > samples else pieces
    return [torch.tensor([piece]) for piece in chosen]
