"""BlockSparseLSTM and BlockSparseGRU: torch's recurrent layers with weights in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.utils.rnn import PackedSequence

from ..._checks import whole
from ...errors import Error
from ...ops.devices import at_hand
from ...ops.recurrent.sequences import sequence
from ...ops.recurrent.walk import Walk, Weight
from ...ops.transforms import transformed
from ...pattern import Block
from ..arguments import generator_of, recorded_by_fx
from ..held.onnx import NotForOnnx
from ..held.options import WithOptions
from ..held.pruned_entries import accept_pruned
from ..held.sparse_weight import SparseWeight, held, held_descriptions, is_sparse
from ..linears import in_blocks
from .weights import GatePattern, beside_of, made_of, names_of, side_by_side, weight_of

Self = TypeVar("Self", bound="BlockSparseRNN")
#: The number of steps from which interleaved gates pay on a GPU. They cost two copies of the weight's values
#: and one of their gradient; each step's product then reads x once for all four gates.
_STEPS_BESIDE = 8


class BlockSparseRNN(WithOptions, NotForOnnx):
    """The base class of BlockSparseLSTM and BlockSparseGRU.

    Each weight of torch's layer is a child, with its bias: ``ih_l0``, ``hh_l0``, ``hr_l0`` (the projection),
    ``ih_l0_reverse`` and so on; BlockSparseLinear where it is sparse, else nn.Linear. A child holds all
    gates, one below the other, so that a step has one product for all of them.
    """

    gates: ClassVar[int]
    torchs: ClassVar[type[nn.LSTM | nn.GRU]]

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        density: float | None = None,
        block: Block = 32,
        pattern: GatePattern = None,
        input_density: float | None = None,
        input_pattern: GatePattern = None,
        seed: torch.Generator | int | None = None,
    ) -> None:
        super().__init__()
        op = type(self).__name__
        generator = generator_of(op, seed)
        if (density is None) == (pattern is None):
            got = "neither" if density is None else "both"
            raise Error(op, "one of density and pattern, of the recurrent weights", got, "pass density=0.1")
        if input_density is not None and input_pattern is not None:
            raise Error(op, "input_density or input_pattern", "both", "leave input_density out")
        self._options(
            input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional, proj_size
        )
        if input_density is None and input_pattern is None:
            # a pattern of the recurrent weights has another shape than those of the inputs may have
            input_density = 1.0 if density is None else density
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        for name in self._names():
            if name.startswith("hr"):
                self.add_module(name, nn.Linear(hidden_size, proj_size, bias=False, **options))
                continue
            choice = (
                (density, block, pattern) if name.startswith("hh") else (input_density, block, input_pattern)
            )
            shape = hidden_size, self._inputs(name)
            self.add_module(name, made_of(op, shape, self.gates, *choice, generator, bias=bias, **options))

    def _options(
        self, input_size: int, hidden_size: int, num_layers: int, bias: bool, batch_first: bool,
        dropout: float, bidirectional: bool, proj_size: int,
    ) -> None:  # fmt: skip
        """Lets torch's layer check the arguments, then sets attributes of the same names."""
        projection = {"proj_size": proj_size} if proj_size else {}
        try:
            self.torchs(
                input_size,
                hidden_size,
                num_layers,
                bias,
                batch_first,
                dropout,
                bidirectional,
                device="meta",
                **projection,
            )
        except (ValueError, TypeError) as error:
            name = self.torchs.__name__
            raise Error(type(self).__name__, f"what nn.{name} takes", str(error), f"see nn.{name}") from error
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first, self.dropout = bias, batch_first, float(dropout)
        self.bidirectional, self.proj_size = bidirectional, proj_size
        self.register_load_state_dict_pre_hook(_dense_entries)

    @classmethod
    def holding(cls: type[Self], dense: nn.LSTM | nn.GRU, layers: dict[str, Any]) -> Self:
        """Returns a layer that replaces ``dense``. ``layers``: the sparse layers, with their biases, by names
        of its weights such as weight_hh_l0; the other weights stay the same Parameters."""
        module = cls.__new__(cls)
        nn.Module.__init__(module)
        module._options(
            dense.input_size, dense.hidden_size, dense.num_layers, dense.bias, dense.batch_first,
            dense.dropout, dense.bidirectional, dense.proj_size,
        )  # fmt: skip
        for name in module._names():
            layer = layers.get(f"weight_{name}")
            if layer is None:
                weight = dense.get_parameter(f"weight_{name}")
                layer = nn.Linear(weight.shape[1], weight.shape[0], False, device="meta")
                layer.weight = weight
                layer.register_parameter("bias", dense._parameters.get(f"bias_{name}"))
            module.add_module(name, layer)
        return module.train(dense.training)

    def forward(self, input: Tensor | PackedSequence, hx: Any = None) -> tuple[Any, Any]:
        """Takes the arguments and returns the results of torch's layer, with the same shapes.

        The state that it returns may be passed to the next call: detach it, and the gradient ends there
        (truncated backpropagation through time). Between steps an LSTM keeps c in float32 where its dtype has
        16 bits. Differentiable once.
        """
        if isinstance(input, Proxy):
            return recorded_by_fx(self, input, hx=hx)  # type: ignore[no-any-return]
        x = input.data if isinstance(input, PackedSequence) else input
        if not isinstance(x, Tensor):
            raise Error(self._op, "a tensor or a PackedSequence", type(x).__name__, "see nn.LSTM")
        if isinstance(input, PackedSequence):
            sizes = tuple(input.batch_sizes.tolist())
            order, back = input.sorted_indices, input.unsorted_indices
            batched, batch, steps = True, sizes[0], len(sizes)
        else:
            if x.dim() not in (2, 3) or x.shape[-1] != self.input_size:
                expected = f"x [steps, batch, {self.input_size}], or without the batch"
                raise Error(self._op, expected, str(list(x.shape)), "the last dimension is input_size")
            batched, order, back = x.dim() == 3, None, None
            x = x if batched else x.unsqueeze(1)
            x = x.transpose(0, 1) if self.batch_first and batched else x
            steps, batch = x.shape[:2]
            sizes = (batch,) if torch.compiler.is_compiling() else (batch,) * steps
            if not steps:
                raise Error(self._op, "one step or more", "a sequence of length 0", "leave such inputs out")
            x = x.flatten(0, 1)
        states = self._states(hx, x, batch, batched)
        if order is not None:
            states = tuple(state.index_select(1, order) for state in states)
        y, final = self._layers(x, states, sizes, batch)
        if back is not None:
            final = tuple(state.index_select(1, back) for state in final)
        final = final if batched else tuple(state.squeeze(1) for state in final)
        result: Any = final if len(final) > 1 else final[0]
        if isinstance(input, PackedSequence):
            return PackedSequence(y, input.batch_sizes, order, back), result
        # reshape: under torch.set_default_device, torch.compile breaks the graph at unflatten
        y = y.reshape(steps, batch, y.shape[-1])
        if not batched:
            return y.squeeze(1), result
        return y.transpose(0, 1) if self.batch_first else y, result

    def _layers(
        self, x: Tensor, states: tuple[Tensor, ...], sizes: tuple[int, ...], batch: int
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        ends = ("", "_reverse") if self.bidirectional else ("",)
        finals: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            outputs = []
            for end in ends:
                initial = tuple(state[len(finals)] for state in states)
                y, *final = self._sequence(
                    f"l{layer}{end}", x, initial, Walk(sizes, batch, bool(end), x.shape[0])
                )
                outputs.append(y)
                finals.append(tuple(final))
            x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
            if self.dropout and layer < self.num_layers - 1:
                x = F.dropout(x, self.dropout, self.training)
        return x, tuple(torch.stack(kind) for kind in zip(*finals, strict=True))

    def _sequence(self, name: str, x: Tensor, states: tuple[Tensor, ...], walk: Walk) -> tuple[Tensor, ...]:
        recurrent, projection = self._child(f"hh_{name}"), self._modules.get(f"hr_{name}")
        gx: Tensor = self._child(f"ih_{name}")(x)
        with at_hand(recurrent, projection):
            return self._steps(recurrent, projection, gx, states, walk)

    def _steps(
        self, recurrent: nn.Module, projection: nn.Module | None, gx: Tensor, states: tuple[Tensor, ...],
        walk: Walk,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        h0, *cells = (state.to(gx.dtype) for state in states)
        if recurrent._forward_hooks:  # the module itself is never called: its hooks see one step here
            recurrent(h0)
        weight, bias = weight_of(recurrent, gx.dtype)
        packed_gates = self._beside(recurrent, gx, walk)
        if packed_gates is not None:
            weight, side = packed_gates, packed_gates.side
            gx = side_by_side(gx, self.gates, side)
            bias = None if bias is None else side_by_side(bias, self.gates, side)
        projection_weight = None if projection is None else weight_of(projection, gx.dtype)[0]
        return sequence(gx, h0, cells[0] if cells else None, weight, bias, projection_weight, walk)

    def _beside(self, recurrent: nn.Module, gx: Tensor, walk: Walk) -> Weight | None:
        """Returns the recurrent weight with its gates interleaved, if its products save more than the copies
        cost: on a GPU, from _STEPS_BESIDE steps on. Not while compiling, which would trace the search."""
        worth = gx.is_cuda and len(walk.sizes) >= _STEPS_BESIDE and not torch.compiler.is_compiling()
        worth = worth and not transformed()
        return beside_of(recurrent, self.gates, gx.dtype) if worth and self.gates == 4 else None

    def _states(self, hx: Any, x: Tensor, batch: int, batched: bool) -> tuple[Tensor, ...]:
        """Returns the initial states [layers x directions, batch, width], zero without ``hx``. Raises Error
        where they do not fit."""
        count = self.num_layers * (2 if self.bidirectional else 1)
        widths = [self.proj_size or self.hidden_size] + [self.hidden_size] * (self.torchs is nn.LSTM)
        if hx is None:
            return tuple(x.new_zeros((count, batch, width)) for width in widths)
        states = hx if isinstance(hx, (tuple, list)) else (hx,)
        shapes = [(count, batch, width) if batched else (count, width) for width in widths]
        fits = len(states) == len(shapes) and all(isinstance(state, Tensor) for state in states)
        if not fits or [tuple(state.shape) for state in states] != shapes:
            got = ", ".join(
                str(list(state.shape)) if isinstance(state, Tensor) else repr(state) for state in states
            )
            names = "h0 and c0" if len(shapes) > 1 else "h0"
            expected = f"{names} of shape {', '.join(str(list(shape)) for shape in shapes)}"
            raise Error(self._op, expected, got, "pass the state of a call with as many sequences, or none")
        return tuple(states) if batched else tuple(state.unsqueeze(1) for state in states)

    @property
    def _op(self) -> str:
        return type(self).__name__

    def _names(self) -> list[str]:
        return names_of(self.num_layers, self.bidirectional, self.proj_size > 0)

    def _inputs(self, name: str) -> int:
        """Returns the in features of a weight."""
        width = self.proj_size or self.hidden_size
        if name.startswith("hh"):
            return width
        first = name.startswith("ih_l0")
        return self.input_size if first else width * (2 if self.bidirectional else 1)

    def _child(self, name: str) -> nn.Module:
        return cast(nn.Module, self._modules[name])

    def plan(
        self,
        batch: int | None = None,
        steps: int = 1,
        direction: str = "forward",
        *,
        tokens: int | None = None,
        shape: Sequence[int] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Returns what would run for each sparse weight: {name of the child: its ``plan``}. Recurrent weights
        multiply ``batch`` rows in each step, all others, and every dw, those of all steps at once.
        ``shape`` [steps, batch, inputs], or as batch_first says, stands for both; ``tokens`` is the batch of
        one step. Raises Error for none or several of them."""
        if sum(each is not None for each in (batch, tokens, shape)) != 1:
            got, remedy = "none or several", f"pass plan(8, steps=64) or shape=[64, 8, {self.input_size}]"
            raise Error("plan", "batch, tokens or shape", got, remedy)
        if shape is not None:
            if not isinstance(shape, Sequence) or len(shape) != 3 or shape[-1] != self.input_size:
                order = "batch, steps" if self.batch_first else "steps, batch"
                expected = f"shape [{order}, {self.input_size}]"
                raise Error("plan", expected, repr(shape), "pass the shape of x")
            steps, batch = reversed(shape[:2]) if self.batch_first else shape[:2]
        batch = whole("plan", "batch", tokens if batch is None else batch)
        plans = {}
        for name in self._names():
            child = self._child(name)
            if in_blocks(child):
                per_step = not name.startswith("ih") and direction != "dw"
                added = name.startswith("hh") and direction == "forward" and self.gates == 4
                plans[name] = child.plan(batch if per_step else batch * steps, direction, residual=added)
        return plans

    def to_dense(self) -> nn.Module:
        """Returns torch's layer with the same values in their places and zero elsewhere (copied). Those of
        a dense part are the same Parameters, so that an optimizer continues with them."""
        options = {"proj_size": self.proj_size} if self.proj_size else {}
        dense = self.torchs(
            self.input_size, self.hidden_size, self.num_layers, self.bias, self.batch_first, self.dropout,
            self.bidirectional, device="meta", **options,
        )  # fmt: skip
        for name in self._names():
            child: Any = self._child(name)
            linear = child.to_dense() if is_sparse(child) else child
            setattr(dense, f"weight_{name}", linear.weight)
            if linear.bias is not None:
                setattr(dense, f"bias_{name}", linear.bias)
        dense.flatten_parameters()
        return dense.train(self.training)

    def sparse_weights(self) -> dict[str, SparseWeight]:
        """Returns the sparse weights; sparsify_ matches them as name.hh_l0 and so on."""
        return held(self, {name: (f"weight_{name}", name) for name in self._names()})

    def describe(self) -> dict[str, dict[str, Any]]:
        """Returns the data that rebuild the sparse weights; see SparseModule."""
        return held_descriptions(self, self._names())

    def flatten_parameters(self) -> None:
        """Does nothing: callers of torch's layer, which lets cuDNN see its weights as one, may call it."""

    def extra_repr(self) -> str:
        words = [f"{self.input_size}, {self.hidden_size}"]
        standard = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0.0, "proj_size": 0}
        words += [
            f"{name}={getattr(self, name)}"
            for name, usual in standard.items()
            if getattr(self, name) != usual
        ]
        return ", ".join(words + ["bidirectional=True"] * self.bidirectional)


class BlockSparseLSTM(BlockSparseRNN):
    """An nn.LSTM whose recurrent and input weights exist only in the blocks of patterns.

    Args:
        input_size .. proj_size, device, dtype: as in nn.LSTM.
        density, pattern: one of them, for the recurrent weights. A pattern is that of one gate, [hidden_size,
            hidden_size or proj_size], which all gates then have; that of all four gates stacked; or a
            function of these two sizes that returns one. With a density, every gate has the same balanced
            pattern if the block divides hidden_size.
        input_density, input_pattern: the same for the input weights. Without both, they have the density of
            the recurrent weights, or are dense if those have a pattern. 1 leaves them dense.
        block: int or (out features, in features) of one block, with a density.
        seed: an int, or a CPU torch.Generator, for patterns and initial values.

    The state c is float32 between steps if the dtype has 16 bits. Raises Error for sizes that do not fit.
    """

    gates = 4
    torchs = nn.LSTM


class BlockSparseGRU(BlockSparseRNN):
    """An nn.GRU whose recurrent and input weights exist only in the blocks of patterns; the arguments are
    those of BlockSparseLSTM, with three gates and without proj_size."""

    gates = 3
    torchs = nn.GRU


def _dense_entries(module: BlockSparseRNN, tensors: dict[str, Any], prefix: str, *_: Any) -> None:
    """Renames the entries of torch's layer to those of the layers inside."""
    for name in module._names():
        accept_pruned(tensors, prefix, f"weight_{name}")
        for kind in ("weight", "bias"):
            if f"{prefix}{kind}_{name}" in tensors:
                tensors[f"{prefix}{name}.{kind}"] = tensors.pop(f"{prefix}{kind}_{name}")
