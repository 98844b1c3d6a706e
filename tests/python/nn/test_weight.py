"""``layer.weight`` of a sparse layer: what it answers, which initialisers write ``values``, and that it
refuses arithmetic."""

import copy
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import sparseloom
from sparseloom.nn import (
    BlockSparseConv1x1,
    BlockSparseLinear,
    BlockSparseTransformersConv1D,
    QuantizedBlockSparseLinear,
)
from sparseloom.nn.held.state import require_zero_padding

HINT = (
    r"it stores blocks; call the layer instead of multiplying with its "
    r"weight, read dtype and device of layer\.values, "
    r"copy with layer\.to_dense\(\)\.weight"
)


def ragged(cls=BlockSparseLinear, **options):
    torch.manual_seed(0)
    return cls(700, 500, density=0.3, block=16, **options)


def test_weight_answers_dtype_device_and_shape_without_a_dense_tensor():
    layer = ragged(dtype=torch.bfloat16)
    w = layer.weight
    assert (
        isinstance(w, torch.Tensor)
        and w.dtype == torch.bfloat16
        and w.device == layer.values.device
        and not w.is_meta
    )
    assert (
        w.shape == (500, 700) == w.size() == w.data.shape
        and w.size(1) == 700
        and (w.ndim, w.dim(), len(w)) == (2, 2, 500)
    )
    assert w.numel() == 350_000 and w.element_size() == 2 and w.is_floating_point() and w.requires_grad
    with torch._C.DisableTorchFunctionSubclass():
        assert w.untyped_storage().nbytes() == 2  # one element
    assert BlockSparseLinear(64, 96, density=0.5, device="meta").weight.is_meta
    assert ragged(BlockSparseTransformersConv1D).weight.shape == (700, 500)
    conv = BlockSparseConv1x1(BlockSparseLinear(64, 96, density=0.5), 2, (1, 1))
    assert conv.weight.shape == (96, 64, 1, 1) and conv.bias is conv.linear.bias
    assert QuantizedBlockSparseLinear.from_sparse(ragged()).weight.dtype == torch.int8
    assert "of BlockSparseLinear(in_features=700" in repr(w)


def test_weight_changes_nothing_of_what_a_module_is_made_of():
    layer = ragged()
    names = ["values", "bias", "crow", "col"]
    assert list(layer.state_dict()) == names and [name for name, _ in layer.named_parameters()] == names[:2]
    assert hasattr(layer, "weight") and "weight" not in layer.__dict__
    for made in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(made.values, layer.values) and made.weight.shape == layer.weight.shape
        made.weight.data.zero_()
        assert not made.values.any() and layer.values.any()
    with pytest.raises(AttributeError, match=r"no attribute 'wieght'$"):
        _ = layer.wieght


@pytest.mark.parametrize(
    "use",
    [
        lambda w, x: F.linear(x, w),
        lambda w, x: x @ w.t(),
        lambda w, x: x @ w.T,
        lambda w, x: w * 2,
        lambda w, x: 2 - w,
        lambda w, x: w[0],
        lambda w, x: w == w,
        lambda w, x: w.float(),
        lambda w, x: w.to("cpu"),
        lambda w, x: w.clone(),
        lambda w, x: w.detach().norm(),
        lambda w, x: w.data.abs(),
        lambda w, x: w.grad,
        lambda w, x: torch.cat([x, w]),
        lambda w, x: torch.zeros_like(w),
        lambda w, x: x.add_(w[:3]),
        lambda w, x: w.add_(torch.ones(1)),
        lambda w, x: w.copy_(torch.zeros(500, 700)),
        lambda w, x: torch.zeros(500, 700).copy_(w),
        lambda w, x: setattr(w, "data", torch.zeros(500, 700)),
        lambda w, x: copy.deepcopy(w),
        lambda w, x: w.numpy(),
        lambda w, x: nn.init.orthogonal_(w),
        lambda w, x: nn.init.eye_(w),
    ],
)
def test_arithmetic_with_weight_is_refused_with_the_hint(use):
    layer = ragged()
    before = layer.values.detach().clone()
    with pytest.raises(sparseloom.Error, match=HINT):
        use(layer.weight, torch.randn(3, 700))
    assert torch.equal(layer.values, before)
    with pytest.raises(sparseloom.Error, match=r"call the layer, or read dequantized\(\)"):
        use(QuantizedBlockSparseLinear.from_sparse(layer).weight, torch.randn(3, 700))


