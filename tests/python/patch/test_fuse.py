"""sparsify_ fuses the activation behind a layer: where it does, where it does not and says why, and what
becomes of it in all that is done with a model afterwards."""

import copy
import io
import pickle

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from tiny_models import made, tokens
from torch import nn
from torch.nn.utils import parametrize

import sparseloom
from sparseloom import BlockSparse, InLayout, Semi24, densify_, pack_, quantize_, sparsify_
from sparseloom.nn import BlockSparseLinear
from sparseloom.nn.held.fused import Fused, fused_in, names_of_fused
from sparseloom.patch.activations import activation_of
from sparseloom.sparsify import methods

HALF = BlockSparse(8, 0.5)
ALL = {".*": HALF}


def seeded(make):
    torch.manual_seed(0)
    return make().eval()


def rows(*shape):
    return torch.randn(shape or (6, 32), generator=torch.Generator().manual_seed(1))


class Mlp(nn.Module):
    """An MLP as most libraries have one; ``act`` is what lies in between."""

    def __init__(self, act=None):
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(32, 48), nn.GELU() if act is None else act, nn.Linear(48, 32)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(32, 48), nn.Linear(32, 48), nn.Linear(48, 32)
        self.act = nn.SiLU()

    def forward(self, x, scale: float | None = None, residual=False):
        y = self.down(self.act(self.gate(x)) * self.up(x))
        y = y if scale is None else y * scale
        return y + x if residual else y


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.Tanh()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Branches(Mlp):
    """What the numbers and keywords decide here lies beside the activation."""

    def forward(self, x, *rest, **options):
        if x.dtype == torch.float64:
            x = x.float()
        assert x.shape[-1] == 32
        return self.fc2(self.act(self.fc1(x)))


class SquaredReLU(nn.Module):
    def forward(self, x):
        return F.relu(x) ** 2


def sequential(act, *more):
    return nn.Sequential(nn.Linear(32, 48), act, *more, nn.Linear(48, 32))


def conv_block():
    return nn.Sequential(
        torchvision.ops.Conv2dNormActivation(8, 16, 3, norm_layer=None, inplace=True),
        torchvision.ops.Conv2dNormActivation(16, 16, 1, norm_layer=None, activation_layer=nn.SiLU),
    )


def timm_vit():
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 32, "depth": 1, "num_heads": 2, "num_classes": 10}
    return timm.models.vision_transformer.VisionTransformer(**sizes)


def images(*shape):
    return rows(*(shape or (2, 8, 8, 8)))


def pixels():
    return rows(2, 3, 16, 16)


#: name: (model, which layers, their recipe, input, {layer: activation})
FUSED = {
    "relu": (lambda: sequential(nn.ReLU()), ".*", HALF, rows, {"0": "relu"}),
    "relu in place": (lambda: sequential(nn.ReLU(inplace=True)), ".*", HALF, rows, {"0": "relu"}),
    "gelu, dropout behind": (
        lambda: sequential(nn.GELU(), nn.Dropout(0.5)), ".*", HALF, rows, {"0": "gelu"},
    ),
    "gelu tanh, 2:4": (
        lambda: sequential(nn.GELU("tanh")), ".*", Semi24("magnitude"), rows, {"0": "gelu_tanh"},
    ),
    "silu, csr": (lambda: sequential(nn.SiLU()), ".*", InLayout("csr", density=0.3), rows, {"0": "silu"}),
    "coo": (lambda: sequential(nn.ReLU()), ".*", InLayout("coo", density=0.3), rows, {"0": "relu"}),
    "nmg": (lambda: sequential(nn.ReLU()), ".*", InLayout("nmg", n=2, m=4, g=4), rows, {"0": "relu"}),
    "of another package": (lambda: sequential(SquaredReLU()), ".*", HALF, rows, {"0": "relu2"}),
    "nested": (
        lambda: nn.Sequential(sequential(nn.ReLU()), nn.GELU()), ".*", HALF, rows, {"0.0": "relu"},
    ),
    "list": (Listed, ".*", HALF, rows, {"layers.0": "relu"}),
    "mlp": (Mlp, ".*", HALF, rows, {"fc1": "gelu"}),
    "gate": (Gate, ".*", HALF, rows, {"gate": "silu"}),
    "branches": (Branches, ".*", HALF, rows, {"fc1": "gelu"}),
    "conv": (conv_block, ".*", HALF, images, {"0.0": "relu", "1.0": "silu"}),
    "conv transposed": (
        lambda: nn.Sequential(nn.ConvTranspose2d(8, 16, 3), nn.ReLU()), ".*", HALF, images, {"0": "relu"},
    ),
    "bert": (
        lambda: made("BertModel", "bert", num_hidden_layers=1), ".*dense", HALF, tokens,
        {"encoder.layer.0.intermediate.dense": "gelu"},
    ),
    "llama": (
        lambda: made("LlamaModel", "llama", num_hidden_layers=1), ".*proj", HALF, tokens,
        {"layers.0.mlp.gate_proj": "silu"},
    ),
    "gpt2": (
        lambda: made("GPT2Model", "gpt2", n_layer=1), ".*mlp.*", HALF, tokens, {"h.0.mlp.c_fc": "gelu_tanh"},
    ),
    "t5": (
        lambda: made("T5EncoderModel", "t5", num_layers=1), ".*", HALF, tokens,
        {"encoder.block.0.layer.1.DenseReluDense.wi": "relu"},
    ),
    "timm vit": (timm_vit, ".*blocks.*", HALF, pixels, {"blocks.0.mlp.fc1": "gelu"}),
}  # fmt: skip


