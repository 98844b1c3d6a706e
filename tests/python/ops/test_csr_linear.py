"""The products of CSR, COO and bitmap weights: every kernel beside fp64, gradients, and the layers that hold
them."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
import torch
from torch import Tensor, nn

import sparseloom
from sparseloom import Error
from sparseloom.layouts import Bitmap, Coo, Csr
from sparseloom.nn import SparseLinear
from sparseloom.ops import csr
from sparseloom.ops.operators import activation_code, row_of

OPERATORS = torch.ops.sparseloom
DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float64: "f64"}
#: Largest relative error of a result that is rounded once after sums in fp32.
ROUNDING = {torch.float32: 2e-6, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float64: 1e-13}
NAN = float("nan")


def weight_of(rows: int, cols: int, density: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random elements; a row without any, one with all, and a column without any."""
    generator = torch.Generator().manual_seed(rows + 10 * cols)
    kept = torch.rand(rows, cols, generator=generator) < density
    weight = torch.where(kept, torch.randn(rows, cols, generator=generator), 0)
    if rows > 2 and cols > 2:
        weight[0], weight[rows // 2], weight[:, 1] = 0, 1, 0
    return weight.to(dtype)


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Products:
    """The operands of the three products, the products by a kernel, and their values in fp64."""

    def __init__(
        self, weight: Tensor, tokens: int, device: str = "cpu", cls: type[Csr] | type[Bitmap] = Csr
    ) -> None:
        self.weight, self.device = weight.to(device), device
        self.layout = cls.from_dense(self.weight)
        rows, cols = weight.shape
        self.values = self.layout.pack(self.weight)
        self.x = normal(tokens, cols, dtype=weight.dtype, seed=1).to(device)
        self.dy = normal(tokens, rows, dtype=weight.dtype, seed=2).to(device)
        self.bias = normal(rows, dtype=weight.dtype, seed=3).to(device)

    def run(self, direction: str, kernel: str = "") -> Tensor:
        index, row = self.layout.csr(), row_of(kernel)
        if isinstance(self.layout, Bitmap):
            bits = self.layout.bits, self.layout.bounds()
            if direction == "forward":
                return OPERATORS.bitmap_linear(self.x, self.values, *bits, self.bias, row=row)
            if direction == "dx":
                return OPERATORS.bitmap_dx(self.dy, self.values, *bits, self.layout.cols, row)
            return OPERATORS.bitmap_dw(self.dy, self.x, *bits, len(self.values), row)
        if direction == "forward":
            return OPERATORS.csr_linear(self.x, self.values, *index, self.bias, row=row)
        if direction == "dx":
            columns = self.layout.by_column() if self.device == "cuda" else None
            return OPERATORS.csr_dx(self.dy, self.values, *index, columns, self.layout.cols, row)
        return OPERATORS.csr_dw(self.dy, self.x, *index, row)

    def exact(self, direction: str) -> tuple[Tensor, Tensor]:
        """The product in fp64, and the sum of its terms' magnitudes."""
        w, x, dy, bias = (each.double() for each in (self.weight, self.x, self.dy, self.bias))
        found = []
        for size in (False, True):
            if size:
                w, x, dy, bias = (each.abs() for each in (w, x, dy, bias))
            if direction == "forward":
                found.append(x @ w.t() + bias)
            else:
                found.append(dy @ w if direction == "dx" else self.layout.pack(dy.t() @ x))
        return found[0], found[1]

    def kernels(self, direction: str) -> list[str]:
        """The kernels that do not refuse it, or only because nobody names them."""
        plan = self.layout.plan(len(self.x), direction, self.weight.dtype, direction == "forward")
        refusals = {each["kernel"]: each["refusal"] for each in plan["candidates"]}
        return [kernel for kernel, refusal in refusals.items() if not refusal or "only by name" in refusal]


BOTH = pytest.mark.parametrize("cls", [Csr, Bitmap])


@BOTH
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("shape", "density"), [((40, 33), 0.3), ((16, 64), 1), ((1, 5), 0.5), ((70, 300), 0.02), ((5, 1), 0.6)]
)
def test_every_kernel_is_right(
    cls: type[Csr] | type[Bitmap], dtype: torch.dtype, shape: tuple[int, int], density: float
):
    for tokens in (1, 2, 16, 17, 130):
        products = Products(weight_of(*shape, density, dtype), tokens, cls=cls)
        for direction in ("forward", "dx", "dw"):
            exact, size = products.exact(direction)
            kernels = products.kernels(direction)
            assert "reference" in kernels
            for kernel in kernels:
                got = products.run(direction, kernel)
                assert got.dtype == dtype and got.shape == exact.shape
                bound = ROUNDING[dtype] * exact.abs() + 2e-6 * size * (dtype != torch.float64) + 1e-7
                assert bool(((got.double() - exact).abs() <= bound).all()), (kernel, direction, tokens)


