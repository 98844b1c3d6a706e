"""SmallWorldLSTM: a wide, sparse LSTM with several matrices inside each time step."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Proxy
from torch.nn.utils.parametrizations import weight_norm

from ..._checks import whole
from ...errors import Error
from ...ops.devices import at_hand, require_one_device
from ...ops.recurrent.norms import Norm, Reach
from ...ops.recurrent.steps import Products, Rows, by_functions, lstm_cell
from ...ops.recurrent.walk import Weight, state_dtype
from ...pattern import Pattern
from ..arguments import generator_of, recorded_by_fx
from ..held.options import WithOptions
from ..linears import in_blocks
from .weights import BlockSparseGates, beside_of, stacked, weight_of

_OP = "SmallWorldLSTM"


class SmallWorldLSTM(WithOptions):
    """The LSTM of "GPU Kernels for Block-Sparse Weights" (Gray, Radford, Kingma 2017).

    In each step of time, with lin a product with a sparse matrix and a LayerNorm: h = lin(h) * lin(x), h =
    relu(lin(h) + lin(x)), then ``steps`` - 2 times h = relu(lin(h)); i, f, u and o are lin(h) of one pattern,
    c = sigmoid(f) c + sigmoid(i) tanh(u), h = sigmoid(o) tanh(c). Inputs reach every so many-th unit, outputs
    are read from every so many-th; after ``steps`` + 1 matrices a small world has mixed all units.

    Args:
        input_size: features of x; the width of the embedding, with ``tokens``.
        hidden_size: units.
        pattern: step -> its Pattern [hidden_size, hidden_size], for 0 .. steps; the last is that of the four
            gates. They should differ. None: all matrices are dense.
        steps: matrices before the gates, two or more.
        inputs, outputs: units that the input reaches and that are read, divisors of hidden_size; all of them
            by default.
        tokens: size of the vocabulary, where x are tokens: rows of an embedding, normalised, times a gain.
        classes: outputs of a weight-normed linear layer behind the units that are read; None: these are the
            result.
        dropout: of u, in training.
        init: "normal", with variance 1 / fan-in, or "identity" (the diagonal blocks are the identity and all
            others zero, as the paper has it).
        device, dtype: as in nn.LSTM. seed: an int, or a CPU torch.Generator, for the initial values.

    Children: ``steps`` and ``gates`` (nn.Linear, or sparse), their LayerNorms, ``multiply`` and ``add`` for
    the inputs, and ``embedding`` and ``head`` where they were asked for. Raises Error for sizes that do not
    fit.
    """

    multiply: nn.Linear

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        pattern: Callable[[int], Pattern] | None,
        steps: int = 5,
        inputs: int | None = None,
        outputs: int | None = None,
        tokens: int | None = None,
        classes: int | None = None,
        dropout: float = 0.2,
        init: str = "normal",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        seed: torch.Generator | int | None = None,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size = (
            whole(_OP, "input_size", input_size),
            whole(_OP, "hidden_size", hidden_size),
        )
        generator = generator_of(_OP, seed)
        self.dropout, steps = float(dropout), whole(_OP, "steps", steps)
        if steps < 2:
            raise Error(_OP, "2 steps or more", str(steps), "pass steps=2 or more")
        self.inputs, self.outputs = (self._share(count) for count in (inputs, outputs))
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.steps = nn.ModuleList(
            self._matrix(pattern, step, 1, generator, options) for step in range(steps)
        )
        self.gates = self._matrix(pattern, steps, 4, generator, options)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden_size, **options) for _ in range(steps))
        self.gate_scale = nn.Parameter(torch.ones(4, hidden_size, **options))
        self.gate_bias = nn.Parameter(torch.zeros(4, hidden_size, **options))
        self.multiply, self.add = (
            nn.Linear(input_size, self.inputs, bias=False, **options) for _ in range(2)
        )
        self.multiply_norm, self.add_norm = (nn.LayerNorm(self.inputs, **options) for _ in range(2))
        self.embedding = None if tokens is None else nn.Embedding(tokens, input_size, **options)
        self.gain = None if tokens is None else nn.Parameter(torch.ones((), **options))
        self.head = None if classes is None else weight_norm(nn.Linear(self.outputs, classes, **options))
        self.reset_parameters(init, generator)

    def _share(self, count: int | None) -> int:
        if count is None:
            return self.hidden_size
        if not 0 < count <= self.hidden_size or self.hidden_size % count:
            expected = f"a divisor of hidden_size {self.hidden_size} for inputs and outputs"
            raise Error(_OP, expected, str(count), "they lie evenly among the units")
        return count

    def _matrix(
        self,
        pattern: Callable[[int], Pattern] | None,
        step: int,
        gates: int,
        generator: Any,
        options: dict[str, Any],
    ) -> nn.Module:
        size = self.hidden_size
        if pattern is None:
            return nn.Linear(size, gates * size, bias=False, **options)
        blocks = pattern(step)
        if not isinstance(blocks, Pattern) or (blocks.rows, blocks.cols) != (size, size):
            got = f"{blocks.rows} x {blocks.cols}" if isinstance(blocks, Pattern) else type(blocks).__name__
            raise Error(_OP, f"a pattern of {size} x {size} for step {step}", got, "make it of hidden_size")
        blocks = blocks if gates == 1 else stacked(blocks, gates)
        return BlockSparseGates(size, gates * size, bias=False, pattern=blocks, seed=generator, **options)

    @torch.no_grad()
    def reset_parameters(self, init: str = "normal", seed: torch.Generator | int | None = None) -> None:
        """Draws the initial values; see ``init``. Raises Error for another one, and for the identity where
        blocks are not square."""
        generator = generator_of("reset_parameters", seed)
        if init not in ("normal", "identity"):
            raise Error(_OP, "init 'normal' or 'identity'", repr(init), "pass init='normal'")
        for matrix in [*self.steps, self.gates]:
            weight = matrix.values if in_blocks(matrix) else matrix.weight
            if not cast(Tensor, weight).is_meta:
                _identity_(matrix, self.hidden_size) if init == "identity" else _normal_(matrix, generator)
        self.gate_bias[1] = 1.0  # of the forget gate: the state is kept at first

    def forward(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Maps x [steps of time, batch, input_size], or tokens [steps of time, batch], to [.., outputs or
        classes]. Returns that and the state (h, c), each [batch, hidden_size], after the last step. Pass the
        state to the next call; detach it to end the gradient there. Differentiable once. Raises Error when x
        or the state does not fit."""
        if isinstance(x, Proxy):
            return recorded_by_fx(self, x, state=state)  # type: ignore[no-any-return]
        if not isinstance(x, Tensor):
            raise Error(_OP, "a tensor as x", type(x).__name__, "convert it with torch.as_tensor")
        if self.embedding is not None and self.gain is not None:
            x = F.normalize(self.embedding(x), dim=-1) * self.gain
        if x.dim() != 3 or x.shape[-1] != self.input_size or not len(x):
            expected = f"x [steps, batch, {self.input_size}] of one step or more"
            raise Error(_OP, expected, str(list(x.shape)), "time comes first")
        with at_hand(*self.steps, *self.norms, self.gates):
            return self._walk(x, state)

    def _walk(self, x: Tensor, state: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        factor, summand = self.multiply_norm(self.multiply(x)), self.add_norm(self.add(x))
        h, c = self._state(state, x, factor.dtype)
        products = [self._products(matrix) for matrix in [*self.steps, self.gates]]
        fused, side = self._single_passes(), 0
        if fused and isinstance(products[-1], _Of):
            packed_gates = beside_of(self.gates, 4, self._dtype(self.gate_scale))
            if packed_gates is not None:
                products[-1], side = _Of(packed_gates), packed_gates.side
        norms = self._norms(len(x), side) if fused else None
        h = h if norms is None else h.to(norms[0].dtype)
        read, outputs = self.hidden_size // self.outputs, []
        states, dropout_masks = Rows(len(x) + 1), self._kept(h, len(x))
        if norms is not None and torch.is_grad_enabled() and not h.requires_grad:
            h = states.at(0, h).copy_(h)
        for step, (each_factor, each_summand) in enumerate(zip(factor, summand, strict=True)):
            if norms is None:
                z = self._gates_by_torch(h, each_factor, each_summand, products)
            else:
                z = self._gates(h, each_factor, each_summand, products, norms, dropout_masks[step])
            h, c = lstm_cell(z, c, states, step + 1, over=norms is not None)
            outputs.append(h[:, ::read])
        y = torch.stack(outputs)
        return y if self.head is None else self.head(y), (h, c)

    def _gates(
        self, h: Tensor, factor: Tensor, summand: Tensor, products: list[Callable[[Tensor], Tensor]],
        norms: list[Norm], dropout_mask: Tensor | None,
    ) -> Tensor:  # fmt: skip
        """Returns the pre-activations of the gates, [batch, 4 hidden]."""
        stride = self.hidden_size // self.inputs
        for step, (product, norm) in enumerate(zip(products, norms, strict=True)):
            z = product(h)
            if step == 0:
                h = norm(z, factor.to(z.dtype), Reach(stride, 0, True))
            elif step == 1:
                h = norm(z, summand.to(z.dtype), Reach(stride))
            elif step < len(self.norms):
                h = norm(z)
            else:
                scale = 1 / (1 - self.dropout) if self.dropout < 1 else 0.0
                h = norm(z, dropout_mask, Reach(1, 2, True, scale))
        return h

    def _single_passes(self) -> bool:
        """Returns whether the norms after the products run as our fused kernels. Torch's operators run for a
        compiler, which fuses them itself, under torch.func, and where hooks or replaced modules must be
        called."""
        return by_functions() and all(_plain(norm) for norm in self.norms)

    def _norms(self, steps: int, side: int) -> list[Norm]:
        """Returns the norms; ``side``: the units of a gate that are adjacent in the last product's result."""
        dtype = self._dtype(self.gate_scale)
        norms = [
            Norm(norm.weight[None], norm.bias[None], norm.eps, dtype, steps, relu=step > 0)
            for step, norm in enumerate(cast("list[nn.LayerNorm]", list(self.norms)))
        ]
        return [*norms, Norm(self.gate_scale, self.gate_bias, 1e-5, dtype, steps, relu=False, side=side)]

    def _kept(self, h: Tensor, steps: int) -> Sequence[Tensor | None]:
        """Draws the dropout masks of u, ones and zeros, for all steps."""
        if not self.dropout or not self.training:
            return [None] * steps
        return h.new_empty((steps, *h.shape)).bernoulli_(1 - self.dropout).unbind()

    def _gates_by_torch(
        self, h: Tensor, factor: Tensor, summand: Tensor, products: list[Callable[[Tensor], Tensor]],
    ) -> Tensor:  # fmt: skip
        for step, norm in enumerate(self.norms):
            h = norm(products[step](h))
            if step == 0:
                h = self._reached(h, lambda units: units * factor)
                continue
            if step == 1:
                h = self._reached(h, lambda units: units + summand)
            h = F.relu(h)
        z = products[-1](h)
        z = F.layer_norm(z.reshape(*z.shape[:-1], 4, self.hidden_size), (self.hidden_size,))
        z = torch.addcmul(self.gate_bias.to(z.dtype), z, self.gate_scale.to(z.dtype))
        if self.dropout and self.training:
            i, f, u, o = z.unbind(1)
            z = torch.stack([i, f, F.dropout(u, self.dropout), o], 1)
        return z.flatten(1)

    def _reached(self, h: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        """Applies ``change`` to the units that the input reaches."""
        stride = self.hidden_size // self.inputs
        if stride == 1:
            return change(h)
        return h.slice_scatter(change(h[:, ::stride]).to(h.dtype), 1, 0, None, stride)

    def _products(self, matrix: nn.Module) -> Callable[[Tensor], Tensor]:
        """Returns the function that multiplies with a matrix in each step, in the dtype of autocast."""
        supported = (in_blocks(matrix) or isinstance(matrix, nn.Linear)) and matrix.bias is None
        if not supported or matrix._forward_hooks or not by_functions():
            return matrix
        values: Any = matrix.values if in_blocks(matrix) else matrix.weight
        require_one_device(_OP, {"gate_bias": self.gate_bias, "the values of a step": values})
        dtype = self._dtype(values)
        return _Of(weight_of(matrix, dtype)[0])

    def _dtype(self, of: Tensor) -> torch.dtype:
        """Returns the dtype of products with a Parameter: autocast's where it is on."""
        kind, dtype = of.device.type, of.dtype
        autocast = kind != "meta" and torch.is_autocast_enabled(kind) and dtype != torch.float64
        return torch.get_autocast_dtype(kind) if autocast else dtype

    def _state(self, state: Any, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        shape, state_type = (x.shape[1], self.hidden_size), state_dtype(dtype)
        if state is None:
            return x.new_zeros(shape, dtype=dtype), x.new_zeros(shape, dtype=state_type)
        fits = isinstance(state, (tuple, list)) and len(state) == 2
        if not fits or any(
            not isinstance(tensor, Tensor) or tuple(tensor.shape) != shape for tensor in state
        ):
            raise Error(
                _OP, f"h and c of {list(shape)}", repr(state)[:80], "pass the state of the call before"
            )
        return state[0], state[1].to(state_type)

    def to_dense(self) -> SmallWorldLSTM:
        """Returns the same cell with dense matrices: the same values in their places and zero elsewhere
        (copied)."""
        dense = copy.deepcopy(self)
        dense.steps = nn.ModuleList(
            matrix.to_dense() if in_blocks(matrix) else matrix for matrix in dense.steps
        )
        if in_blocks(dense.gates):
            dense.gates = dense.gates.to_dense()
        return dense.train(self.training)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, inputs={self.inputs}, outputs={self.outputs}"


class _Of:
    """Multiplies with a weight in its dtype."""

    def __init__(self, weight: Weight) -> None:
        self._products, self._dtype = Products(weight), weight.values.dtype

    def __call__(self, h: Tensor) -> Tensor:
        return self._products(h.to(self._dtype))


def _plain(norm: nn.Module) -> bool:
    """Returns whether a norm is an nn.LayerNorm itself, with weight and bias and without hooks."""
    hooked = norm._forward_hooks or norm._forward_pre_hooks
    return type(norm) is nn.LayerNorm and not hooked and norm.weight is not None and norm.bias is not None


def _normal_(matrix: nn.Module, generator: torch.Generator | None) -> None:
    """Draws with variance 1 / fan-in, the number of stored inputs."""
    if in_blocks(matrix):
        matrix.reset_parameters(
            generator
        )  # uniform in 1 / sqrt(fan-in): a third of its square is the variance
        matrix.values.mul_(math.sqrt(3))
    else:
        weight = cast(Tensor, matrix.weight)
        values = torch.randn(weight.shape, dtype=torch.float32, device="cpu", generator=generator)
        weight.copy_(values / math.sqrt(weight.shape[1]))


def _identity_(matrix: nn.Module, size: int) -> None:
    """Writes the identity into the square of each gate, where it is stored."""
    if not in_blocks(matrix):
        weight = cast(Tensor, matrix.weight)
        weight.copy_(torch.eye(size).repeat(len(weight) // size, 1))
        return
    bm, bn = matrix.block
    if bm != bn:
        raise Error(_OP, "square blocks for init='identity'", f"{bm} x {bn}", "choose init='normal'")
    crow, col = matrix.pattern.index()
    row = torch.repeat_interleave(torch.arange(len(crow) - 1), crow.diff().long()) % -(-size // bm)
    matrix.values.zero_()
    matrix.values[(row == col).to(matrix.values.device)] = torch.eye(bm).to(matrix.values)