def tensor_of(y):
    return y if isinstance(y, torch.Tensor) else y[0]


def results(model, x):
    """The output and all gradients."""
    model.zero_grad()
    y = tensor_of(model(x))
    (y.float() * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {"": y.detach()} | {name: grad.clone() for name, grad in found.items()}


def twins(name, dtype=torch.float32):
    make, regex, recipe, inputs, expected = FUSED[name]
    fused = seeded(make).to(dtype)
    plain = copy.deepcopy(fused)
    result = sparsify_(fused, {regex: recipe})
    sparsify_(plain, {regex: recipe}, fuse=False)
    x = inputs()
    return fused, plain, result, x.to(dtype) if x.is_floating_point() else x, expected


@pytest.mark.parametrize("name", FUSED)
def test_fused_equals_unfused(name):
    fused, plain, result, x, expected = twins(name)
    assert {c.names[0]: c.activation for c in result.changed if c.activation} == expected
    assert names_of_fused(fused) == sorted(expected) and not fused_in(plain)
    assert all(f"{activation} fused" in str(result) for activation in expected.values())
    assert list(fused.state_dict()) == list(plain.state_dict())
    names = [[n for n, _ in m.named_modules(remove_duplicate=False)] for m in (fused, plain)]
    assert names[0] == names[1]
    want = results(plain, x)
    for key, got in results(fused, x).items():
        # an epilogue's erf and exp differ from torch's by a few roundings of fp32, 2^-24, through the layers
        torch.testing.assert_close(got, want[key], rtol=1e-4, atol=2**-18 * float(want[key].abs().max() + 1))


@pytest.mark.parametrize("name", ["relu", "mlp", "gate", "bert", "timm vit"])
def test_fused_equals_unfused_in_bfloat16(name):
    """Unfused rounds once more in between: by half an ulp, 2^-9, and the same again at each of the few
    layers behind."""
    fused, plain, _, x, _ = twins(name, torch.bfloat16)
    want, got = results(plain, x), results(fused, x)
    for key, each in got.items():
        scale = float(want[key].float().norm()) + 1e-6
        assert float((each.float() - want[key].float()).norm()) <= 8 * 2**-9 * scale, key


class TwoUsers(Mlp):
    def forward(self, x):
        h = self.fc1(x)
        return self.fc2(self.act(h) + h)


class Remembers(Mlp):
    def forward(self, x):
        self.seen = self.fc1(x)
        return self.fc2(self.act(self.seen))


class Functional(Mlp):
    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class CalledTwice(Mlp):
    def forward(self, x):
        return self.act(self.fc2(self.act(self.fc1(x))))


class LayerTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.act = nn.Linear(32, 32), nn.ReLU()

    def forward(self, x):
        return self.act(self.fc(self.fc(x)))


class InTraining(Mlp):
    def forward(self, x):
        h = self.fc1(x)
        return self.fc2(h if self.training else self.act(h))


class WithFlag(Mlp):
    def forward(self, x, hidden=False):
        h = self.fc1(x)
        y = self.fc2(self.act(h))
        return (y, h) if hidden else y


class WithMask(Mlp):
    def forward(self, x, mask=None):
        h = self.fc1(x)
        return self.fc2(self.act(h if mask is None else h * mask))


class ByNumbers(Mlp):
    def forward(self, x):
        h = self.fc1(x)
        if h.sum() > 0:
            h = h * 2
        return self.fc2(self.act(h))


class Untraceable(Mlp):
    def forward(self, x):
        for _ in range(int(x.abs().max())):
            x = x / 2
        return self.fc2(self.act(self.fc1(x)))


class AnotherMethod(Mlp):
    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))

    def features(self, x):
        return self.fc1(x)


