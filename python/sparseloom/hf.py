"""transformers: save_pretrained and from_pretrained of patched models, without code from the checkpoint.

Importing this module makes the checkpoints readable: transformers calls such a hook a quantizer, and finds it
by the name in config.json, "sparseloom". The module needs transformers 5; ``import sparseloom`` does not.

>>> import sparseloom.hf
>>> sparseloom.sparsify_(model, {r".*dense": sparseloom.BlockSparse(density=0.25)})  # also in model.config
>>> model.save_pretrained("folder")
>>> model = AutoModel.from_pretrained("folder")
>>> config = sparseloom.hf.SparsifyConfig({r".*dense": sparseloom.BlockSparse(density=0.25)})
>>> model = AutoModel.from_pretrained("dense_folder", quantization_config=config)  # sparse when it is loaded
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, WeightRenaming
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from . import ops
from ._arguments import nearest
from .attention.serving import register
from .errors import Error
from .nn.held.fusions import Fusions
from .patch.described import (
    described,
    fill_indices,
    fuse_described,
    lost_in_files,
    make_described,
    names_in_files,
)
from .patch.keys import with_keys
from .patch.recipe import Recipe
from .patch.sparsify import sparsify_

METHOD = "sparseloom"
#: Options of sparsify_ that a model has before anybody trains it.
_OPTIONS = ("strict", "dense_copy", "fuse")
register()  # attn_implementation="sparseloom"
# In version 1 the blocks are called values in the file too, and nothing stops transformers without this
# module. Version 3 has entries of other layouts than blocks.
_READABLE = (1, 2, 3)
FORMAT_VERSION, _OF_LAYOUTS = 2, 3
Model = TypeVar("Model", bound=nn.Module)


@register_quantization_config(METHOD)
class SparseloomConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """The entry of a patched model in config.json. ``layers`` is {name: {"block": [rows, columns], "blocks":
    count}}, or {name: {"layout": "semi24", "out_features": rows, "in_features": columns}}, beside which
    "csr", "coo" and "bitmap" have "stored", the number of elements, "nm" its n and m, "nmg" g as well, and
    "tiles" its "side" and digest, its "blocks" tiles and the "semi24" of them. An entry also has "activation"
    where one is the layer's own, "dense_copy" where it is not False, and for an 8-bit layer "dtype" and
    "x_scale" (whether one is stored). ``fused`` and ``merged`` list the fused operations and the merged
    layers: see nn.held.fusions."""

    def __init__(
        self,
        layers: dict[str, Any] | None = None,
        version: int = FORMAT_VERSION,
        fused: Sequence[str] = (),
        merged: Sequence[str] = (),
        **rest: Any,
    ) -> None:
        if version not in _READABLE:
            remedy = f"install a newer sparseloom than {ops.info()['version']}"
            raise Error("from_pretrained", f"format version {_READABLE[-1]}", str(version), remedy)
        self.quant_method = METHOD  # type: ignore[assignment]
        #: What sparsify_ is called with behind the load: SparsifyConfig's arguments.
        self.call: tuple[Any, dict[str, Any]] | None = None
        self.version = version
        self.layers = layers or {}
        self.fusions = Fusions.read(
            "from_pretrained", {"fused": list(fused), "merged": list(merged)}, "save the model again"
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns what is written to config.json."""
        data = {"quant_method": METHOD, "version": self.version, "layers": self.layers}
        return data | self.fusions.told()


class SparsifyConfig:
    """Makes from_pretrained sparsify a dense checkpoint while it loads it: a SparseloomConfig, since
    transformers takes no other class beside a checkpoint that has one.

    ``patterns`` and the options are those of sparsify_: AutoModel.from_pretrained(folder,
    quantization_config=SparsifyConfig({r".*dense": BlockSparse(density=0.25)})). The model's own config then
    describes the layers as after sparsify_, so that save_pretrained writes them. Raises Error as sparsify_
    does, in from_pretrained, and for options that it does not have, and for recipes with a method. A
    checkpoint that is sparse already stays as it is, and transformers warns: call sparsify_ behind the load.
    """

    def __new__(cls, patterns: Mapping[Any, Recipe] | Recipe, **options: Any) -> SparseloomConfig:  # type: ignore[misc]
        if foreign := [name for name in options if name not in _OPTIONS]:
            got, remedy = f"{foreign[0]}={options[foreign[0]]!r}", nearest(foreign[0], list(_OPTIONS))
            raise Error("SparsifyConfig", f"options of {', '.join(_OPTIONS)}", got, remedy)
        rules: Mapping[Any, Recipe] = with_keys(patterns, Recipe)
        for key, recipe in rules.items() if isinstance(rules, Mapping) else ():
            if isinstance(recipe, Recipe) and recipe.trained() is not None:
                got, remedy = (
                    f"one with a method for {key!r}",
                    "load first, then sparsify_ with the optimizer",
                )
                raise Error("SparsifyConfig", "recipes whose masks stay: no optimizer is there", got, remedy)
        made = SparseloomConfig()
        made.call = patterns, options
        return made


