"""A format, a sparsifier and an operator of one's own: weights and results of a small encoder by columns,
kept where they are above the mean of their row, beside a masked dense twin."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sparseloom as sl
from sparseloom import layouts as L
from sparseloom import sparsify as S


@L.register
class Columns(L.Layout):
    """Compressed sparse columns: the stored elements of each column one after the other."""

    ccol: Tensor  # int64 [cols + 1]
    row: Tensor  # int64 [stored]

    @classmethod
    def from_dense(cls, weight: Tensor) -> "Columns":
        counts = (weight != 0).sum(0)
        return cls(*weight.shape, ccol=F.pad(counts.cumsum(0), (1, 0)), row=weight.t().nonzero()[:, 1])

    def col(self) -> Tensor:
        return torch.repeat_interleave(self.ccol.diff(), output_size=self.row.numel())

    def pack(self, dense: Tensor) -> Tensor:
        return dense[self.row, self.col()]

    def to_dense(self, values: Tensor) -> Tensor:
        at = self.row * self.cols + self.col()
        return values.new_zeros(self.rows * self.cols).scatter(0, at, values).view(self.rows, self.cols)


class AboveMean(S.ElementSparsifier):
    """Keeps what is larger in magnitude than the mean of its row: a row at a time decides."""

    kind, passes, memory = "blocking", 2, "O(b)"

    def select_mask(self, dense: Tensor, generator: torch.Generator | None = None) -> Tensor:
        size = dense.detach().abs()
        return size > size.mean(-1, keepdim=True)


@sl.ops.register(F.relu, inputs=(Columns,), outputs=[(S.KeepAll, Columns)])
class ReluOfColumns:
    """Touches what is stored alone; a zero stays one."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return sl.SparseTensor(x.layout_index, x.stored.clamp(min=0), x.shape)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return dy.to_dense() * (x.to_dense() > 0)


class Feed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.relu(self.norm(self.up(x))))


class Masked(torch.autograd.Function):
    """What the twin does: a mask of its own, forward and backward."""

    @staticmethod
    def forward(ctx, x, sparsifier):
        ctx.mask = sparsifier.select_mask(x)
        return x * ctx.mask

    @staticmethod
    def backward(ctx, dy):
        return dy * ctx.mask, None


torch.manual_seed(0)
model, keep = Feed(), AboveMean()
builder = sl.SparsityBuilder(model)
builder.set_weight("up.weight", initial_sparsifier=keep, out_format=Columns)
builder.set_interm("norm", external_sparsifier=keep, out_format=Columns)
sparse = builder.get_sparse_model()
print(sparse)

twin, x = copy.deepcopy(model), torch.randn(4, 10, 16)
hidden = twin.norm(F.linear(x, Masked.apply(twin.up.weight, keep), twin.up.bias))
want = x + twin.down(F.relu(Masked.apply(hidden, keep)))
with sl.ops.strict():  # every operator has an implementation for Columns: nothing becomes dense unasked
    got = sparse(x)
    got.square().mean().backward()
want.square().mean().backward()

torch.testing.assert_close(got, want)
torch.testing.assert_close(sparse.down.weight.grad, twin.down.weight.grad)
torch.testing.assert_close(sparse.up.values.grad, sparse.up.layout.pack(twin.up.weight.grad))
print(f"stored: {sparse.up.values.numel()} of {model.up.weight.numel()} weights; equal to the masked twin")
