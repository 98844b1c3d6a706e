"""Topologies that move for long, by RigL and SET, saved and loaded on the way, beside a masked dense twin
that takes the same steps; both in fp64. Memory has to stay flat. A case is one step."""

from __future__ import annotations

import copy
import logging
import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

import sparseloom
from sparseloom import BlockSparse, sparsify_
from sparseloom.nn import BlockSparseLinear
from sparseloom.sparsify import methods

from .files import entries, same

#: Steps of one seed, steps between two moves of the topology, and between two saved files.
STEPS, EVERY, SAVED = 60, 5, 20
#: Bytes by which the process may grow after its first seeds, in its whole life: plans and what torch does not
#: free of strings (some 3 KB a seed).
GROWTH = 64 << 20
#: Sums of the twin are added in another order.
CLOSE = 1e-9
_resident: list[int] = []


def _network() -> nn.Module:
    layers = nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, 40), nn.Tanh(), nn.Linear(40, 8)
    return nn.Sequential(*layers).double()


def _masks(model: nn.Module) -> dict[str, Tensor]:
    found = {}
    for name, layer in model.named_modules():
        if isinstance(layer, BlockSparseLinear):
            (bm, bn), mask = layer.block, layer.pattern.mask
            spread = mask.repeat_interleave(bm, 0).repeat_interleave(bn, 1)
            found[name] = spread[: layer.out_features, : layer.in_features]
    return found


def _follow(model: nn.Module, twin: nn.Module) -> int:
    """Masks the twin as the model is masked now. Returns how many elements came."""
    came = 0
    for name, mask in _masks(model).items():
        layer = twin.get_submodule(name)
        came += int((mask & ~layer.mask).sum())
        layer.mask = mask
        layer.weight.data *= mask
    return came


def _require_same(seed: int, step: int, model: nn.Module, twin: nn.Module) -> None:
    for name, layer in model.named_modules():
        if isinstance(layer, BlockSparseLinear):
            dense = layer.to_dense().weight.detach()
            error = float((dense - twin.get_submodule(name).weight).abs().max())
            assert error < CLOSE, f"step {step}: layer {name} is off its twin by {error:.3g}"


def case(seed: int) -> dict[str, int]:
    """Trains a small model for STEPS steps."""
    warnings.simplefilter("ignore")
    logging.getLogger("sparseloom").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = _network()
    kind = ("rigl", "set_")[seed % 2]
    made = getattr(methods, kind)(end_step=STEPS, every=EVERY)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    recipe = BlockSparse((8, 16)[seed // 2 % 2], 0.4, select="random", seed=seed, method=made)
    done = sparsify_(model, {"[02]": recipe}, optimizer=optimizer, fuse=False)
    assert done.method is not None
    twin = _network()
    for name in ("0", "2", "4"):
        ours = model.get_submodule(name)
        weight = ours.to_dense() if isinstance(ours, BlockSparseLinear) else ours
        twin.get_submodule(name).load_state_dict(weight.state_dict())
    for name, mask in _masks(model).items():
        twin.get_submodule(name).mask = mask
    follower = torch.optim.SGD(twin.parameters(), lr=0.05)
    moved = 0
    with tempfile.TemporaryDirectory() as folder:
        for step in range(STEPS):
            x, target = torch.randn(16, 48).double(), torch.randn(16, 8).double()
            losses = []
            for net, steps in ((model, optimizer), (twin, follower)):
                steps.zero_grad()
                loss = nn.functional.mse_loss(net(x), target)
                loss.backward()
                losses.append(float(loss))
            for name in _masks(model):
                layer = twin.get_submodule(name)
                layer.weight.grad *= layer.mask
            optimizer.step()
            follower.step()
            done.method.step()
            moved += _follow(model, twin)
            assert abs(losses[0] - losses[1]) < CLOSE, f"step {step}: losses {losses}"
            _require_same(seed, step, model, twin)
            if step % SAVED == SAVED - 1:
                path = Path(folder) / "model.safetensors"
                sparseloom.save(model, path)
                again = copy.deepcopy(model)
                for parameter in again.parameters():
                    parameter.data.zero_()
                sparseloom.load(path, again)
                changed = same(entries(model), again)
                assert not changed, f"step {step}: {changed} is not what was saved"
    assert moved > 0 or kind == "rigl", "no block moved"  # RigL may grow again what it dropped
    _resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
    grown = _resident[-1] - _resident[min(9, len(_resident) - 1)]
    assert grown < GROWTH, f"the process grew by {grown >> 20} MiB in {len(_resident)} seeds"
    return {kind: STEPS}