class BlockNames(WeightRenaming):  # type: ignore[misc]
    """Gives the stored values the name of the dense weight in files: {name in the file: name in the model}.

    Without this module transformers expects a matrix under that name, so it raises an error for the shape.
    With an unknown name, ``values``, it would only warn, and go on with random weights.
    """

    __slots__ = ("lost", "names", "prefix")

    def __init__(self, names: dict[str, str], prefix: str, lost: str = "") -> None:
        super().__init__(source_patterns="weight", target_patterns="values")  # describes the look-up below
        self.names, self.prefix, self.lost = names, f"{prefix}.", lost

    def rename_source_key(self, source_key: str) -> tuple[str, str | None]:
        """Returns the name in the model for a name in the file. Files of a model with a head are read into
        one without, and the other way round; their names differ by the prefix of the base model."""
        for key in (source_key, source_key.removeprefix(self.prefix), self.prefix + source_key):
            if key in self.names:
                self._was_used = True
                return self.names[key], "weight"
        return source_key, None

    def reverse_transform(self) -> BlockNames:
        """Returns the renaming from names in the model to those in the file, for save_pretrained. Raises
        Error for a weight in a layout that from_pretrained could not make."""
        if self.lost:
            expected = "weights in blocks, 2:4, CSR, COO, n:m, n:m:g or tiles"
            raise Error("save_pretrained", expected, self.lost, "save with sparseloom.save, or densify_ it")
        return BlockNames({model: file for file, model in self.names.items()}, self.prefix.removesuffix("."))


@register_quantizer(METHOD)
class SparseloomQuantizer(HfQuantizer):  # type: ignore[misc]
    """Makes the layers sparse before their tensors are read, and completes their indices afterwards."""

    def _process_model_before_weight_loading(self, model: PreTrainedModel, **rest: Any) -> None:
        make_described(model, self.quantization_config.layers, model.base_model_prefix)  # type: ignore[attr-defined]

    def update_weight_conversions(self, weight_conversions: list[Any], model: PreTrainedModel) -> list[Any]:
        """Appends BlockNames to transformers' own renamings, which end at the model's names."""
        return [*weight_conversions, BlockNames(names_in_files(model), model.base_model_prefix)]

    def postprocess_model(self, model: PreTrainedModel, **rest: Any) -> None:
        """Leaves an ordinary model, which trains, converts its dtype and is saved like any other; only its
        config also describes the block-sparse layers."""
        fill_indices(model)
        fuse_described(model, self.quantization_config.fusions, model.base_model_prefix)  # type: ignore[attr-defined]
        for name in ("hf_quantizer", "is_quantized", "quantization_method"):
            with contextlib.suppress(AttributeError):
                delattr(model, name)
        for parameter in model.parameters():
            # the mark that kept initialisers off while the model was loaded
            with contextlib.suppress(AttributeError):
                del parameter._is_hf_initialized  # type: ignore[attr-defined]
        describe_(model)
        if (call := self.quantization_config.call) is not None:  # type: ignore[attr-defined]
            patterns, options = call
            sparsify_(model, patterns, **options)

    def is_serializable(self, *rest: Any, **keywords: Any) -> bool:
        """Returns True: save_pretrained writes blocks, crow and col as they are."""
        return True

    @property
    def is_trainable(self) -> bool:
        """True: block-sparse layers train like any other."""
        return True


def describe_(model: Model) -> Model:
    """Writes into model.config which layers are block-sparse, for save_pretrained and from_pretrained.
    Returns the model.

    sparsify_, densify_ and quantize_ do this themselves. Call it after you put a sparse layer into the model
    yourself, or load a state_dict with another number of blocks. A model without block-sparse layers loses
    the entry. The model gets a config of its own, so that other models made from the same config are not
    affected. A layout that from_pretrained could not make is refused by save_pretrained alone. Raises Error
    for anything that is not a transformers model.
    """
    if not isinstance(model, PreTrainedModel):
        raise Error(
            "describe_", "a model of transformers", type(model).__name__, "other models: sparseloom.save"
        )
    own_config(model)
    # a part with the whole model's config is described by the whole model's names
    described_ids: set[int] = set()
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            if id(part.config) not in described_ids:
                described_ids.add(id(part.config))
                if layers := described(part):
                    has_layouts = any("layout" in entry for entry in layers.values())
                    version = _OF_LAYOUTS if has_layouts else FORMAT_VERSION
                    part.config.quantization_config = SparseloomConfig(
                        layers, version, **Fusions.of(part).told()
                    )
                elif isinstance(getattr(part.config, "quantization_config", None), (SparseloomConfig, dict)):
                    del part.config.quantization_config
            _name_in_files(part)
    return model


def own_config(model: PreTrainedModel) -> None:
    """Copies the model's config, and puts the copy wherever the modules hold the old config or a part of
    it: others made from the same config object keep theirs."""
    copies: dict[int, Any] = {}
    copy.deepcopy(model.config, copies)
    for module in model.modules():
        config = vars(module).get("config")
        if id(config) in copies:
            module.config = copies[id(config)]


def _name_in_files(model: PreTrainedModel) -> None:
    """Adds BlockNames to the conversions that save_pretrained reverts; without sparse layers, takes it
    out."""
    conversions: list[Any] | None = vars(model).get("_weight_conversions")
    if conversions is None:  # what save_pretrained reverts for a model that was not loaded
        conversions = [
            c
            for c in get_model_conversion_mapping(model, add_legacy=False)
            if not isinstance(c, PrefixChange)
        ]
    conversions = [c for c in conversions if not isinstance(c, BlockNames)]
    if names := names_in_files(model):
        conversions.append(BlockNames(names, model.base_model_prefix, lost_in_files(model)))
    vars(model)["_weight_conversions"] = conversions
