"""Models whose layers read the same x, and their twins that multiply apart."""

import copy

import torch
import torch.nn.functional as F
from tiny_models import made
from torch import nn

from sparseloom import BlockSparse, sparsify_
from sparseloom.nn.held.siblings import siblings_in

ALL = {".*": BlockSparse(8, 0.5)}
Q_K_V = ["key", "query", "value"]


class Attention(nn.Module):
    def __init__(self, features=32, bias=True):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(features, features, bias=bias) for _ in range(3))
        self.out = nn.Linear(features, features)

    def heads(self, y):
        return y.view(*y.shape[:-1], 4, -1).transpose(-3, -2)

    def forward(self, x):
        q, k, v = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(-3, -2).flatten(-2))


def tokens(features=32):
    return torch.randn(16, 12, features, generator=torch.Generator().manual_seed(1))


def merged(make=Attention, patterns=ALL, **options):
    torch.manual_seed(0)
    model = make()
    sparsify_(model, patterns, **options)
    return model


def apart(model):
    """A copy whose layers multiply each by itself."""
    twin = copy.deepcopy(model)
    for group in siblings_in(twin):
        group.dissolve()
    assert not siblings_in(twin)
    return twin


def bert():
    return made("BertModel", "bert", num_hidden_layers=2).eval()


def llama():
    return made("LlamaModel", "llama", num_hidden_layers=1, num_key_value_heads=2).eval()


def words():
    return torch.randint(1, 50, (16, 12), generator=torch.Generator().manual_seed(2))