@BOTH
@pytest.mark.parametrize(("tokens", "cols", "density"), [(1, 700, 0.2), (64, 700, 0.2), (1, 2000, 0.01)])
def test_the_bits_depend_on_no_number_of_threads(
    cls: type[Csr] | type[Bitmap], tokens: int, cols: int, density: float
):
    """Of long rows and of short ones, whose products come before their sums."""
    rows = int(120000 / (cols * density))
    products = Products(weight_of(rows, cols, density), tokens, cls=cls)
    threads = torch.get_num_threads()
    try:
        for direction in ("forward", "dx", "dw"):
            for kernel in products.kernels(direction):
                if kernel == "dense":  # torch's own product
                    continue
                found = []
                for count in (1, 2, 3):
                    torch.set_num_threads(count)
                    found.append(products.run(direction, kernel))
                assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2]), kernel
    finally:
        torch.set_num_threads(threads)


def test_nan_reaches_the_outputs_that_store_its_column_alone():
    weight = weight_of(20, 12, 0.4)
    weight[3, 5] = 0
    mask = weight != 0
    mask[3, 5] = True  # a stored zero
    layout = Csr.from_dense(weight, mask=mask)
    values = layout.pack(weight)
    for tokens in (1, 5):
        x = normal(tokens, 12)
        x[0, 5] = NAN
        for kernel in ("reference", *Products(weight, tokens).kernels("forward")):
            if kernel != "dense":
                y = OPERATORS.csr_linear(x, values, *layout.csr(), row=row_of(kernel))
                assert torch.equal(y[0].isnan(), mask[:, 5]) and not y[1:].isnan().any(), kernel
    values[layout.crow[4]] = NAN
    y = layout.linear(normal(3, 12), values, None)
    assert torch.equal(y.isnan(), (torch.arange(20) == 4).expand(3, 20))


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("tokens", [1, 5, 40])
@pytest.mark.parametrize("cols", [61, 33])
def test_nan_stays_in_its_element_in_every_product_of_every_kernel(
    cls: type[Csr] | type[Bitmap], tokens: int, dtype: torch.dtype, cols: int
):
    """Rows of all lengths from 0 to 30, whose neighbours a kernel may read along. 33 columns are a vector and
    the beginning of another one."""
    weight = torch.tril(weight_of(61, cols, 0.7, dtype))
    products = Products(weight, tokens, cls=cls)
    kept, last = weight != 0, tokens - 1
    begin = int(products.layout.csr()[0][40])
    products.values[begin] = NAN
    for direction in ("forward", "dx", "dw"):
        for kernel in products.kernels(direction):
            if kernel == "dense":
                continue
            got = products.run(direction, kernel).isnan()
            wanted = torch.zeros_like(got)
            if direction == "forward":
                wanted[:, 40] = True
            elif direction == "dx":
                wanted[:, products.layout.csr()[1][begin]] = True
            assert torch.equal(got, wanted), (kernel, direction)
    products = Products(weight, tokens, cls=cls)
    products.x[last, 7], products.dy[last, 50] = NAN, float("inf")
    for direction in ("forward", "dx", "dw"):
        for kernel in products.kernels(direction):
            if kernel == "dense":
                continue
            got = ~products.run(direction, kernel).isfinite()
            wanted = torch.zeros_like(got)
            if direction == "forward":
                wanted[last] = kept[:, 7]
            elif direction == "dx":
                wanted[last] = kept[50]
            else:
                row, col = products.layout.places()
                wanted = (row == 50) | (col == 7)
            assert torch.equal(got, wanted), (kernel, direction)


@BOTH
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (3, 5)])
def test_nothing_stored_and_nothing_to_multiply(cls: type[Csr] | type[Bitmap], shape: tuple[int, int]):
    layout, bias = cls.from_dense(torch.zeros(shape)), normal(shape[0])
    for tokens in (0, 1, 3):
        x, dy, none = normal(tokens, shape[1]), normal(tokens, shape[0]), torch.zeros(0)
        assert torch.equal(layout.linear(x, none, bias), bias.expand(tokens, shape[0]))
        assert torch.equal(layout.dx(dy, none), torch.zeros(tokens, shape[1]))
        assert layout.dw(dy, x).shape == (0,)
    one = cls.from_dense(torch.ones(1, 1))
    assert one.dw(torch.empty(0, 1), torch.empty(0, 1)).tolist() == [0]


