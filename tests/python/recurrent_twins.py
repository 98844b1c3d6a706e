"""What the tests of recurrent layers share: layers beside torch's own with the same, masked weights."""

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from sparseloom.nn import BlockSparseGRU, BlockSparseLSTM

LAYERS = {"lstm": BlockSparseLSTM, "gru": BlockSparseGRU}
INPUTS, HIDDEN = 40, 48
OPTIONS = {
    "plain": {},
    "layers": {"num_layers": 3},
    "both ways": {"bidirectional": True},
    "batch first": {"batch_first": True},
    "no bias": {"bias": False},
    "projected": {"proj_size": 24},
    "all": {"num_layers": 2, "bidirectional": True, "batch_first": True, "proj_size": 16},
    "dense inputs": {"input_density": 1, "num_layers": 2},
}


def make(kind, seed=0, device="cpu", **options):
    torch.manual_seed(seed)
    if kind == "gru":
        options.pop("proj_size", None)
    layer = LAYERS[kind](INPUTS, HIDDEN, density=0.5, block=16, **options)
    return layer.to(device)


def inputs(layer, steps=6, batch=5, device="cpu", dtype=torch.float32, seed=1):
    """Returns x and the initial states, which need gradients."""
    generator = torch.Generator().manual_seed(seed)
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    widths = [layer.proj_size or HIDDEN] + [HIDDEN] * (layer.torchs is nn.LSTM)
    shape = (batch, steps, INPUTS) if layer.batch_first else (steps, batch, INPUTS)
    drawn = [torch.randn(shape, generator=generator)]
    drawn += [torch.randn(count, batch, width, generator=generator) for width in widths]
    return [each.to(device, dtype).requires_grad_() for each in drawn]


def packed(x, layer, lengths):
    return pack_padded_sequence(x, torch.tensor(lengths), layer.batch_first, enforce_sorted=False)


def run(layer, x, states):
    """Returns all results as a list of tensors."""
    hx = None if states is None else tuple(states) if len(states) > 1 else states[0]
    y, final = layer(x, hx)
    y = y.data if isinstance(y, PackedSequence) else y
    return [y, *(final if isinstance(final, tuple) else (final,))]


def expect_as_torch(layer, leaves, lengths=None, atol=1e-5, rtol=1e-4):
    """Compares results and all gradients with those of torch's layer with the same weights."""
    dense = layer.to_dense()
    dense = dense.to(leaves[0].dtype)
    twins = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    found, wanted = [], []
    for module, (x, *states), results in ((layer, leaves, found), (dense, twins, wanted)):
        given = x if lengths is None else packed(x, layer, lengths)
        results += run(module, given, states)
        generator = torch.Generator().manual_seed(7)
        dys = [torch.randn(y.shape, generator=generator).to(y) for y in results]
        torch.autograd.backward(results, dys)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        torch.testing.assert_close(mine, theirs, atol=atol, rtol=rtol)
    for mine, theirs in zip(leaves, twins, strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=atol, rtol=rtol)
    weights = layer.sparse_weights()
    for name, parameter in layer.named_parameters():
        child, own = name.split(".")
        theirs = dense.get_parameter(f"{'bias' if own == 'bias' else 'weight'}_{child}").grad
        theirs = weights[name].packed(theirs) if name in weights else theirs
        torch.testing.assert_close(parameter.grad, theirs, atol=10 * atol, rtol=10 * rtol)
