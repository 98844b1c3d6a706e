"""permute_channels_: finds the order of channels with which 2:4 or block pruning keeps most, for each chain,
and reorders the layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .. import pattern as patterns
from .._arguments import named_arguments
from .._checks import share, whole
from .._progress import Bar
from ..errors import Error
from ..nn.arguments import require_module
from ..ops import semi24
from ..patch.announce import announce
from ..patch.forms import Site
from ..patch.result import Skip
from ..patch.survey import owners_of, regex_of, survey, tied_to
from ..pattern import Block, block_shape
from ..report.inputs import as_arguments, evaluated, run, running, tensors_in
from . import blocks
from .chains import NORMS, Chain, chains_of
from .result import Permuted, Reordered
from .search import channel_order

#: The sides (out features, in features) of the blocks that are to be pruned, and the share that stays.
Target = tuple[tuple[int, int], float]

_OP = "permute_channels_"
#: How far outputs may move, by dtype, relative to their largest magnitude: the same products are summed in
#: another order.
_ROUNDING = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@named_arguments
def permute_channels_(
    model: nn.Module,
    example_input: Any,
    names: str | re.Pattern[str] = ".*",
    *,
    chains: Sequence[Chain] | None = None,
    rounds: int = 0,
    block: Block | None = None,
    density: float | None = None,
) -> Permuted:
    """Reorders the inputs of linear layers, and the outputs of the layers before them in the same way, so
    that 2:4 pruning by magnitude keeps more, or block pruning where ``block`` is given. The model computes
    what it did, but for rounding.

    Call it before ``sparsify_(model, {...: Semi24("magnitude")})``, and before an optimizer is made. It finds
    feed-forward layers, gated ones, and an attention's values with its output projection by their usual
    names, and linear layers in an nn.Sequential with norms and activations in between. The model runs on
    ``example_input`` (a tensor, a tuple of arguments, or a mapping of keywords) in evaluation, before and
    after: a chain that changes its outputs is put back.

    Args:
        names: a regex that is matched whole with the names of the layers whose inputs may move.
        chains: the chains of this model, instead of those that are found.
        rounds: of swaps in each search; 0 searches until no swap of two channels gains anything, which takes
            minutes for layers of many thousand inputs. A terminal shows how far it is; Ctrl-C ends it.
        block, density: of ``sparsify_(model, {...: BlockSparse(block, density)})`` afterwards, for the layers
            of the chains, producers too: the order is that with which all of these keep most together.

    Returns what changed, with the kept magnitude before and after, and prints it as sparsify_ does. Raises
    Error, with the model untouched, for chains that do not fit the model, where none is found, and for NaN or
    Inf in a weight or in the outputs. Whatever else is raised, the model is as before, too.
    """
    require_module(_OP, model)
    regex = regex_of(_OP, names)
    rounds = whole(_OP, "rounds", rounds)
    target = _target(block, density)
    example_input = as_arguments(_OP, example_input)
    sites = {name: site for site in survey(model).sites for name in site.names}
    all_chains = list(chains_of(model) if chains is None else chains)
    matching = [chain for chain in all_chains if regex.fullmatch(chain.consumer)]
    result, steps, used = Permuted(), list[_Step](), set[int]()
    if target is not None:
        (bm, bn), share_left = target
        result.kept = f"{share_left:.3g} of the blocks of {bm} x {bn}"
    for chain in matching:
        step = _Step.of(model, chain, sites, target)
        refusal = step if isinstance(step, str) else step.refusal(model, used)
        if refusal and chains is not None:
            raise Error(_OP, f"a chain to {chain.consumer} that can be reordered", refusal, "leave it out")
        if isinstance(step, str) or refusal:
            result.skipped.append(Skip(chain.consumer, "chain", refusal))
        else:
            steps.append(step)
    if not steps:
        got = "; ".join(f"{skip.name}: {skip.reason}" for skip in result.skipped) or "none"
        raise Error(_OP, f"a chain of layers that ends in {names!r}", got, "pass chains=[Chain(...)]")
    with torch.no_grad(), evaluated(model):
        wanted_outputs = _outputs(model, example_input)
        _require_comparable(wanted_outputs, _outputs(model, example_input))
        with Bar(_OP, len(steps)) as bar:
            for done, step in enumerate(steps):
                bar.at(done, step.chain.consumer)
                step.search(rounds, bar.tell)
        _apply(model, example_input, wanted_outputs, steps, result)
    return result


def _apply(
    model: nn.Module, example_input: Any, expected: list[Tensor], steps: list[_Step], result: Permuted
) -> None:
    """Reorders all chains, and announces the result. If that changes the outputs, it reorders one chain after
    the other instead, and leaves out those that change them."""
    moves = _Moves()
    try:
        for step in steps:
            step.move(moves)
        if not _same(_outputs(model, example_input), expected):
            for step in reversed(steps):
                step.undo(moves)
            for step in steps:
                step.move(moves)
                if not _same(_outputs(model, example_input), expected):
                    step.undo(moves)
                    reason = "the model's outputs depend on the order: something else reads these channels"
                    result.skipped.append(Skip(step.chain.consumer, "chain", reason))
        result.changed = [step.reordered for step in steps if step.moved]
        announce(result)
    except BaseException:
        moves.take_back()
        raise


class _Moves:
    """The changes so far, in order, so that they can be undone from the last to the first."""

    def __init__(self) -> None:
        self._done: list[tuple[Tensor, int, Tensor, int | None]] = []

    def reorder(self, tensor: Tensor, dim: int, order: Tensor) -> None:
        """Puts a tensor's entries along ``dim`` into an order, in place."""
        reordered = tensor.index_select(dim, order)
        # recorded before the write: torch's version counter then says whether the write happened
        self._done.append((tensor, dim, order, None if tensor.is_inference() else tensor._version))
        tensor.copy_(reordered)

    def take_back(self) -> None:
        """Undoes all changes; every bit is as before."""
        for tensor, dim, order, version in reversed(self._done):
            if version is None or tensor._version != version:
                tensor.copy_(tensor.index_select(dim, order.argsort()))
        self._done.clear()


