"""What follows the product of a block-sparse convolution: edge bias, activation and residual; padding modes
with 'valid' and even kernels; files, transformers and what is refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conv_twins import made, made_transposed, require_equal_to_dense
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

import sparseloom.hf
from sparseloom import BlockSparse, Error, densify_, load, quantize_, save, sparsify_
from sparseloom.nn import BlockSparseConv1x1, BlockSparseConv2d, BlockSparseConvTranspose2d
from sparseloom.ops.conv import product


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", ["valid", "same", (2, 1)], ids=str)
def test_every_padding_with_every_mode(padding: Any, mode: str) -> None:
    torch.manual_seed(0)
    how: Any = {"kernel_size": (4, 3), "padding": padding, "padding_mode": mode}
    require_equal_to_dense(made(2, **how), torch.randn(2, 24, 6, 7))


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu", "relu2"])
def test_activation_and_residual_are_those_of_the_linear_layer(activation: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 24, 5, 6)
    for layer in (
        made(2, padding=1, activation=activation),
        made_transposed(2, padding=1, activation=activation),
    ):
        twin = layer.to_dense()
        assert isinstance(twin, nn.Sequential) and activation in repr(layer)
        torch.testing.assert_close(layer(x), twin(x))
        residual = torch.randn(2, 20, 5, 6, requires_grad=True)
        torch.testing.assert_close(layer(x, residual=residual), twin(x) + residual)
        torch.testing.assert_close(layer(x[0], residual=residual[0]), twin(x[0]) + residual[0])
        layer(x, residual=residual).sum().backward()
        assert torch.equal(residual.grad, torch.ones_like(residual))
        for wrong in (residual[:1], residual.double()):
            with pytest.raises(Error, match=r"\[conv\] expected a residual of y's"):
                layer(x, residual=wrong)
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x, residual=residual).dtype == torch.bfloat16
    net = nn.Sequential(made(2, activation=activation))
    y = net(x)
    densify_(net)
    torch.testing.assert_close(net(x), y)
    with pytest.raises(Error, match="activation"):
        made(2, activation="tanh")


def outside_of_conv(layer: Any, y: tuple[int, ...], x: tuple[int, ...]) -> list[tuple[int, ...]]:
    taps = itertools.product(*(range(size) for size in layer.kernel_size))
    before = [side for side, _ in layer._sides]
    return [
        tap
        for tap in taps
        if not all(
            0 <= at * stride - pad + t * dilation < extent
            for at, stride, pad, t, dilation, extent in zip(
                y, layer.stride, before, tap, layer.dilation, x, strict=True
            )
        )
    ]


def outside_of_transposed(layer: Any, y: tuple[int, ...], x: tuple[int, ...]) -> list[tuple[int, ...]]:
    """How many taps lie outside on each side of each axis. Those between two x are nobody's border."""
    found = []
    for axis, p in enumerate(y):
        stride, last = layer.stride[axis], (x[axis] - 1) * layer.stride[axis]
        reach = range(layer.kernel_size[axis])
        at = [p + layer.padding[axis] - tap * layer.dilation[axis] for tap in reach]
        counted = [each for each in at if each % stride == 0]
        for side, out in enumerate((sum(e < 0 for e in counted), sum(e > last for e in counted))):
            found += [(axis, side, out)] if out else []
    return found


