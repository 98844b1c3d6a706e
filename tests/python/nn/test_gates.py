"""Gates of stored blocks: ops.gated_linear and nn.GatedBlockSparseLinear against dense twins in float64."""

import pytest
import torch

import sparseloom
from sparseloom import Error, nn, ops

SHAPES = [((16, 16), 70, 100), ((64, 64), 128, 192), ((8, 32), 40, 64), ((128, 128), 200, 136)]
KINDS = ["half", "ones", "zeros"]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def operands(block, rows, cols, kind="half", dtype=torch.float32, tokens=33, device="cpu"):
    torch.manual_seed(0)
    layer = nn.BlockSparseLinear(cols, rows, block=block, density=0.6)
    blocks = layer.values.shape[0]
    gates = {"half": torch.rand(blocks) + 0.3, "ones": torch.ones(blocks), "zeros": torch.zeros(blocks)}[kind]
    if kind == "half":
        gates[torch.randperm(blocks)[: blocks // 2]] = 0
    leaves = torch.randn(tokens, cols), layer.values.detach().clone(), gates, torch.randn(rows)
    leaves = [leaf.to(device, torch.float32 if leaf is gates else dtype) for leaf in leaves]
    index = layer.index if device == "cpu" else layer.index.to(device)
    return layer, index, [leaf.requires_grad_() for leaf in leaves]


def twin(layer, index, leaves, dy):
    """The same product and its gradients in float64, all blocks multiplied."""
    x, values, gates, bias = (leaf.detach().double().cpu().requires_grad_() for leaf in leaves)
    mask = layer.pattern.mask
    grid = torch.zeros(mask.shape, dtype=torch.float64)
    grid[mask] = 1
    places = grid.nonzero()
    block = index.bm, index.bn
    rows, cols = mask.shape[0] * block[0], mask.shape[1] * block[1]
    weight = torch.zeros(rows, cols, dtype=torch.float64)
    for i, (r, c) in enumerate(places.tolist()):
        part = torch.zeros_like(weight)
        part[r * block[0] : (r + 1) * block[0], c * block[1] : (c + 1) * block[1]] = 1
        weight = weight + part * torch.nn.functional.pad(
            values[i] * gates[i],
            (c * block[1], cols - (c + 1) * block[1], r * block[0], rows - (r + 1) * block[0]),
        )
    y = x @ weight[: index.rows, : index.cols].t() + bias
    y.backward(dy.double().cpu())
    live = (gates != 0).double()
    return y, x.grad, values.grad * live[:, None, None], gates.grad * live, bias.grad


def compare(shape, kind, dtype, device="cpu"):
    block, rows, cols = shape
    layer, index, leaves = operands(block, rows, cols, kind, dtype, device=device)
    y = ops.gated_linear(leaves[0], leaves[1], index, leaves[2], leaves[3])
    dy = torch.randn(y.shape).to(y)
    y.backward(dy)
    wanted = twin(layer, index, leaves, dy)
    for got, want in zip((y, *(leaf.grad for leaf in leaves)), wanted, strict=True):
        size = want.abs().max().item() or 1.0
        slack = 1 if device == "cpu" else 3  # fp32 on a GPU may be three products of 16 bits
        torch.testing.assert_close(got.double().cpu(), want, rtol=0, atol=slack * TOLERANCE[dtype] * size)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_products_and_gradients_are_those_of_the_dense_twin(shape, kind):
    compare(shape, kind, torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits(dtype):
    compare(SHAPES[0], "half", dtype)


def test_a_block_whose_gate_is_zero_is_not_read():
    _, index, (x, values, gates, bias) = operands((16, 16), 64, 64)
    with torch.no_grad():
        clean = ops.gated_linear(x, values, index, gates, bias)
        values[gates == 0] = float("nan")
        assert torch.equal(ops.gated_linear(x, values, index, gates, bias), clean)
    values.grad = gates.grad = None
    ops.gated_linear(x, values, index, gates, bias).sum().backward()
    assert values.grad.isfinite().all() and gates.grad.isfinite().all() and x.grad.isfinite().all()
    assert not values.grad[gates == 0].any() and not gates.grad[gates == 0].any()


def test_only_what_is_asked_for_gets_a_gradient():
    for wanted in range(4):
        _, index, leaves = operands((16, 16), 64, 64)
        for i, leaf in enumerate(leaves):
            leaf.requires_grad_(i == wanted)
        ops.gated_linear(leaves[0], leaves[1], index, leaves[2], leaves[3]).sum().backward()
        assert [leaf.grad is not None for leaf in leaves] == [i == wanted for i in range(4)]


def test_the_operators_as_torch_checks_them():
    _, index, (_, values, gates, _) = operands((16, 16), 70, 100)
    values, gates = values.detach(), gates.detach()
    arguments = values, index.packed, gates, index.rows, index.cols
    torch.library.opcheck(torch.ops.sparseloom.gate_blocks.default, arguments)
    _, gradient, place = torch.ops.sparseloom.gate_blocks(*arguments)
    for needs in ((True, True), (False, True)):
        torch.library.opcheck(
            torch.ops.sparseloom.gate_gradients.default, (gradient, values, gates, place, *needs)
        )


@pytest.mark.parametrize(
    "change, words",
    [
        ({"gates": torch.ones(3)}, ("gates of float32 [", "[3]")),
        ({"values": torch.ones(18, 16, 16).double()}, ("f64",)),
        ({"x": torch.ones(2, 5)}, ("x [..., 100]", "[2, 5]")),
    ],
)
def test_what_does_not_fit_is_refused(change, words):
    _, index, (x, values, gates, _) = operands((16, 16), 70, 100)
    given = {"x": x.detach(), "values": values.detach(), "gates": gates.detach()} | change
    if "values" in change:
        given["values"] = values.detach().double()
    with pytest.raises(Error) as caught:
        ops.gated_linear(given["x"], given["values"], index, given["gates"])
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_l0_closes_what_is_not_needed_and_packs():
    torch.manual_seed(1)
    x = torch.randn(256, 64)
    truth = torch.zeros(32, 64)
    truth[:16, :16] = 3 * torch.randn(16, 16)
    layer = nn.GatedBlockSparseLinear(nn.BlockSparseLinear(64, 32, block=16, density=1.0), strength=0.1)
    optimizer = torch.optim.Adam(
        [{"params": layer.layer.parameters()}, {"params": layer.gate.parameters(), "lr": 0.1}], lr=0.01
    )
    for _ in range(200):
        optimizer.zero_grad()
        loss = (layer(x) - x @ truth.t()).square().mean() + layer.penalty()
        loss.backward()
        optimizer.step()
    layer.eval()
    packed = layer.pack()
    assert packed.pattern.mask[0, 0] and not packed.pattern.mask[1].any()
    torch.testing.assert_close(packed(x), layer(x), rtol=1e-5, atol=1e-5)
    assert packed.bias is layer.layer.bias


def test_a_layer_with_an_activation_is_refused():
    with pytest.raises(Error, match="without an activation"):
        nn.GatedBlockSparseLinear(nn.BlockSparseLinear(64, 32, density=0.5, activation="relu"))


class Gated(torch.nn.Module):
    """A gated layer before a dense one, half of its gates closed."""

    def __init__(self):
        super().__init__()
        inner = nn.BlockSparseLinear(64, 32, block=16, density=0.5)
        self.first, self.last = nn.GatedBlockSparseLinear(inner), torch.nn.Linear(32, 8)
        with torch.no_grad():
            self.first.gate.log_alpha[0, ::2] = -9

    def forward(self, x):
        return self.last(self.first(x))


@pytest.mark.parametrize("change", [sparseloom.densify_, sparseloom.pack_])
def test_a_gated_layer_is_exchanged_as_a_whole(change):
    net, x = Gated().eval(), torch.randn(16, 64)
    optimizer = torch.optim.Adam(net.parameters())
    net(x).square().mean().backward()
    optimizer.step()
    with torch.no_grad():
        wanted, bias = net(x), net.first.layer.bias
    result = change(net, optimizer=optimizer)
    assert [each.names for each in result.changed] == [("first",)] and net.first.bias is bias
    torch.testing.assert_close(net(x), wanted, rtol=1e-5, atol=1e-5)
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    assert held == {id(each) for each in net.parameters()}  # the gates left, the weight was exchanged
    net(x).square().mean().backward()
    optimizer.step()


def test_nothing_exchanges_the_layer_inside_of_a_gated_one():
    net, x = Gated().eval(), torch.randn(16, 64)
    before = net(x)
    with pytest.raises(Error, match="gates multiply its blocks in each call: call pack_ first"):
        sparseloom.quantize_(net)
    with pytest.raises(Error, match="blocks without gates"):
        sparseloom.patch.drive(net, sparseloom.sparsify.methods.set_(), [])
    assert torch.equal(net(x), before)
    net.first.layer = net.first.layer.to_dense()  # by anything else
    with pytest.raises(Error, match="its BlockSparseLinear as the child layer, got a Linear"):
        net(x)


def test_a_report_has_a_dense_twin_of_a_gated_layer():
    net = Gated().eval()
    report = sparseloom.report(net, torch.randn(16, 64), seconds=0.01)
    assert report.model.dense_times is not None and not report.model.note
    assert [layer.name for layer in report.layers] == ["first.layer", "last"]
    assert "gates multiply its blocks" in report.layers[0].note
    dense = 64 * 32 + 32 + 32 * 8 + 8
    assert report.totals.dense_parameters == dense and report.totals.sparse_share == 64 * 32 / dense
