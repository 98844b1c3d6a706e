"""transformers: save_pretrained and from_pretrained of patched models, without code from the checkpoint.

Importing this module makes the checkpoints readable: transformers calls such a hook a quantizer, and finds it by the name that
config.json has, "sparseloom". Needs the transformers package; ``import sparseloom`` does not.

>>> import sparseloom.hf
>>> sparseloom.sparsify_(model, {r".*dense": sparseloom.BlockSparse(density=0.25)})
>>> sparseloom.hf.describe_(model).save_pretrained("folder")
>>> model = AutoModel.from_pretrained("folder")
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import nn
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from . import ops
from . import pattern as patterns
from .errors import Error
from .nn import BlockSparseLinear, BlockSparseMultiheadAttention
from .nn.state import int32_index, require_zero_padding
from .patch.fast_path import update_fast_paths
from .patch.sites import Site, made_sparse
from .patch.sparsify import replace, sparse_modules
from .patch.survey import survey
from .pattern import Pattern

METHOD = "sparseloom"
FORMAT_VERSION = 1
Model = TypeVar("Model", bound=nn.Module)


@register_quantization_config(METHOD)
class SparseloomConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """What config.json says of a patched model. ``layers``: {name: {"block": [rows, columns], "blocks": count}}."""

    def __init__(self, layers: dict[str, Any] | None = None, version: int = FORMAT_VERSION, **rest: Any) -> None:
        if version != FORMAT_VERSION:
            remedy = f"install a newer sparseloom than {ops.info()['version']}"
            raise Error("from_pretrained", f"format version {FORMAT_VERSION}", str(version), remedy)
        self.quant_method = METHOD  # type: ignore[assignment]
        self.version = version
        self.layers = layers or {}

    def to_dict(self) -> dict[str, Any]:
        """What is written to config.json."""
        return {"quant_method": METHOD, "version": self.version, "layers": self.layers}


@register_quantizer(METHOD)
class SparseloomQuantizer(HfQuantizer):  # type: ignore[misc]
    """Makes the layers sparse before their tensors are read, and their indices whole afterwards."""

    def _process_model_before_weight_loading(self, model: nn.Module, **rest: Any) -> None:
        layers = dict(self.quantization_config.layers)  # type: ignore[attr-defined]
        wanted: dict[int, tuple[nn.Module, str, dict[str, Pattern]]] = {}
        for site in survey(model).sites:
            found = next((layers.pop(name) for name in site.names if name in layers), None)
            if found is not None:
                entry = wanted.setdefault(id(site.module), (site.module, site.kind, {}))
                entry[2][site.weight] = _any_pattern(site, found)
        if layers:
            raise Error(
                "from_pretrained", "the linear layers of this model", ", ".join(layers), "load with the saved model's class"
            )
        for module, kind, chosen in wanted.values():
            made, _ = made_sparse(module, kind, chosen)
            replace(model, module, made)
        update_fast_paths(model)

    def _process_model_after_weight_loading(self, model: nn.Module, **rest: Any) -> None:
        for name, layer in model.named_modules():
            if isinstance(layer, BlockSparseLinear):
                crow, col = int32_index("load", f"{name}.crow", layer.crow), int32_index("load", f"{name}.col", layer.col)
                pattern = Pattern.from_index(crow, col, layer.out_features, layer.in_features, layer.block)
                require_zero_padding("load", layer.values, pattern)
                layer._set_index(pattern, layer.values.device)

    def is_serializable(self, *rest: Any, **keywords: Any) -> bool:
        """save_pretrained writes values, crow and col as they are."""
        return True

    @property
    def is_trainable(self) -> bool:
        """Block-sparse layers train like any other."""
        return True


def describe_(model: Model) -> Model:
    """Writes into model.config which layers are block-sparse; call it before save_pretrained or a Trainer saves. Returns the model.

    Call it again when a layer's number of blocks has changed. A model without block-sparse layers loses the entry. The model gets a
    config of its own: other models made from the same one are not described by this.
    """
    if getattr(model, "config", None) is None:
        raise Error("describe_", "a model of transformers", type(model).__name__, "other models: sparseloom.save")
    config = _own_config(model)
    layers = {name: entry for module, names in sparse_modules(model).items() for name in names for entry in [module]}
    described: dict[str, Any] = {}
    for name, module in layers.items():
        for inner, layer in _parts(name, module):
            described[inner] = {"block": list(layer.block), "blocks": layer.pattern.blocks}
    if described:
        config.quantization_config = SparseloomConfig(described)
    elif hasattr(config, "quantization_config"):
        del config.quantization_config
    return model


def _own_config(model: nn.Module) -> Any:
    """A copy of the model's config, put wherever its modules hold the old one or a part of it."""
    copies: dict[int, Any] = {}
    config = copy.deepcopy(model.config, copies)
    for module in model.modules():
        held = vars(module).get("config")
        if id(held) in copies:
            module.config = copies[id(held)]
    return config


def _parts(name: str, module: nn.Module) -> list[tuple[str, BlockSparseLinear]]:
    """Sparse layers of one module under the names that sparsify_ matches."""
    if isinstance(module, BlockSparseMultiheadAttention):
        parts = [(f"{name}.in_proj", module.in_proj), (f"{name}.out_proj", module.out_proj)]
    else:
        parts = [(name, module if isinstance(module, BlockSparseLinear) else module.linear)]  # type: ignore[list-item]
    return [(inner, layer) for inner, layer in parts if isinstance(layer, BlockSparseLinear)]


def _any_pattern(site: Site, entry: dict[str, Any]) -> Pattern:
    """Some pattern with the right number of blocks; the indices that are loaded say where they lie."""
    rows, cols = site.shape
    bm, bn = entry["block"]
    scores = torch.zeros(-(-rows // bm), -(-cols // bn), dtype=torch.float32, device="cpu")
    return patterns.top_k(rows, cols, (bm, bn), scores, int(entry["blocks"]))