class Reaches(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = Mlp()

    def forward(self, x):
        return self.mlp(x)

    def features(self, x):
        return self.mlp.fc1(x)


class TakesApart(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = sequential(nn.ReLU())

    def forward(self, x):
        found = []
        for layer in self.body:
            x = layer(x)
            found.append(x)
        return sum(each.sum() for each in found)


class Draws(Mlp):
    def forward(self, x):
        y = self.fc1(x) if torch.rand(()) < 2 else x
        return self.fc2(self.act(y))


class DropoutBetween(Mlp):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.0)

    def forward(self, x):
        return self.fc2(self.act(self.drop(self.fc1(x))))


class Remembering(nn.Module):
    """A ReLU to look at."""

    def forward(self, x):
        self.seen = x
        return F.relu(x)


class Clipped(nn.Module):
    def forward(self, x):
        return F.relu(x).clamp(max=1000)


def with_hook(model, name):
    model.get_submodule(name).register_forward_hook(lambda *_: None)
    return model


def shared_activation():
    act = nn.ReLU()
    return nn.Sequential(nn.Linear(32, 32), act, nn.Linear(32, 32), act)


def shared_layer():
    layer = nn.Linear(32, 32)
    return nn.Sequential(layer, nn.ReLU(), layer)


def replaced_forward():
    model = Mlp()
    model.forward = lambda x: model.fc2(model.fc1(x))
    return model


class Bent(nn.Module):
    def forward(self, weight):
        return weight


def parametrized_activation():
    act = nn.GELU()
    act.scale = nn.Parameter(torch.ones(2))
    parametrize.register_parametrization(act, "scale", Bent())
    return Mlp(act)


#: name: (model, words of the reason)
ODD = {
    "two users": (TwoUsers, "something else takes its result"),
    "kept on the module": (Remembers, "changes its state"),
    "shared activation": (shared_activation, "its activation is used in 2 places"),
    "shared layer": (shared_layer, "it is used in 2 places"),
    "layer twice": (LayerTwice, "something else|it is called 2 times|fc in 2 places"),
    "hook on the activation": (lambda: with_hook(Mlp(), "act"), "its activation has hooks"),
    "function": (Functional, "F.gelu is a function, not a module"),
    "leaky": (lambda: Mlp(nn.LeakyReLU()), "LeakyReLU is none of relu, gelu, gelu_tanh, silu, relu2"),
    "leaky not at all": (lambda: Mlp(nn.Hardswish()), "Hardswish is none of"),
    "parameter": (lambda: Mlp(nn.PReLU()), "PReLU has parameters"),
    "parametrized": (parametrized_activation, "ParametrizedGELU has parameters"),
    "untraceable": (Untraceable, "the forward of Untraceable cannot be traced"),
    "by numbers": (ByNumbers, "something else|does not follow in every mode"),
    "activation twice": (CalledTwice, "its activation is called 2 times"),
    "not in training": (InTraining, "does not follow in every mode|something else"),
    "flag": (WithFlag, "something else takes its result"),
    "mask": (WithMask, "does not follow in every mode"),
    "another method": (AnotherMethod, "AnotherMethod uses fc1 in 2 places"),
    "from outside": (Reaches, "Reaches calls fc1 of another module"),
    "taken apart": (TakesApart, "TakesApart takes body apart"),
    "random": (Draws, "draws random numbers"),
    "forward of an object": (replaced_forward, "the forward of Mlp was replaced"),
    "own activation": (
        lambda: Mlp(type("Odd", (nn.GELU,), {"forward": lambda self, x: F.gelu(x) + 1})()), "Odd is none of",
    ),
    "dropout of 0 between": (DropoutBetween, None),
    "looks like one": (lambda: Mlp(Remembering()), None),
    "clipped": (lambda: Mlp(Clipped()), None),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_odd_ones_stay(name):
    make, reason = ODD[name]
    model = seeded(make)
    plain = copy.deepcopy(model)
    state = torch.get_rng_state()
    result = sparsify_(model, ALL)
    assert torch.equal(state, torch.get_rng_state())
    assert not fused_in(model)
    found = [change.unfused for change in result.changed if change.unfused]
    if reason is None:
        assert not found
        return
    assert any(part in each for each in found for part in reason.split("|")), found
    assert f"activation not fused, {found[0]}:" in str(result)
    assert [type(m) for m in model.modules() if isinstance(m, (nn.ReLU, nn.GELU))] == [
        type(m) for m in plain.modules() if isinstance(m, (nn.ReLU, nn.GELU))
    ]
    assert vars(model).keys() == vars(plain).keys()


def test_hooked_and_tied_layers_stay_dense():
    model = with_hook(Mlp(), "fc1")
    assert "hooks" in sparsify_(model, ALL).skipped[0].reason and isinstance(model.act, nn.GELU)
    tied = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    tied[2].weight = tied[0].weight
    sparsify_(tied, ALL)
    assert isinstance(tied[1], nn.ReLU) and isinstance(tied[3], nn.ReLU)


@pytest.mark.parametrize("activation", ["relu", "gelu", nn.GELU()])
def test_torchs_encoder_layer_stays_as_it_is(activation):
    layer = nn.TransformerEncoderLayer(32, 2, 64, 0.0, activation, batch_first=True).eval()
    before, x = layer.activation, rows(2, 5, 32)
    sparsify_(layer, {"linear.": HALF})
    assert layer.activation is before and layer.activation_relu_or_gelu == 0
    twin = copy.deepcopy(layer)
    densify_(twin)
    torch.testing.assert_close(layer(x), twin(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (nn.ReLU6(), ""), (nn.CELU(), ""), (nn.Mish(), ""), (nn.Threshold(0, 0), ""), (nn.Identity(), ""),
        (nn.Dropout(0.0), ""), (nn.RReLU(), ""), (SquaredReLU(), "relu2"), (Clipped(), ""),
        (timm.layers.activations.GELUTanh(), "gelu_tanh"), (timm.layers.activations.Swish(), "silu"),
    ],
)  # fmt: skip
def test_activations_are_known_by_their_values(module, name):
    assert activation_of(module) == name


def test_activations_of_transformers():
    from transformers.activations import ACT2FN

    known = {"relu", "gelu", "gelu_new", "gelu_fast", "gelu_python", "gelu_pytorch_tanh", "silu", "swish"}
    known |= {"relu2", "gelu_accurate", "gelu_python_tanh"}
    found = {name: activation_of(ACT2FN[name]) for name in ACT2FN if name != "xielu"}
    assert {name for name in found if found[name]} == known & found.keys()


def test_fuse_false_leaves_the_model_alone():
    model = Mlp()
    act = model.act
    result = sparsify_(model, ALL, fuse=False)
    assert model.act is act and not any(c.activation or c.unfused for c in result.changed)
    with pytest.raises(sparseloom.Error, match="fuse"):
        sparsify_(Mlp(), ALL, fuse=1)
    patcher = sparseloom.BlockSparseModelPatcher()
    patcher.add_pattern("fc1", {"block": 8, "density": 0.5})
    other = Mlp()
    patcher.patch_model(other, fuse=False)
    assert isinstance(other.act, nn.GELU)


def test_what_stands_there_tells_of_it():
    model = Mlp()
    sparsify_(model, ALL)
    assert "Fused(GELU fused into fc1)" in str(model)
    want, x = model(rows()), rows()
    model.fc1.activation = None  # a user's own decision: the model applies it again
    assert "GELU no longer fused into fc1" in str(model)
    torch.testing.assert_close(model(x), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["relu", "mlp", "gate", "list", "conv", "gpt2", "coo"])
def test_densify_gives_it_back(name):
    make, regex, recipe, inputs, expected = FUSED[name]
    model = seeded(make)
    classes = [type(module) for module in model.modules()]
    acts = {id(m) for m in model.modules() if isinstance(m, (nn.ReLU, nn.GELU, nn.SiLU))}
    sparsify_(model, {regex: recipe})
    want = tensor_of(model(inputs()))
    twin = sparseloom.report.whole.dense_twin(model) if hasattr(sparseloom.report, "whole") else None
    densify_(model)
    assert [type(module) for module in model.modules()] == classes
    assert acts <= {id(module) for module in model.modules()}
    torch.testing.assert_close(tensor_of(model(inputs())), want, rtol=1e-4, atol=1e-4)
    if twin is not None:
        torch.testing.assert_close(tensor_of(twin(inputs())), want, rtol=1e-4, atol=1e-4)
    again = sparsify_(model, {regex: recipe})
    assert {c.names[0]: c.activation for c in again.changed if c.activation} == expected


def test_densify_of_some_and_of_own_activations():
    model = nn.Sequential(sequential(nn.ReLU()), sequential(nn.ReLU()), BlockSparseLinear(
        32, 32, density=0.5, block=8, activation="relu"
    ))  # fmt: skip
    sparsify_(model, {r".*\.0": HALF})
    densify_(model, r"0\.0|2")
    assert isinstance(model[0][1], nn.ReLU) and isinstance(model[1][1], Fused)
    assert isinstance(model[2], nn.Sequential)  # the user's own stays with the layer


def test_report_has_a_dense_twin_with_the_activation():
    from sparseloom.report.whole import dense_twin

    model = seeded(Mlp)
    sparsify_(model, ALL)
    twin = dense_twin(model)
    assert isinstance(twin.act, nn.GELU) and isinstance(model.act, Fused)
    torch.testing.assert_close(twin(rows()), model(rows()), rtol=1e-4, atol=1e-5)
    sparseloom.report(model, rows())


def by_reference(model):
    """int8 has no fast kernel on CPUs without AVX-512, and the slow one is taken by name alone."""
    for module in model.modules():
        if hasattr(module, "w_scale"):
            module.kernel = "reference"


def saved(model, path, fresh, **how):
    sparseloom.save(model, path)
    sparseloom.load(path, fresh, **how)
    return fresh


@pytest.mark.parametrize("name", ["relu", "mlp", "gate", "conv", "gelu tanh, 2:4", "coo", "bert"])
def test_round_trip_by_file(name, tmp_path):
    make, regex, recipe, inputs, expected = FUSED[name]
    model = seeded(make)
    sparsify_(model, {regex: recipe})
    want = tensor_of(model(inputs()))
    again = saved(model, tmp_path / "a", make().eval(), sparsify=True)
    assert names_of_fused(again) == sorted(expected)
    assert torch.equal(tensor_of(again(inputs())), want)
    patched = make().eval()
    sparsify_(patched, {regex: recipe})
    assert torch.equal(tensor_of(saved(model, tmp_path / "b", patched)(inputs())), want)
    unfused = make().eval()
    sparsify_(unfused, {regex: recipe}, fuse=False)
    other = tensor_of(saved(model, tmp_path / "c", unfused)(inputs()))
    torch.testing.assert_close(other, want, rtol=1e-4, atol=1e-4)
    plain = saved(unfused, tmp_path / "d", make().eval(), sparsify=True)
    assert not fused_in(plain)  # as it was saved


@pytest.mark.parametrize("eight_bit", [False, True])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_round_trip_by_transformers(name, eight_bit, tmp_path):
    make, regex, recipe, inputs, expected = FUSED[name]
    model = make()
    sparsify_(model, {regex: recipe})
    if eight_bit and name != "gpt2":
        quantize_(model)
    told = model.config.quantization_config.to_dict()
    assert told["fused"] == sorted(expected)
    assert not any("activation" in entry for entry in told["layers"].values())
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert names_of_fused(again) == sorted(expected)
    if eight_bit:
        by_reference(again)
        by_reference(model)
    with torch.no_grad():
        assert torch.equal(tensor_of(again(inputs())), tensor_of(model(inputs())))
    if not eight_bit:
        densify_(again)
        assert "quantization_config" not in again.config.to_dict()
        torch.testing.assert_close(
            tensor_of(again(inputs())), tensor_of(model(inputs())), rtol=1e-4, atol=1e-4
        )


def test_copies_and_pickles_have_their_own():
    model = seeded(Mlp)
    sparsify_(model, ALL)
    x = rows()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for twin in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(buffer, weights_only=False),
    ):
        assert twin.act.layer is twin.fc1 and twin.act.layer is not model.fc1
        assert torch.equal(twin(x), model(x))
        densify_(twin)
        assert isinstance(twin.act, nn.GELU) and isinstance(model.act, Fused)


def test_quantize_takes_it_along():
    model = seeded(lambda: nn.Sequential(sequential(nn.GELU()), conv_1x1_last()))
    sparsify_(model, {r"0\..*|1\.1": BlockSparse(16, 0.5)})
    want = model(rows(4, 32))
    quantize_(model)
    by_reference(model)
    assert model[0][1].layer is model[0][0] and model[0][0].activation == "gelu"
    assert model[1][2].layer is model[1][1].linear and model[1][1].linear.activation == "relu"
    with torch.no_grad():
        assert float((model(rows(4, 32)) - want).norm() / want.norm()) < 0.1


def conv_1x1_last():
    return nn.Sequential(nn.Unflatten(1, (16, 2)), nn.Conv1d(16, 16, 1), nn.ReLU())


def test_layers_that_methods_train_keep_theirs():
    for method, words in (
        (methods.set_(every=1), "a method moves its blocks"),
        (methods.gradual(0, 1, 1), "it trains under a mask"),
    ):
        model = Mlp()
        result = sparsify_(model, {"fc1": BlockSparse(8, 0.5, method=method)})
        assert isinstance(model.act, nn.GELU) and result.changed[0].unfused == words
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(rows()).sum().backward()
        optimizer.step()
        result.method.optimizers = [optimizer]
        result.method.step()
        pack_(model)
        assert isinstance(model.act, nn.GELU) and model.fc1.activation is None


def test_drive_gives_it_back():
    from sparseloom.patch import drive

    model = seeded(Mlp)
    sparsify_(model, {"fc1": HALF})
    want = model(rows())
    drive(model, methods.set_(every=1))
    assert model.fc1.activation is None and not names_of_fused(model)
    torch.testing.assert_close(model(rows()), want, rtol=1e-4, atol=1e-5)


def test_lora_comes_before_it():
    peft = pytest.importorskip("peft")
    from sparseloom.lora import register_

    model = seeded(lambda: nn.ModuleDict({"mlp": Mlp()}))
    sparsify_(model, {"mlp.fc1": HALF})
    want = model["mlp"](rows())
    config = register_(peft.LoraConfig(target_modules=["fc1"], init_lora_weights=False))
    peft.inject_adapter_in_model(config, model)
    mlp = model["mlp"]
    base = copy.deepcopy(mlp.fc1)
    torch.testing.assert_close(mlp(rows()), mlp.fc2(F.gelu(base(rows()))), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(mlp(rows()), want)


def test_patched_twice_and_compiled():
    model = seeded(lambda: nn.Sequential(sequential(nn.ReLU()), sequential(nn.GELU())))
    want = sparsify_(model, {r"0\.0": HALF})
    assert [c.activation for c in want.changed] == ["relu"]
    act = model[0][1]
    sparsify_(model, {r"1\.0": HALF})
    assert model[0][1] is act and names_of_fused(model) == ["0.0", "1.0"]
    x = rows()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), model(x))


