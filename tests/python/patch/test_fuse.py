"""sparsify_ fuses the activation behind a layer: where it does, and where it does not and says why."""

import copy

import pytest
import timm
import torch
import torch.nn.functional as F
from fuse_forms import ALL, FUSED, HALF, Mlp, SquaredReLU, results, rows, seeded, sequential, twins
from torch import nn
from torch.nn.utils import parametrize

from sparseloom import densify_, sparsify_
from sparseloom.nn.held.fused import fused_in, names_of_fused
from sparseloom.patch.activations import activation_of


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


class HeldTwice(Mlp):
    def forward(self, x):
        return self.act(self.fc2(self.act(self.fc1(x))))


class AsksWhichIsHeld(Mlp):
    def forward(self, x):
        h = self.fc1(x)
        return self.fc2(self.act(h) if self.act is F.gelu else h)


class HeldElsewhere(Mlp):
    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))

    def activated(self, x):
        return self.act(x)


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
    "function called twice": (lambda: HeldTwice(F.gelu), "its activation is called 2 times"),
    "function asked for": (lambda: AsksWhichIsHeld(F.gelu), None),
    "function in another method": (lambda: HeldElsewhere(F.gelu), "HeldElsewhere uses act in 2 places"),
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
def test_torchs_encoder_layer_gets_its_activation_back(activation):
    layer = nn.TransformerEncoderLayer(32, 2, 64, 0.0, activation, batch_first=True).eval()
    before, number, x = layer.activation, layer.activation_relu_or_gelu, rows(2, 5, 32)
    sparsify_(layer, {"linear.": HALF})
    assert layer.activation is not before and layer.activation_relu_or_gelu == 0
    twin = copy.deepcopy(layer)
    densify_(layer)
    assert layer.activation is before and layer.activation_relu_or_gelu == number
    assert names_of_fused(twin) == ["linear1"]
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