INITIALISERS = {
    "normal_": lambda w: nn.init.normal_(w, mean=1.0, std=0.5),
    "uniform_": lambda w: nn.init.uniform_(w, -2.0, 3.0),
    "trunc_normal_": lambda w: nn.init.trunc_normal_(w, std=0.02, a=-0.03, b=0.03),
    "zeros_": nn.init.zeros_,
    "ones_": nn.init.ones_,
    "constant_": lambda w: nn.init.constant_(w, 0.25),
    "xavier_uniform_": nn.init.xavier_uniform_,
    "xavier_normal_": nn.init.xavier_normal_,
    "kaiming_uniform_": lambda w: nn.init.kaiming_uniform_(w, a=math.sqrt(5)),
    "kaiming_normal_": lambda w: nn.init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"),
    "data.normal_": lambda w: w.data.normal_(mean=0.0, std=0.02),
    "data.uniform_": lambda w: w.data.uniform_(-0.5, 0.5),
    "data.zero_": lambda w: w.data.zero_(),
    "data.fill_": lambda w: w.data.fill_(1.5),
    "mul_": lambda w: nn.init.normal_(w).mul_(0.5),
}


@pytest.mark.parametrize("name", INITIALISERS)
def test_initialisers_act_on_values_as_on_a_dense_weight(name):
    """Same mean, spread and range as the dense layer's own elements; padding of ragged edges stays zero."""
    layer, dense = ragged(), nn.Linear(700, 500)
    INITIALISERS[name](layer.weight)
    with torch.no_grad():
        INITIALISERS[name](dense.weight)
    require_zero_padding("test", layer.values, layer.pattern)
    mask = layer.pattern.mask.repeat_interleave(16, 0).repeat_interleave(16, 1)[:500, :700]
    stored, theirs = layer.to_dense().weight.detach()[mask], dense.weight.detach()
    assert (
        abs(stored.mean() - theirs.mean()) <= 0.02 * theirs.std()
        and abs(stored.std() - theirs.std()) <= 0.02 * theirs.std()
    )
    assert stored.min() >= theirs.min() - theirs.std() and stored.max() <= theirs.max() + theirs.std()
    assert layer.values.requires_grad and layer.values.is_leaf


@pytest.mark.parametrize("name", INITIALISERS)
def test_initialisers_leave_values_that_transformers_has_loaded(name):
    layer = ragged()
    layer.values._is_hf_initialized = True
    before, version = layer.values.detach().clone(), layer.values._version
    INITIALISERS[name](layer.weight)
    assert (
        layer.weight._is_hf_initialized
        and torch.equal(layer.values, before)
        and layer.values._version == version
    )


def test_initialisers_draw_from_the_given_generator():
    layer = ragged()
    drawn = []
    for _ in range(2):
        nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(3))
        drawn.append(layer.values.detach().clone())
    assert torch.equal(*drawn) and drawn[0].std() > 0.5


def test_requires_grad_and_marks_of_weight_are_those_of_values():
    layer = ragged()
    layer.weight.requires_grad = False
    assert not layer.values.requires_grad and not layer.weight.requires_grad
    layer.weight.requires_grad_()
    assert layer.values.requires_grad
    layer.weight.mark = "embedding"
    assert layer.values.mark == layer.weight.mark == "embedding" and not hasattr(layer.weight, "other")


def test_a_weight_that_is_assigned_is_refused_and_not_lost():
    """A Parameter put there to tie it with another was registered beside values, and took part in nothing."""
    layer, embedding = BlockSparseLinear(64, 96, density=0.5), nn.Embedding(96, 64)
    for value in (embedding.weight, embedding.weight.detach()):
        with pytest.raises(sparseloom.Error, match="the layer's Parameter is values, got an assignment"):
            layer.weight = value
    assert [name for name, _ in layer.named_parameters()] == ["values", "bias"]


