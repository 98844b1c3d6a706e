"""Training with gradients that are sparsified again in every step, and a convolution whose weight is masked;
both stay equal to a dense twin that masks by hand."""

import torch
import torch.nn.functional as F
from torch import nn

import sparseloom as sl
from sparseloom import layouts as L
from sparseloom import sparsify as S

torch.manual_seed(0)
tenth, half = S.ScalarFraction(0.9), S.ScalarFraction(0.5)
images, labels = torch.randn(32, 3, 8, 8), torch.randint(0, 4, (32,))


@sl.ops.register(F.conv2d, inputs=(L.Dense, L.MaskedDense, L.Dense), outputs=[(S.KeepAll, L.Dense)])
class MaskedConv:
    """The dense convolution of what the mask leaves; only what it leaves has a gradient."""

    @staticmethod
    def forward(ctx, x, weight, bias, stride, padding, dilation, groups):
        ctx.save_for_backward(x, weight, bias)
        ctx.how = stride, padding, dilation, groups
        return F.conv2d(x, weight.stored.view(weight.shape), bias, *ctx.how)

    @staticmethod
    def backward(ctx, dy):
        x, weight, bias = ctx.saved_tensors
        stride, padding, dilation, groups = ctx.how
        dense, wanted = weight.stored.view(weight.shape), list(ctx.needs_input_grad[:3])
        dx, dw, db = torch.ops.aten.convolution_backward(
            dy, x, dense, bias.shape, stride, padding, dilation, False, [0, 0], groups, wanted
        )
        index = weight.layout_index
        return dx, sl.SparseTensor(index, index.pack(dw.flatten(1)), weight.shape), db, None, None, None, None


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 4),
    )


def train(model: nn.Module) -> list[float]:
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for _ in range(10):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


sparse = network()
builder = sl.SparsityBuilder(sparse)
builder.set_weight("2.weight", initial_sparsifier=half, out_format=L.MaskedDense)
builder.set_weight_grad("5.weight", external_sparsifier=tenth)
builder.set_interm_grad("3", external_sparsifier=half)
builder.sparsify_model_inplace()
with sl.ops.strict():
    losses = train(sparse)

twin = network()
mask = half.select_mask(twin[2].weight.detach().flatten(1)).view(twin[2].weight.shape)
with torch.no_grad():
    twin[2].weight.mul_(mask)
twin[2].weight.register_hook(lambda gradient: gradient * mask)
twin[5].weight.register_hook(tenth.sparsified)
twin[3].register_forward_hook(lambda module, given, y: y.register_hook(half.sparsified) and None)
torch.testing.assert_close(losses, train(twin))

kept = sparse[5].weight.grad.count_nonzero() / sparse[5].weight.numel()
print(
    f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, {kept:.0%} of the head's gradient, equal to the masked twin"
)