@pytest.mark.parametrize("name", ["csr", "coo", "bitmap"])
def test_gradients_hold_to_the_second_order(name: str):
    layout = sparseloom.layouts.get(name).from_dense(weight_of(7, 5, 0.5, torch.float64))
    values = layout.pack(normal(7, 5, dtype=torch.float64)).requires_grad_()
    x, bias = (normal(*shape, dtype=torch.float64).requires_grad_() for shape in ((3, 5), (7,)))
    dy = normal(3, 7, dtype=torch.float64).requires_grad_()
    for call, operands in (
        (layout.linear, (x, values, bias)),
        (layout.dx, (dy, values)),
        (layout.dw, (dy, x)),
    ):
        assert torch.autograd.gradcheck(call, operands) and torch.autograd.gradgradcheck(call, operands)


@pytest.mark.parametrize("name", ["csr", "coo", "bitmap"])
@pytest.mark.parametrize("shape", [(24,), (1, 24), (7, 24), (2, 3, 24), (0, 24)])
def test_a_layer_is_its_dense_twin(name: str, shape: tuple[int, ...]):
    torch.manual_seed(1)
    layer = SparseLinear(24, 16, layout=name, density=0.3)
    twin, x = layer.to_dense(), normal(*shape)
    mine, theirs = (x.clone().requires_grad_() for _ in "ab")
    layer(mine).square().sum().backward()
    twin(theirs).square().sum().backward()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    wanted = layer.layout.pack(twin.weight.grad)
    torch.testing.assert_close(layer.values.grad, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(layer.bias.grad, twin.bias.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["csr", "coo", "bitmap"])
def test_layers_copy_pickle_compile_export_and_run_under_autocast(name: str):
    torch.manual_seed(0)
    layer, x = SparseLinear(24, 16, layout=name, density=0.3), normal(3, 24)
    want = layer(x)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), want)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), want)
    compiled(x).sum().backward()
    got, layer.values.grad = layer.values.grad, None
    layer(x).sum().backward()
    torch.testing.assert_close(got, layer.values.grad)
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), want)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert layer.values.grad.dtype == torch.float32
    assert layer.to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16


def test_coo_is_converted_once():
    torch.manual_seed(0)
    layer = SparseLinear(24, 16, layout="coo", density=0.3)
    held = layer.layout.csr()[0]
    assert layer.layout.csr()[0] is held is layer._buffers["crow"]
    assert "crow" not in layer.state_dict() and "indices" in layer.state_dict()
    other = SparseLinear(24, 16, layout="coo", density=0.5)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(normal(3, 24)), layer(normal(3, 24)))
    with torch.no_grad():
        layer.indices.copy_(Coo.from_dense(other.to_dense().weight.flip(0)).indices)
    assert torch.equal(layer.layout.csr()[0], Csr.from_dense(layer.to_dense().weight).crow)
    layer.refresh_()
    assert layer.layout.csr()[0] is layer._buffers["crow"]