def test_a_compiled_model_that_reads_weight_has_one_graph():
    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.wo = BlockSparseLinear(64, 64, density=0.5, block=16)

        def forward(self, x):
            if isinstance(self.wo.weight, torch.Tensor) and x.dtype != self.wo.weight.dtype:
                x = x.to(self.wo.weight.dtype)
            return self.wo(x) * self.wo.weight.shape[0]

    net, x = Cast(), torch.randn(3, 64, dtype=torch.float64)
    torch.testing.assert_close(torch.compile(net, backend="aot_eager", fullgraph=True)(x), net(x))
    torch._dynamo.reset()


def test_the_old_name_of_the_layer_for_transformers_conv1d_still_loads():
    assert sparseloom.nn.BlockSparseConv1D is BlockSparseTransformersConv1D
    layer = ragged(BlockSparseTransformersConv1D)
    new = pickle.dumps(layer, protocol=0)  # names stand without their lengths there
    old = new.replace(b"BlockSparseTransformersConv1D", b"BlockSparseConv1D")
    made = pickle.loads(old)
    assert (
        old != new and type(made) is BlockSparseTransformersConv1D and torch.equal(made.values, layer.values)
    )


#: The arguments of in-place methods that take more than none.
_NUMBERS = {
    **dict.fromkeys(["clamp_", "clip_", "uniform_"], (-0.01, 0.01)),
    **dict.fromkeys(["normal_", "cauchy_", "log_normal_"], (0.5, 0.1)),
    **dict.fromkeys(["exponential_", "geometric_", "bernoulli_"], (0.5,)),
}


def in_place_names():
    told = {name for name in dir(torch.Tensor) if name.endswith("_") and not name.startswith("_")}
    return sorted(told - {"requires_grad_", "detach_", "share_memory_", "set_"})


@pytest.mark.parametrize("name", in_place_names())
def test_every_in_place_name_writes_each_stored_element_or_is_refused(name):
    """mul_ changed values while abs_ was refused. One rule: what acts on each element by itself, with
    numbers, acts on the stored ones; all else raises and changes nothing."""
    layer = ragged()
    before, dense = layer.values.detach().clone(), layer.to_dense().weight.detach()
    for arguments in (_NUMBERS.get(name, ()), (2,), (dense,), (0, 1)):
        try:
            getattr(torch.zeros(3, 3), name)(*arguments)
        except (TypeError, RuntimeError, IndexError):
            continue
        torch.manual_seed(1)
        if any(isinstance(each, torch.Tensor) for each in arguments):
            with pytest.raises(sparseloom.Error, match="to be asked for"), torch.no_grad():
                getattr(layer.weight, name)(*arguments)
            break
        try:
            with torch.no_grad():
                getattr(layer.weight, name)(*arguments)
        except sparseloom.Error:
            assert torch.equal(layer.values, before)
            break
        torch.manual_seed(1)
        want = layer.sparse_weights()["values"].packed(
            layer.sparse_weights()["values"].unpacked(getattr(before.clone(), name)(*arguments))
        )
        assert torch.equal(layer.values.nan_to_num(7), want.nan_to_num(7))
        require_zero_padding("test", layer.values, layer.pattern)
        break


@pytest.mark.parametrize(
    "make",
    [
        ragged,
        lambda: sparseloom.nn.BlockSparseConv2d(16, 24, 3, density=0.5, block=8),
        lambda: sparseloom.nn.Semi24Linear(64, 64),
        lambda: sparseloom.nn.SparseLinear(40, 36, layout="csr", density=0.3),
        lambda: BlockSparseConv1x1(ragged(), 2, (1, 1)),
    ],
)
def test_requires_grad_of_the_stand_in_is_that_of_the_values(make):
    layer = make()
    values = dict(layer.named_parameters(remove_duplicate=True))
    values = next(each for name, each in values.items() if name.endswith("values"))
    for wanted in (False, True, False):
        layer.weight.requires_grad = wanted
        assert values.requires_grad == layer.weight.requires_grad == wanted
        layer.weight.requires_grad_(not wanted)
        assert values.requires_grad == layer.weight.requires_grad == (not wanted)
        layer.weight.data.requires_grad_(wanted)
        assert values.requires_grad == wanted
