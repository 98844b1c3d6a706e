"""Models whose activations sparsify_ fuses, and what the tests of that compare."""

import copy

import timm
import torch
import torch.nn.functional as F
import torchvision
from tiny_models import made, tokens
from torch import nn

from sparseloom import BlockSparse, InLayout, Semi24, sparsify_

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


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(32, 2, 48, 0.0, F.gelu, batch_first=True)

    def forward(self, x):
        return self.layer(x, x.flip(0))


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


def sentences():
    return rows(2, 5, 32)


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
    "function held": (lambda: Mlp(F.silu), ".*", HALF, rows, {"fc1": "silu"}),
    "encoder layer": (
        lambda: nn.TransformerEncoderLayer(32, 2, 48, 0.0, batch_first=True), "linear.", HALF, sentences,
        {"linear1": "relu"},
    ),
    "decoder layer": (Decoder, ".*linear.", HALF, sentences, {"layer.linear1": "gelu"}),
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