@pytest.mark.parametrize(
    ("maker", "how", "extents", "outside"),
    [
        (made, {"padding": 1}, (5, 4), outside_of_conv),
        (made, {"padding": "same", "kernel_size": (4, 3)}, (6, 5), outside_of_conv),
        (made, {"padding": 2, "stride": 2, "dilation": 2}, (9, 8), outside_of_conv),
        (made, {"padding": (1, 0)}, (1, 5), outside_of_conv),  # both sides at once
        (made_transposed, {"padding": 1}, (5, 4), outside_of_transposed),
        (
            made_transposed,
            {"kernel_size": 4, "stride": 2, "padding": 1, "output_padding": 1},
            (5, 4),
            outside_of_transposed,
        ),
        (made_transposed, {"stride": 2, "dilation": 2, "padding": 1}, (4, 4), outside_of_transposed),
    ],
    # str() of a function holds its address, and pytest's workers must agree on what a test is called.
    ids=lambda value: getattr(value, "__qualname__", str(value)),
)
def test_each_set_of_taps_outside_has_a_gain_and_a_bias(
    maker: Any, how: dict[str, Any], extents: tuple[int, ...], outside: Any
) -> None:
    torch.manual_seed(0)
    layer, x = maker(2, edge_bias=True, activation="relu", **how), torch.randn(2, 24, *extents)
    plain = maker(2, **how)
    plain.load_state_dict({k: v for k, v in layer.state_dict().items() if not k.startswith("edges.")})
    y = plain(x)
    torch.testing.assert_close(layer(x), y.relu())  # no effect at first
    with torch.no_grad():
        torch.nn.init.normal_(layer.edges.gain), torch.nn.init.normal_(layer.edges.bias)
    layer.activation = None
    z = layer(x)
    rows: dict[Any, int] = {}
    for at in itertools.product(*(range(extent) for extent in y.shape[2:])):
        key, where = tuple(outside(layer, at, extents)), (..., *at)
        if not key:
            assert torch.equal(z[where], y[where])
            continue
        expected = torch.addcmul(
            layer.edges.bias, y[where][:, None], layer.edges.gain
        )  # [images, sets, channels]
        fits = (expected - z[where][:, None]).abs().amax((0, 2)) < 1e-5
        assert int(fits.sum()) == 1
        assert rows.setdefault(key, int(fits.int().argmax())) == int(fits.int().argmax())
    assert len(set(rows.values())) == len(rows) > 0
    z.sum().backward()
    used = torch.zeros(len(layer.edges.gain), dtype=torch.bool)
    used[list(rows.values())] = True
    assert torch.equal(layer.edges.bias.grad.abs().sum(1) > 0, used)


