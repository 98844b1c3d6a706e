"""What the scripts for several ranks share: a stack of sparse MLPs, its training, and its state in whole."""

import torch
from torch import nn

import sparseloom
from sparseloom import BlockSparse, sparsify_
from sparseloom.nn.held.cut_state import in_order
from sparseloom.nn.held.sharded import is_sharded


class Mlp(nn.Module):
    """A gated MLP."""

    def __init__(self, width, hidden):
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width)

    def forward(self, x):
        """Maps x [..., width] to the same."""
        return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """A gated MLP beside a residual path."""

    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = Mlp(width, hidden)

    def forward(self, x):
        """Maps x [..., width] to the same."""
        return x + self.mlp(self.norm(x))


class Stack(nn.Module):
    """Two blocks."""

    def __init__(self, width=48, hidden=112):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, hidden) for _ in range(2))

    def forward(self, x):
        """Maps x [..., width] to the same."""
        for block in self.blocks:
            x = block(x)
        return x


def sparse_stack(device, seed=0, pattern=0):
    """Returns a Stack whose MLPs are sparse, with as uneven patterns as a random choice gives: float64 on the
    CPU, where sums in another order then differ by nothing that counts."""
    torch.manual_seed(seed)
    model = Stack()
    sparsify_(model, {r".*mlp\..*": BlockSparse(8, 0.4, "random", seed=pattern)})
    return model.to(device, torch.float64 if device == "cpu" else torch.float32)


def data(device, dtype):
    """Returns x and y [samples, tokens, features]."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(2, 8, 12, 48, generator=generator, dtype=torch.float64).to(device, dtype)
    return x, y


def adam(model):
    """Returns an optimizer whose steps do not depend on the rounding of gradients near zero, and which takes
    DTensors beside tensors on a GPU."""
    return torch.optim.AdamW(model.parameters(), 1e-2, eps=1e-3, foreach=False)


def step(model, optimizer, x, y):
    """Takes a step; returns the loss before it. The gradients stay."""
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def whole(tensor):
    """Returns a copy of a tensor or DTensor in whole."""
    return (tensor.full_tensor() if is_sharded(tensor) else tensor).detach().clone()


def state_of(model):
    """Returns the whole model's state dict, on every rank."""
    return {name: whole(entry) for name, entry in model.state_dict().items()}


def gradients(model):
    """Returns the whole model's gradients by name, on every rank."""
    found = {}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            gradient = parameter.grad
            if getattr(module, "_cut", None) is not None:
                gradient = in_order(module, name, gradient)
            found[f"{path}.{name}"] = whole(gradient)
    return found


def close(mine, theirs):
    """Returns whether tensors by name are equal within the rounding of some steps in their dtype."""
    return mine.keys() == theirs.keys() and all(
        torch.allclose(
            mine[name],
            tensor,
            **(
                {"rtol": 1e-9, "atol": 1e-12}
                if tensor.dtype == torch.float64
                else {"rtol": 2e-3, "atol": 1e-4}
            ),
        )
        for name, tensor in theirs.items()
    )


def equal(mine, theirs):
    """Returns whether tensors by name are equal in every bit."""
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in theirs)


def expect(what, held):
    """Prints the name of a check that held."""
    assert held, what
    print(what, flush=True)


def error_of(call):
    """Returns the text of the Error that a call raises, or nothing."""
    try:
        call()
    except sparseloom.Error as error:
        return str(error)
    return ""