def test_opcheck():
    products = Products(weight_of(9, 7, 0.4), 3)
    index, values = products.layout.csr(), products.values
    bitmap = Bitmap.from_dense(products.weight)
    bits = bitmap.bits, bitmap.bounds()
    for op, arguments in (
        (OPERATORS.csr_linear.default, (products.x, values, *index, products.bias)),
        (OPERATORS.csr_dx.default, (products.dy, values, *index, None, 7)),
        (OPERATORS.csr_dw.default, (products.dy, products.x, *index)),
        (OPERATORS.bitmap_linear.default, (products.x, values, *bits, products.bias)),
        (OPERATORS.bitmap_dx.default, (products.dy, values, *bits, 7)),
        (OPERATORS.bitmap_dw.default, (products.dy, products.x, *bits, len(values))),
    ):
        assert set(torch.library.opcheck(op, arguments).values()) == {"SUCCESS"}, op


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda p: p.layout.col.fill_(7), "ascending columns below 7"),
        (lambda p: p.layout.col.fill_(-1), "ascending columns"),
        (lambda p: p.layout.crow.fill_(1), "crow from 0"),
        (lambda p: setattr(p, "values", p.values[:-1]), "values"),
        (lambda p: setattr(p, "values", p.values.double()), "values"),
        (lambda p: setattr(p, "dy", p.dy[:, :-1]), "dy"),
    ],
)
def test_operands_that_do_not_fit_are_refused(spoil, says: str):
    products = Products(weight_of(9, 7, 0.4), 3)
    products.run("dx")  # an index that was seen is looked at again when it changes
    spoil(products)
    with pytest.raises(RuntimeError, match=says):
        products.run("dx")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda p, bits, crow: bits[3].fill_(0), r"crow\[4\] = .*, as the bits say"),
        (lambda p, bits, crow: bits[8].fill_(255), "no bit behind column 6, got one in row 8"),
        (lambda p, bits, crow: crow[9:].add_(1), r"values \[|crow\[9\]"),
        (lambda p, bits, crow: setattr(p, "values", p.values[:-1]), "values"),
        (lambda p, bits, crow: setattr(p, "values", p.values.double()), "values"),
        (lambda p, bits, crow: setattr(p, "dy", p.dy[:, :-1]), "dy"),
    ],
)
def test_bitmaps_that_do_not_fit_are_refused(spoil, says: str):
    products = Products(weight_of(9, 7, 0.4), 3, cls=Bitmap)
    bits, crow = products.layout.bits, products.layout.bounds()
    arguments = (bits, crow, 7)
    OPERATORS.bitmap_dx(products.dy, products.values, *arguments)  # seen, and looked at again when it changes
    spoil(products, bits, crow)
    with pytest.raises(RuntimeError, match=says):
        OPERATORS.bitmap_dx(products.dy, products.values, *arguments)


@BOTH
def test_the_dense_row_takes_a_wide_weight_in_pieces(cls: type[Csr] | type[Bitmap]):
    """Of 2 MiB a thread: the product of a piece, its bias and its outputs begin where the piece does; the
    activation and the residual of all come last."""
    products = Products(weight_of(1133, 2048, 0.05), 3, cls=cls)
    index = (products.layout.bits, products.layout.bounds()) if cls is Bitmap else products.layout.csr()
    call = OPERATORS.bitmap_linear if cls is Bitmap else OPERATORS.csr_linear
    threads, residual = torch.get_num_threads(), normal(3, 1133, dtype=torch.float32, seed=4)
    torch.set_num_threads(2)
    try:
        how = products.bias, activation_code("linear", "gelu"), residual, row_of("dense")
        y = call(products.x, products.values, *index, *how)
    finally:
        torch.set_num_threads(threads)
    z = products.x @ products.weight.t() + products.bias
    torch.testing.assert_close(y, torch.nn.functional.gelu(z) + residual)


def test_plans_count_elements_to_2_31():
    plan = csr.plan("forward", torch.float32, 64, (2**20, 2**20), 2**31 - 1, False, "cpu")
    assert "layout=csr stored=2147483647" in plan["text"]
    with pytest.raises(Error, match="at most 2\\^31 - 1 stored elements, got 2147483648"):
        csr.plan("forward", torch.float32, 64, (2**20, 2**20), 2**31, False, "cpu")


@BOTH
def test_what_the_plan_says_runs(cls: type[Csr] | type[Bitmap]):
    products = Products(weight_of(300, 500, 0.1), 64, cls=cls)
    before = json.loads(OPERATORS.kernel_runs())
    for direction in ("forward", "dx", "dw"):
        plan = products.layout.plan(64, direction, torch.float32, direction == "forward")
        products.run(direction)
        after = json.loads(OPERATORS.kernel_runs())
        if plan["kernel"] not in ("reference", "dense", "dense_dw"):
            assert after[plan["kernel"]] == before.get(plan["kernel"], 0) + 1
        before = after


def test_a_layer_trains_beside_its_masked_dense_twin():
    torch.manual_seed(0)
    layer = SparseLinear(32, 16, layout="csr", density=0.2)
    twin, mask = layer.to_dense(), layer.layout.to_dense(torch.ones_like(layer.values))
    nets = nn.Sequential(layer, nn.Tanh(), nn.Linear(16, 4)), nn.Sequential(twin, nn.Tanh(), nn.Linear(16, 4))
    nets[1][2].load_state_dict(nets[0][2].state_dict())
    optimizers = [torch.optim.Adam(net.parameters(), 0.01) for net in nets]
    for step in range(10):
        x = normal(8, 32, seed=step)
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            net(x).square().sum().backward()
            if net is nets[1]:
                twin.weight.grad *= mask
            optimizer.step()
    torch.testing.assert_close(layer.to_dense().weight, twin.weight, rtol=1e-3, atol=1e-4)
