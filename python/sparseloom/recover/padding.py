"""Which tokens of a batch count: those that its masks do not leave out as padding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten


class Padding:
    """The padding of one batch. ``read`` is a bool mask [batch, tokens] of what the model reads,
    ``decoded`` of what its decoder does; None where all tokens count. ``encoder`` are the ids of the modules
    that read the former; None where the model has no decoder beside an encoder."""

    def __init__(
        self, read: Tensor | None = None, decoded: Tensor | None = None, encoder: set[int] | None = None
    ) -> None:
        self._read, self._decoded, self._encoder = read, decoded, encoder
        #: What the encoder returned: layers of the decoder that read it have the encoder's tokens.
        self.encoded: Sequence[Tensor] = ()

    def of(self, module: nn.Module | None, x: Tensor | None = None) -> Tensor | None:
        """Returns the mask of the input x of a module, or of what it returns."""
        if self._encoder is None or id(module) in self._encoder or any(x is each for each in self.encoded):
            return self._read
        return self._decoded


class Paddings:
    """The masks of a model's batches: ``attention_mask``, and ``decoder_attention_mask`` of one with an
    encoder and a decoder beside it, which may have as many tokens."""

    def __init__(self, model: nn.Module | None = None) -> None:
        children = [each._modules for each in (model.modules() if model is not None else ())]
        self._encoders = [
            encoder
            for each in children
            if (encoder := each.get("encoder")) is not None and each.get("decoder") is not None
        ]
        self._inside = {id(module) for each in self._encoders for module in each.modules()}
        self._decodes = getattr(getattr(model, "config", None), "is_encoder_decoder", False) is True

    def of(self, batch: object) -> Padding:
        """Returns the padding of a batch; a mapping says it."""
        if not isinstance(batch, Mapping):
            return Padding()
        decodes = self._decodes or any(str(name).startswith("decoder_") for name in batch)
        read, decoded = (_mask(batch.get(f"{side}attention_mask")) for side in ("", "decoder_"))
        return Padding(read, decoded, self._inside if decodes else None)

    @contextmanager
    def following(self, padding: Padding) -> Iterator[None]:
        """Lets the padding know what the encoder returns while the body runs the model."""

        def see(module: nn.Module, args: Any, output: Any) -> None:
            padding.encoded = tensors_of(output)

        handles = [each.register_forward_hook(see) for each in self._encoders]
        try:
            yield
        finally:
            padding.encoded = ()
            for handle in handles:
                handle.remove()


def counted(x: Tensor, mask: Tensor | None) -> Tensor:
    """Returns the tokens of x [batch, tokens, ...] that count, all of x where its shape is another."""
    if mask is None or x.dim() < 3 or x.shape[:2] != mask.shape:
        return x
    return x[mask.to(x.device)]


def tensors_of(tree: Any) -> list[Tensor]:
    """Returns the tensors in nested tuples, lists and mappings."""
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor)]


def _mask(given: object) -> Tensor | None:
    if not isinstance(given, Tensor) or given.dim() != 2 or bool(given.ne(0).all()):
        return None
    return given.ne(0) if given.dtype != torch.bool else given