def test_fold_batchnorm_behind_a_fused_activation():
    model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.BatchNorm2d(16)).eval()
    sparsify_(model, {"0": HALF})
    folded = sparseloom.patch.fold_batchnorm_(model)
    assert not folded.pairs and "applies relu before it" in folded.skipped[0].reason


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["settle", "put", "trace"])
def test_failure_in_the_middle(where, error, monkeypatch):
    from sparseloom.patch import exchange, traced

    model = seeded(lambda: nn.Sequential(sequential(nn.ReLU()), Mlp()))
    sparsify_(model, {r"0\.0": HALF})
    fc1, act, fused = model[1].fc1, model[1].act, model[0][1]

    def fail(*_, **__):
        raise error

    target = {
        "settle": (exchange.Exchange, "settle"),
        "put": (exchange, "update_fast_paths"),
        "trace": (traced._Tracer, "trace"),
    }[where]
    with monkeypatch.context() as patch:
        patch.setattr(*target, fail)
        with pytest.raises(error):
            sparsify_(model, {r"1\.fc1": HALF})
        assert model[1].fc1 is fc1 and model[1].act is act
        if where != "trace":
            with pytest.raises(error):
                densify_(model)
            with pytest.raises(error):
                quantize_(model)
    assert model[0][1] is fused and fused.layer is model[0][0] and fused.active
    sparsify_(model, {r"1\.fc1": HALF})
    assert names_of_fused(model) == ["0.0", "1.fc1"]
