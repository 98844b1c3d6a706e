"""Semi24Linear: an nn.Linear whose weight is 2:4, packed for inference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from ... import ops
from ..._checks import whole
from ...errors import Error
from ...layouts import Layout
from ...layouts.semi24 import Semi24Layout, packed
from ...ops import semi24
from .. import arguments
from ..held import dense_copy as copies
from ..held.answers import tokens_of
from ..held.convert import with_activation
from ..held.masked_by_torch import weight_of
from ..held.ordered import Ordered
from ..held.parametrized import values_are_computed
from ..held.weight import BlockSparseWeight, assigned
from ..held.with_copy import WithCopy
from ..in_layout.dense_entries import accept_matrix
from . import semi_structured

_OP = "Semi24Linear"


class Semi24Linear(WithCopy, Ordered):
    """Computes y = activation(x W^T + bias), where W [out_features, in_features] has at most two nonzeros in
    each group of four consecutive inputs.

    Parameters: ``values`` [out_features, 2 ceil(in_features / 4)], which do not require a gradient; ``bias``
    [out_features]. The buffer ``positions`` (uint8; layouts.Semi24Layout describes it) says where the values
    lie, and is saved with them. On a GPU the buffer ``metadata``, which is not saved, has the positions in
    the order of its tensor cores; a layer makes it whenever it is made, moved or loaded.

    Args:
        in_features, out_features: any number >= 0; they need not divide by 4.
        bias: whether to add a learned bias.
        activation: None or a name in ``sparseloom.ops.ACTIVATIONS``, such as "relu" or "gelu" (erf); fused
            into the product, except where the call needs a gradient.
        device, dtype: as in nn.Linear; dtype float32, float16, bfloat16 or float64.
        dense_copy: whether calls, and their backward passes, may multiply with a dense copy of the weight:
            see the attribute. It pays where a call would unpack the weight: above 16 tokens on the CPU, and
            in fp32 and in dX on a GPU.
        seed: an int or a torch.Generator, for places and values.

    A new layer has random values at random places. ``from_dense`` packs a weight; sparsify_ does so in a
    model. Gradients reach x, the bias and a residual (adapters and layers before it train), but not the
    values: where they require one, a call raises Error. ``strict = True`` forbids the dense and reference
    kernels, in backward passes too.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        activation: str | None = None,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        dense_copy: bool | Literal["auto"] = False,
        seed: torch.Generator | int | None = None,
    ) -> None:
        super().__init__()
        in_features = whole(_OP, "in_features", in_features)
        out_features = whole(_OP, "out_features", out_features)
        like = arguments.like_of(_OP, device, dtype)
        arguments.require_device(like.device, _OP)
        with arguments.drawing(_OP, seed, like.device):
            if like.is_meta:
                layout = Semi24Layout.anywhere(out_features, in_features, like.device)
                values = like.new_empty(layout.values_shape)
            else:
                weight = like.new_empty(out_features, in_features).uniform_(0.5, 1)
                layout, values = packed(weight, "magnitude")
            self._take(layout, values, like.new_empty(out_features) if bias else None, activation)
            self.reset_parameters()
        self.dense_copy = dense_copy

    def _take(
        self, layout: Semi24Layout, values: Tensor, bias: Tensor | None, activation: str | None
    ) -> None:
        arguments.require_activation(activation, _OP)
        self._hold(layout, values, bias)
        self.values.requires_grad_(False)
        self.activation = activation
        self._order()

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Maps x [..., in_features], of one or more dimensions, to [..., out_features]. Autocast casts as it
        does for nn.Linear.

        ``residual`` [..., out_features], of the result's dtype, is added after the activation by the product
        itself. Raises Error when x or ``residual`` does not fit, and where the values require a gradient.
        """
        if (
            x.__class__ is not Tensor
            and (node := arguments.recorded_by_fx(self, x, residual=residual)) is not None
        ):
            return node  # type: ignore[no-any-return]
        # nn.Module's own __getattr__ would take as long as the operator's argument checks
        parameters, positions = self._parameters, cast(Any, self._buffers["positions"])
        values: Any
        bias: Tensor | None
        try:
            values, bias = parameters["values"], parameters["bias"]
        except KeyError:  # one of them is computed: parametrized, weight-normed or pruned
            values, bias = self.values, self.bias
        arguments.require_tensor(x)
        x, values, bias, residual = arguments.prologue(x, values, bias, residual)
        shape = x.shape
        if not shape or shape[-1] != self.in_features or x.dtype != values.dtype or x.device != values.device:
            arguments.refuse(self, x, values)
        if self._emptied:
            self._require_written()
        if self._dense_copy and (y := copies.product(self, x, values, bias, residual)) is not None:
            return y
        if len(shape) > 4:
            x = x.flatten(0, -2)
            residual = None if residual is None else residual.flatten(0, -2)
        metadata = self._metadata(positions) if x.is_cuda else None
        y = semi24.linear(
            x, values, positions, self.in_features, bias, self.activation, residual, metadata=metadata,
            strict=self.strict,
        )  # fmt: skip
        y = y if self.fuse else ops.apart(y)
        return y if len(shape) <= 4 else y.reshape(*shape[:-1], y.shape[-1])

    @classmethod
    def from_dense(
        cls,
        dense: nn.Linear | Tensor,
        prune: str | None = None,
        *,
        bias: Tensor | None = None,
        activation: str | None = None,
    ) -> Semi24Linear:
        """Returns a layer with the weight of ``dense``, an nn.Linear or a weight [out_features, in_features]
        (then ``bias`` [out_features] may come with it), packed; the bias is copied.

        The weight has to be 2:4, which raises Error with the first group that is not, unless ``prune`` names
        how to choose what stays: "magnitude" (of each four inputs the two largest |w|),
        "transposable_greedy" or "transposable_exact" (W^T is 2:4 too, so that more is lost). A weight that
        torch.ao.pruning masks is taken masked, and torch's SparseSemiStructuredTensor as from_torch does.
        """
        weight = weight_of("from_dense", dense) if isinstance(dense, nn.Linear) else dense
        bias = dense.bias if isinstance(dense, nn.Linear) else bias
        if semi_structured.is_torchs(weight):
            layer = cls.from_torch(weight, bias, activation=activation)
        else:
            layout, values = packed(weight, prune)
            layer = cls._of(layout, values, None if bias is None else bias.detach().clone(), activation)
            if isinstance(bias, nn.Parameter) and layer.bias is not None:
                layer.bias.requires_grad_(bias.requires_grad)
        return layer.train(dense.training) if isinstance(dense, nn.Linear) else layer

    @classmethod
    def holding(
        cls, layout: Semi24Layout, values: Tensor, bias: Tensor | None = None, activation: str | None = None
    ) -> Semi24Linear:
        """Returns a layer that holds these tensors, without a copy. Raises Error where they do not belong
        together."""
        layout.require_consistent(_OP, values)
        return cls._of(layout, values, bias, activation)

    @classmethod
    def _of(
        cls, layout: Semi24Layout, values: Tensor, bias: Tensor | None, activation: str | None
    ) -> Semi24Linear:
        layer = cls.__new__(cls)
        nn.Module.__init__(layer)
        layer._take(layout, values.detach(), None if bias is None else bias.detach(), activation)
        return layer

    @classmethod
    def from_torch(
        cls, weight: Tensor, bias: Tensor | None = None, *, activation: str | None = None
    ) -> Semi24Linear:
        """Returns a layer with the weight of torch's SparseSemiStructuredTensor, of either backend, bit by
        bit. Those of cuSPARSELt are read on their GPU. Raises Error for any other tensor."""
        layout, values = semi_structured.from_torch(weight)
        return cls._of(layout, values, None if bias is None else bias.detach().clone(), activation)

    def to_torch(self, backend: str = "cutlass") -> Tensor:
        """Returns the weight as torch's SparseSemiStructuredTensor of a backend, "cutlass" or "cusparselt",
        which packs on a GPU alone. Raises Error for sizes and dtypes that the backend does not have."""
        layout = self.layout
        assert isinstance(layout, Semi24Layout)
        return semi_structured.to_torch(layout, self.values.detach(), backend)

    def to_dense(self) -> nn.Module:
        """Returns an nn.Linear with the same values in their places and zero elsewhere (copied); with an
        activation, a Sequential of both. Its weight requires no gradient, as the values do not."""
        dense = super().to_dense()
        assert isinstance(dense, nn.Linear)
        dense.weight.requires_grad_(self.values.requires_grad)
        if self.bias is not None:
            dense.bias.requires_grad_(self.bias.requires_grad)
        return with_activation(dense, self)

    @property
    def dense_shape(self) -> tuple[int, int]:
        """The shape of the weight in the dense module that this layer stands for."""
        return self.out_features, self.in_features

    def dense_matrix(self, weight: Tensor) -> Tensor:
        """Returns the weight of the dense module that this layer stands for as [out_features, in_features] (a
        view)."""
        return weight

    def placed(self, weight: Tensor) -> tuple[Layout, Tensor] | None:
        """Returns layout and values of a checkpoint's weight that brings its own places: one that is 2:4, or
        that torch has packed. None for any other."""
        if semi_structured.is_torchs(weight):
            return semi_structured.from_torch(weight)
        try:
            return packed(self.dense_matrix(weight))
        except Error:
            return None

    @property
    def weight(self) -> BlockSparseWeight:
        """A stand-in for code that asks a dense layer's weight for dtype, device or shape; it refuses
        arithmetic and writes: copy with ``to_dense().weight``."""
        return BlockSparseWeight.of(self, self.dense_shape)

    @weight.setter
    def weight(self, value: Any) -> None:
        raise assigned(self)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Does what nn.Module's does, but raises Error for ``weight``, which would be part of no product."""
        if name == "weight":
            raise assigned(self)
        super().register_parameter(name, param)

    def reset_parameters(self) -> None:
        with copies.own_writes(self):
            super().reset_parameters()

    def _unpacked(self, values: Tensor) -> Tensor:
        return semi24.unpack(values, self.positions, self.in_features)

    def _stored(self) -> tuple[copies.Stored, copies.Stored]:
        positions, cols, strict = self.positions, self.in_features, self.strict
        metadata = self._metadata(positions)

        def forward(x: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
            return semi24.linear(x, values, positions, cols, bias, metadata=metadata, strict=strict)

        return forward, lambda dy, values, _: semi24.dx(dy, values, positions, cols, strict=strict)

    def _copied_index(self) -> tuple[Tensor, ...]:
        return (self.positions,)

    def _copy_key(self) -> tuple[Any, ...]:
        return ("semi24",)

    def describe(self) -> dict[str, dict[str, Any]]:
        """Returns the data that rebuild the layer without its values; see SparseModule."""
        fused: dict[str, Any] = {} if self.activation is None else {"activation": self.activation}
        fused |= {"dense_copy": self.dense_copy} if self.dense_copy else {}
        return {"values": {**self._template.describe(), **fused}}

    def plan(
        self,
        tokens: int | None = None,
        direction: str = "forward",
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
        residual: bool = False,
        *,
        shape: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        """Returns what would run for ``tokens`` rows of x, or x of that ``shape``, how long it should take,
        and why: see ``ops.plan``. ``direction`` is forward or dx. ``dtype`` and ``device`` are the layer's
        own by default (on meta: the CPU); ``residual`` says that forward is called with one. ``dense_copy``
        of the plan is a dict of what the attribute means for it: bytes, predicted_us, used, reason. Raises
        Error when no call has these arguments."""
        forward = direction == "forward"
        own_device = "cpu" if self.values.is_meta else self.values.device
        plan = semi24.plan(
            direction,
            dtype or self.values.dtype,
            tokens_of(tokens, shape, self.in_features),
            (self.out_features, self.in_features),
            forward and self.bias is not None,
            self.activation if forward else None,
            forward and residual,
            own_device if device is None else device,
            strict=self.strict,
        )
        return copies.explained(self, plan, dtype or self.values.dtype, direction)

    def extra_repr(self) -> str:
        fused = [f"activation={self.activation}"] if self.activation else []
        fused += ["strict=True"] if self.strict else []
        fused += [f"dense_copy={self.dense_copy}"] if self.dense_copy else []
        return ", ".join([super().extra_repr(), *fused])

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any, **named: Any
    ) -> None:
        """Also takes a dense checkpoint's ``weight``: one that is 2:4 brings its own places, of any other one
        the elements at the layer's places are kept; and values under that name, as save_pretrained writes
        them."""
        accept_matrix(self, cast(Any, state_dict), prefix)
        super()._load_from_state_dict(state_dict, prefix, *arguments, **named)
        if not values_are_computed(self):  # load_state_dict(assign=True) puts Parameters of the file's kind
            self.values.requires_grad_(False)
        self.refresh_()