def test_edge_bias_is_saved_copied_compiled_and_refused_where_it_means_nothing(tmp_path: Path) -> None:
    torch.manual_seed(0)

    def net() -> nn.Sequential:
        return nn.Sequential(BlockSparseConv2d(16, 16, 3, padding=1, density=0.5, block=8, edge_bias=True))

    first, second, x = net(), net(), torch.randn(2, 16, 5, 5)
    torch.nn.init.normal_(first[0].edges.gain)
    save(first, tmp_path / "net.safetensors")
    load(tmp_path / "net.safetensors", second)
    assert torch.equal(first(x), second(x))
    compiled = torch.compile(second, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), first(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert second(x).dtype == torch.bfloat16
    both = nn.Sequential(first, made(2, (16, 16)))
    (skip,) = densify_(both).skipped
    assert skip.name == "0.0" and "edge bias" in skip.reason and type(both[1]) is nn.Conv2d
    with pytest.raises(Error, match="a layer without an edge bias"):
        first[0].to_dense()
    for how in ({"padding": 0}, {"padding": 1, "padding_mode": "reflect"}):
        with pytest.raises(Error, match=r"padding of zeros|over the border"):
            made(2, edge_bias=True, **how)


class Config(PretrainedConfig):  # type: ignore[misc]
    model_type = "sparseloom_test_net"


class Net(PreTrainedModel):  # type: ignore[misc]
    config_class = Config
    base_model_prefix = "body"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.first = nn.Conv2d(16, 32, 3, padding=1)
        self.second = nn.Conv2d(32, 32, 1)
        self.third = nn.ConvTranspose2d(32, 20, 3, stride=2)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.third(self.second(self.first(x).relu()).relu())
        return y


def test_transformers_saves_and_loads_convolutions(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = Net(Config()).eval(), torch.randn(2, 16, 5, 5)
    sparsify_(net, {".*": BlockSparse(block=8, density=0.5)})
    net.first.add_edges_(), torch.nn.init.normal_(net.first.edges.bias)
    net.first.activation = "relu"
    sparseloom.hf.describe_(net)
    y = net(x)
    net.save_pretrained(tmp_path)
    layers = json.loads((tmp_path / "config.json").read_text())["quantization_config"]["layers"]
    assert layers["first"] == {"block": [8, 8], "blocks": 4, "activation": "relu", "edge_bias": True}
    again = Net.from_pretrained(tmp_path).eval()
    kinds = [type(each) for each in (again.first, again.second, again.third)]
    assert kinds == [BlockSparseConv2d, BlockSparseConv1x1, BlockSparseConvTranspose2d]
    assert torch.equal(again(x), y)
    again.train()(x).sum().backward()
    assert again.third.values.grad is not None


def test_a_state_dict_that_save_pretrained_wrote_loads_into_a_layer() -> None:
    layer = BlockSparseConv2d(16, 16, 3, density=0.5, block=8)
    entries = layer.state_dict()
    entries["weight"] = entries.pop("values")
    again = BlockSparseConv2d(16, 16, 3, density=0.5, block=8)
    again.load_state_dict(entries)
    assert torch.equal(again.values, layer.values) and again.pattern == layer.pattern


def test_a_padded_1x1_convolution_and_what_is_not_quantized() -> None:
    torch.manual_seed(0)
    net, x = (
        nn.Sequential(nn.Conv2d(16, 16, 1, padding=1), nn.ConvTranspose2d(16, 16, 3)),
        torch.randn(1, 16, 4, 4),
    )
    dense = net[0]
    sparsify_(net, {".*": BlockSparse(block=8, density=1.0)})
    assert [type(each) for each in net] == [BlockSparseConv2d, BlockSparseConvTranspose2d]
    torch.testing.assert_close(net[0](x), dense(x))
    with pytest.raises(Error, match="0, 1, which have no 8-bit layer"):
        quantize_(net)
    net.append(nn.Linear(16, 16))
    sparsify_(net, {"2": BlockSparse(block=8, density=0.5)})
    kept = {skip.name: skip.reason for skip in quantize_(net).skipped}
    assert kept.keys() == {"0", "1"} and all("no 8-bit product for conv" in each for each in kept.values())


#: Of layers on three numbers of axes and a transposed one: what makes them, and their input and output.
FUSED = {
    "conv1d": (lambda **how: made(1, padding=1, **how), (2, 24, 7), (2, 20, 7)),
    "conv2d": (lambda **how: made(2, padding=1, **how), (2, 24, 5, 6), (2, 20, 5, 6)),
    "conv3d": (lambda **how: made(3, padding=1, **how), (2, 24, 3, 4, 5), (2, 20, 3, 4, 5)),
    "transposed": (lambda **how: made_transposed(2, padding=1, **how), (2, 24, 5, 6), (2, 20, 5, 6)),
}


def no_pass(y: Tensor, activation: str | None) -> Tensor:
    assert activation is None
    return y


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu", "relu2"])
@pytest.mark.parametrize("kind", FUSED)
def test_a_row_s_epilogue_is_that_of_passes_behind_it(
    kind: str, activation: str | None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    make, x_shape, y_shape = FUSED[kind]
    layer = make(activation=activation).to(dtype)
    layer.strict = True  # by a row
    twin = layer.to_dense().double()
    x, residual, dy = (torch.randn(shape, dtype=dtype) for shape in (x_shape, y_shape, y_shape))
    near = {"rtol": 2e-5, "atol": 2e-5} if dtype is torch.float32 else {"rtol": 0.02, "atol": 0.02}
    for more in (None, residual):
        wide = [None if each is None else each.double().requires_grad_() for each in (x, more)]
        expected = twin(wide[0]) if wide[1] is None else twin(wide[0]) + wide[1]
        with torch.no_grad(), monkeypatch.context() as patched:
            if kind != "transposed":  # whose rows on a CPU add a bias and no more
                patched.setattr(product, "activate", no_pass)
            y = layer(x, residual=more)
        torch.testing.assert_close(y.double(), expected, **near)
        own = [None if each is None else each.clone().requires_grad_() for each in (x, more)]
        trained = layer(own[0], residual=own[1])
        torch.testing.assert_close(trained, y, **near)
        leaves, wide_leaves = (
            [*(each for each in inputs if each is not None), *module.parameters()]
            for inputs, module in ((own, layer), (wide, twin))
        )
        mine = torch.autograd.grad(trained, leaves, dy)
        theirs = list(torch.autograd.grad(expected, wide_leaves, dy.double()))
        at = next(i for i, each in enumerate(leaves) if each is layer.values)
        theirs[at] = layer.sparse_weights()["values"].packed(layer.of_channels(theirs[at]))
        for got, exact in zip(mine, theirs, strict=True):
            limit = near["rtol"] * float(exact.abs().max())
            torch.testing.assert_close(got.double(), exact, rtol=near["rtol"], atol=limit)