class _Step:
    """One chain of a model: the search for its order, and the moves of its layers."""

    reordered: Reordered

    def __init__(
        self, chain: Chain, consumer: Site, producers: list[Site], norms: list[Any], target: Target | None
    ) -> None:
        self.chain, self.consumer, self.producers, self.norms = chain, consumer, producers, norms
        self.target = target
        self.moved = False
        self._order = torch.empty(0, dtype=torch.long)

    @classmethod
    def of(cls, model: nn.Module, chain: Chain, sites: dict[str, Site], target: Target | None) -> _Step | str:
        """Returns the step, or a text that says what the model lacks for it."""
        missing = [name for name in (chain.consumer, *chain.producers) if name not in sites]
        if missing or not chain.producers:
            return f"{', '.join(missing) or 'a producer'} is no dense linear layer"
        norms: list[Any] = [dict(model.named_modules()).get(name) for name in chain.through]
        if any(not isinstance(norm, NORMS) for norm in norms):
            return f"{', '.join(chain.through)} have to be norms over the channels"
        step = cls(chain, sites[chain.consumer], [sites[name] for name in chain.producers], norms, target)
        widths = {step._width(site) for site in step.producers}
        width, inputs = next(iter(widths)), step.consumer.shape[1]
        fits = len(widths) == 1 and width and chain.heads > 0 and not width % chain.heads
        if not fits or inputs % width:
            return f"{inputs} inputs do not consist of {sorted(widths)} outputs in {chain.heads} heads"
        if target is not None and (inputs != width or chain.heads > 1):
            if any(width // chain.heads % side for side in target[0]):
                return f"a block would reach over heads of {width // chain.heads} channels"
        elif chain.heads > 1 and width // chain.heads % 4:
            return f"a group of four would reach over heads of {width // chain.heads} channels"
        if any(norm.weight is not None and norm.weight.shape != (inputs,) for norm in norms):
            return f"its norms do not span the {inputs} inputs"
        return step

    def refusal(self, model: nn.Module, used: set[int]) -> str:
        """Returns why the layers must not be changed, or "" after it has claimed them for this chain."""
        owners = owners_of(model)
        for site in (self.consumer, *self.producers):
            if reason := site.refusal():
                return f"{site.name}: {reason}"
            if tied_name := tied_to(site, owners):
                return f"{site.name} is tied to {tied_name}"
            if parametrize.is_parametrized(site.module):
                return f"{site.name} is masked by a parametrization: make that permanent first"
            if len(site.names) > 1 or site.parameter.is_meta or not site.parameter.is_floating_point():
                return f"{site.name} is shared, on meta or not floating-point"
        ids = {id(site.parameter) for site in self.producers}
        if len(ids) < len(self.producers) or ids & used:
            return "its producers have another consumer"
        used |= ids
        return ""

    def search(self, rounds: int, tell: Callable[[str], None]) -> None:
        """Finds the order of channels, separately for each head, and tells how far it is."""
        if self.target is not None:
            self._search_blocks(self.target, rounds, tell)
            return
        weight = self.consumer.matrix(self.consumer.parameter.detach())
        rows, inputs = weight.shape
        heads = self.chain.heads
        size = self._width(self.producers[0]) // heads
        # for each head of the producers: all rows of all the consumer's heads that read it
        parts = weight.unflatten(1, (heads, -1, size)).permute(1, 2, 0, 3).flatten(1, 2).float().cpu()
        orders = []
        for i, part in enumerate(parts):
            head = f"head {i + 1} of {heads}, " if heads > 1 else ""
            orders.append(channel_order(part.contiguous(), rounds, partial(_tell, tell, head)))
        self._order = torch.stack(orders)  # [heads, size]
        total = float(weight.abs().sum(dtype=torch.float64)) or 1.0
        half = weight.abs().sort(dim=1, descending=True).values[:, : -(-inputs // 2)]
        shares = _kept(weight), _kept(weight[:, self._inputs(weight.device)]), half.sum(dtype=torch.float64)
        before, after, most = (float(number) / total for number in shares)
        identity = self.chain.consumer, self.chain.producers, (rows, inputs), heads
        self.reordered = Reordered(*identity, before, after, most)

    def _search_blocks(self, target: Target, rounds: int, tell: Callable[[str], None]) -> None:
        (bm, bn), density = target
        heads, size = self.chain.heads, self._width(self.producers[0]) // self.chain.heads
        weights = [self.consumer.matrix(self.consumer.parameter.detach())]
        # [copies of a channel, outputs, channels]
        copies = weights[0].unflatten(1, (heads, -1, size)).permute(2, 0, 1, 3).flatten(2)
        parts = [blocks.Part.of(copies, (bm, bn), density)]
        for site in self.producers:
            matrix = site.matrix(site.parameter.detach())
            weights.append(matrix[-heads * size :] if self.chain.last_third else matrix)
            parts.append(blocks.Part.of(weights[-1].t()[None], (bn, bm), density))
        self._order = blocks.block_order(parts, heads, rounds, tell)
        total = sum(float(part.sums.sum(dtype=torch.float64)) for part in parts) or 1.0
        start = torch.arange(heads, device="cpu")[:, None] * size
        orders = torch.arange(heads * size, device="cpu"), (start + self._order).flatten()
        before, after = (sum(part.kept(order) for part in parts) / total for order in orders)
        most = 0.0
        for weight, part in zip(weights, parts, strict=True):
            elements = weight.abs().float().flatten()
            count = min(len(elements), part.keep * bm * bn)
            most += float(elements.topk(count).values.sum(dtype=torch.float64)) / total
        identity = self.chain.consumer, self.chain.producers, self.consumer.shape, heads
        self.reordered = Reordered(*identity, before, after, most)

    def move(self, moves: _Moves) -> None:
        """Reorders the layers, in place."""
        self._put(self._order, moves)
        self.moved = True

    def undo(self, moves: _Moves) -> None:
        """Restores the order that the layers had; every bit is as before."""
        self._put(self._order.argsort(dim=1), moves)
        self.moved = False

    def _put(self, order: Tensor, moves: _Moves) -> None:
        consumer = self.consumer.matrix(self.consumer.parameter.data)
        moves.reorder(consumer, 1, self._inputs(consumer.device, order))
        heads, size = order.shape
        start = torch.arange(heads)[:, None] * size
        outputs = (start + order).flatten()
        for site in self.producers:
            matrix = site.matrix(site.parameter.data)
            tensors = [matrix] if site.bias is None else [matrix, site.bias.data]
            for tensor in tensors:
                part = tensor[-len(outputs) :] if self.chain.last_third else tensor
                moves.reorder(part, 0, outputs.to(part.device))
        for norm in self.norms:
            names = ("weight", "bias", "running_mean", "running_var")
            for vector in (getattr(norm, name, None) for name in names):
                if isinstance(vector, Tensor):
                    moves.reorder(vector.data, 0, outputs.to(vector.device))

    def _inputs(self, device: torch.device, order: Tensor | None = None) -> Tensor:
        """Returns the order of the consumer's inputs, whose heads may share those of the producers."""
        order = self._order if order is None else order
        heads, size = order.shape
        shared = self.consumer.shape[1] // (heads * size)
        start = torch.arange(heads * shared).view(heads, shared, 1) * size
        return (start + order[:, None, :]).flatten().to(device)

    def _width(self, site: Site) -> int:
        rows = site.shape[0]
        return rows // 3 if self.chain.last_third else rows


def _target(block: Block | None, density: float | None) -> Target | None:
    """Returns (sides, density) of block pruning, None for 2:4."""
    if block is None and density is None:
        return None
    if block is None or density is None:
        got = f"block={block!r} and density={density!r}"
        raise Error(_OP, "block and density together", got, "pass block=64, density=0.1, or neither for 2:4")
    sides = block_shape(_OP, block)
    patterns.full(0, 0, sides)  # C++ checks the sides
    if not 0 <= share(_OP, density) <= 1:
        raise Error(_OP, "density in [0, 1]", repr(density), "pass the share of blocks that stay: 0.1")
    return sides, density


def _kept(weight: Tensor) -> Tensor:
    return weight.abs().mul(semi24.mask(weight.contiguous(), "magnitude")).sum(dtype=torch.float64)


def _outputs(model: nn.Module, example_input: Any) -> list[Tensor]:
    # results that are dataclasses (of transformers) are mappings too
    with running(_OP):
        return [tensor.detach().clone() for tensor in tensors_in(run(model, example_input))]


def _require_comparable(outputs: list[Tensor], again: list[Tensor]) -> None:
    """Raises Error for outputs with which orders cannot be compared."""
    remedy = "fix the model, or pass another example input"
    finite = all(bool(output.isfinite().all()) for output in outputs if output.is_floating_point())
    if not outputs or not finite:
        got = "NaN or Inf among them" if outputs else "none"
        raise Error(_OP, "finite outputs to compare", got, remedy)
    if not _same(again, outputs):
        raise Error(_OP, "the same outputs for the same input", "others in a second call", remedy)


def _same(results: list[Tensor], expected: list[Tensor]) -> bool:
    if len(results) != len(expected):
        return False
    for result, expected_tensor in zip(results, expected, strict=True):
        if result.shape != expected_tensor.shape or not result.is_floating_point():
            if not torch.equal(result, expected_tensor):
                return False
            continue
        allowed = (
            _ROUNDING.get(expected_tensor.dtype, 1e-4) * float(expected_tensor.abs().max())
            if expected_tensor.numel()
            else 0
        )
        if (
            expected_tensor.numel()
            and not float((result.double() - expected_tensor.double()).abs().max()) <= allowed
        ):
            return False
    return True


def _tell(tell: Callable[[str], None], before: str, at: str) -> None:
    tell(before + at)
