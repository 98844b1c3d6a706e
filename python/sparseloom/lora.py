"""LoRA from the peft package for sparse layers of every layout. This module needs peft; ``import sparseloom``
does not.

>>> import peft, sparseloom.lora
>>> config = sparseloom.lora.register_(peft.LoraConfig(target_modules=["query", "value"]))
>>> model = peft.get_peft_model(model, config)
>>> model.save_pretrained("adapter")
>>> config = sparseloom.lora.register_(peft.LoraConfig.from_pretrained("adapter"))
>>> model = peft.PeftModel.from_pretrained(base, "adapter", config=config)
"""

from __future__ import annotations

from typing import Any

from peft import LoraConfig
from peft.tuners.lora import Linear
from peft.tuners.tuners_utils import check_adapters_to_merge
from torch import nn

from .errors import Error
from .nn import BlockSparseLinear, Semi24Linear, SparseLinear
from .nn.held.fused import unfuse


class LoraBlockSparse(Linear):  # type: ignore[misc]
    """peft's LoRA layer around a sparse linear layer: y = layer(x) + B A x, with A and B dense. It trains,
    saves and loads.

    It does not merge, because B A has elements where nothing is stored. Variants that change or read the base
    weight (DoRA, PiSSA, OLoRA, ...) fail with the Error of ``layer.weight``. An activation that
    sparsify_ fused is applied behind the adapter. Raises Error for a layer with one of its own.
    """

    def __init__(self, base_layer: nn.Module, adapter_name: str, config: LoraConfig, **options: Any) -> None:
        # an activation that sparsify_ fused becomes a module of the model again
        if getattr(base_layer, "activation", None) is not None and not unfuse(base_layer):
            got, remedy = (
                f"activation={base_layer.activation!r}",
                "set layer.activation = None and apply it in the model",
            )
            raise Error(
                "lora", "a layer without a fused activation, behind which the adapter would add", got, remedy
            )
        super().__init__(base_layer, adapter_name, config=config, **options)

    def _get_in_out_features(self, module: nn.Module) -> tuple[int, int]:
        return module.in_features, module.out_features  # type: ignore[return-value]

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Raises Error for an adapter that is not merged yet: the sum of B A and the layer's weight is not
        sparse."""
        if names := check_adapters_to_merge(self, adapter_names):
            expected, got = (
                "a dense layer: B A has elements where nothing is stored",
                f"{', '.join(names)} on {self.base_layer}",
            )
            raise Error(
                "merge",
                expected,
                got,
                "keep the adapter, or densify_ first, then add it, merge and sparsify_ again",
            )


def register_(config: LoraConfig) -> LoraConfig:
    """Lets adapters made from this config take sparse layers too. Returns the config.

    peft keeps this in the config object and not in the adapter's file: also register the config with which
    you load an adapter.
    """
    kinds = (BlockSparseLinear, Semi24Linear, SparseLinear)
    config._register_custom_module(dict.fromkeys(kinds, LoraBlockSparse))
    return config
