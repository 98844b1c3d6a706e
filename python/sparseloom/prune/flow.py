"""The flow of prune_: block after block, observe, prune, and run on with what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Error
from ..patch.choose import Match
from ..patch.forms import Site
from ..pattern import Pattern
from ..recover.fingerprint import digest
from ..recover.padding import Paddings
from . import solve
from .calibration import Data, Stream
from .chains import Chain, chains_of, parts_of
from .checkpoint import Checkpoint
from .methods import Method, Solver, pruned
from .modes import autocasting, uncompiled
from .reconstruct import reconstruct_
from .residence import Residence
from .result import Layer, Plan
from .statistics import Observer, Statistics, matrix_of
from .targets import Pending, observed

_OP = "prune_"
Budget = Callable[[Mapping[str, Statistics]], Mapping[str, float]] | Mapping[str, float]


@dataclass
class Flow:
    """One run over the chosen weights of a model, which is in evaluation and without gradients."""

    model: nn.Module
    choices: Sequence[Match[Pending]]
    method: Method
    data: Data | None
    residence: Residence
    reconstruct: int = 0
    checkpoint: Checkpoint | None = None
    budget: Budget | None = None
    told: Callable[[int, int, str], None] = lambda done, total, name: None
    layers: list[Layer] = field(default_factory=list)
    chosen: dict[str, Pattern | Tensor] = field(default_factory=dict)
    without_bias: int = 0  # layers whose means nothing can restore

    def __post_init__(self) -> None:
        self._targets = {id(choice.site): choice.rule.target for choice in self.choices}
        self._sites = [choice.site for choice in self.choices if observed(choice.site)]
        self._densities: dict[str, float] = {}
        self._chains: list[Chain] = []

    def plan(self) -> Plan:
        """Runs the model on one batch to find its chains. Returns the work and the memory."""
        if self.data is not None:
            batch = self.data.batches[0]
            with self.residence.running(parts_of(self.model, self._sites)):
                data = self.data
                self._chains = chains_of(
                    self.model, self._sites, lambda: data.run(self.model, self.residence.there(batch))
                )
        inside = {id(site) for chain in self._chains for sites in chain.sites for site in sites}
        self._outside = [site for site in self._sites if id(site) not in inside]
        return self._planned()

    def _planned(self) -> Plan:
        blocks = [block for chain in self._chains for block in chain.blocks]
        in_blocks = {id(p): _bytes(p) for block in blocks for p in block.parameters()}
        rest = sum(_bytes(p) for p in self.model.parameters() if id(p) not in in_blocks)
        largest = max((sum(_bytes(p) for p in block.parameters()) for block in blocks), default=0)
        sums = max(
            (_sum_bytes(sites, self.method) for chain in self._chains for sites in chain.sites), default=0
        )
        sums = max(sums, _sum_bytes(self._outside, self.method))
        work = max((_work_bytes(site, self.method) for site in self._sites), default=0)
        copies = sum(_bytes(site.parameter) for site in self._sites)
        hidden = max((chain.hidden_bytes for chain in self._chains), default=0)
        batches = 0 if self.data is None else len(self.data.batches)
        name = self.method.name if isinstance(self.method.name, str) else type(self.method.name).__name__
        name += f" and {self.method.quantize}" if self.method.quantize else ""
        return Plan(
            name,
            len(self.choices),
            len(blocks),
            len(self._outside),
            batches,
            str(self.residence.device or next(self.model.parameters()).device),
            largest + rest + sums + work,
            copies + hidden * batches * (2 + (self.reconstruct > 0)),
        )

    def run(self) -> None:
        """Prunes all weights in place."""
        if isinstance(self.budget, Mapping):
            self._densities = self._checked(self.budget)
        elif self.budget is not None:
            self._densities = self._checked(self.budget(self._observed()))
        if self.checkpoint is not None:
            self.checkpoint.also(self._densities)
        if self.data is None:
            for done, site in enumerate(self._sites, 1):
                self._prune([site], [Statistics(matrix_of(site))])
                self.told(done, len(self._sites), site.name)
            return
        stage, total = 0, sum(len(chain.blocks) for chain in self._chains) + bool(self._outside)
        for chain in self._chains:
            stream = self._captured(chain)
            for at, sites in enumerate(chain.sites):
                with self.residence.of(chain.blocks[at].modules()):
                    if sites:
                        self._stage(stage, sites, stream, chain, at)
                    if at + 1 < len(chain.blocks):
                        stream.hidden = stream.run(at, keep=True)
                stage += 1
                self.told(stage, total, chain.names[at])
        if self._outside:
            self._stage(stage, self._outside)
            self.told(total, total, "outside of blocks")

    def _captured(self, chain: Chain) -> Stream:
        assert self.data is not None
        stream = Stream(chain, self.residence)
        others = [block for other in self._chains if other is not chain for block in other.blocks]
        stream.capture(self.model, self.data, others)
        return stream

    def _stage(
        self, stage: int, sites: Sequence[Site], stream: Stream | None = None, chain: Chain | None = None,
        at: int = 0,
    ) -> None:  # fmt: skip
        """Prunes the weights of one block, or those outside of blocks, unless the checkpoint has them."""
        weights = digest(site.value for site in sites) if self.checkpoint is not None else ""
        if self.checkpoint is not None:
            stored = self.checkpoint.load(stage, [site.value for site in sites])
            if stored is not None:
                self._restore(sites, *stored)
                return
        observer, outputs = Observer(sites, self.method.needs_hessian), list[Tensor]()
        if stream is not None:
            with observer.watching():
                outputs = stream.run(at, observer, keep=self.reconstruct > 0)
        else:
            self._run_whole(observer)
        statistics = [self._known(observer, site) for site in sites]
        del observer
        first = len(self.layers)
        masks = self._prune(sites, statistics)
        if self.reconstruct and stream is not None and chain is not None:
            reconstruct_(chain.blocks[at], sites, masks, stream, at, outputs, self.reconstruct)
        if self.checkpoint is not None:
            tensors = {f"{site.name}.values": site.value for site in sites}
            tensors |= {f"{site.name}.mask": mask for site, mask in zip(sites, masks, strict=True)}
            if self.method.compensate_bias:
                tensors |= {f"{site.name}.bias": site.bias for site in sites if site.bias is not None}
            facts = {"layers": [asdict(layer) for layer in self.layers[first:]]}
            self.checkpoint.save(stage, weights, tensors, facts)

    def _known(self, observer: Observer, site: Site) -> Statistics:
        known = observer.statistics(site)
        if known.tokens < (least := self.method.least_tokens(known.weight.shape[1])):
            got = f"{known.tokens} for {site.name}"
            remedy = "pass more or longer samples"
            raise Error(_OP, f"at least {least} tokens that reach each layer", got, remedy)
        return known

    def _run_whole(self, observer: Observer) -> None:
        assert self.data is not None
        blocks = [block for chain in self._chains for block in chain.blocks]
        paddings = Paddings(self.model)
        with self.residence.running(blocks or parts_of(self.model, self._sites)), observer.watching():
            for batch in self.data.batches:
                padding = paddings.of(batch)
                observer.next_batch(padding)
                with paddings.following(padding):
                    self.data.run(self.model, self.residence.there(batch))

    def _prune(self, sites: Sequence[Site], statistics: Sequence[Statistics]) -> list[Tensor]:
        masks, solver = [], Solver(self.method)
        for site, known in zip(sites, statistics, strict=True):
            with self.residence.of(site.module.modules()):  # outside of blocks it is not there yet
                known.weight = matrix_of(site)
                masks.append(self._prune_one(site, known, solver))
        return masks

    def _prune_one(self, site: Site, known: Statistics, solver: Solver) -> Tensor:
        target = self._targets[id(site)]
        density = self._densities.get(site.name, target.density)
        outcome = pruned(self.method, site, target, known, density, solver)
        error = solve.relative_error(known.weight, outcome.values, known.hessian)
        magnitudes = known.weight.abs()
        whole = float(magnitudes.sum(dtype=torch.float64))
        part = float((magnitudes * outcome.mask).sum(dtype=torch.float64))
        share = float(outcome.mask.count_nonzero()) / max(1, outcome.mask.numel())
        kept = part / whole if whole else 1.0
        self.layers.append(Layer(site.name, share, known.tokens, kept, error, outcome.swaps))
        self._keep(site, outcome.mask, outcome.chosen)
        if self.method.compensate_bias:
            self._compensate(site, known, outcome.values)
        site.value.copy_(outcome.values.reshape(site.value.shape))
        torch.clear_autocast_cache()  # it may hold the weight as it was
        return outcome.mask

    def _compensate(self, site: Site, known: Statistics, values: Tensor) -> None:
        """Gives the bias what is lost of the outputs' means."""
        bias = site.bias
        if bias is None or known.means is None:
            self.without_bias += 1
            return
        lost = (known.weight.double() - values.double()) @ known.means.double()
        bias.copy_(bias.double() + lost)

    def _keep(self, site: Site, mask: Tensor, chosen: Pattern | Tensor | None = None) -> None:
        """Remembers what the recipe of the exchange has to be told."""
        target = self._targets[id(site)]
        if target.kind == "blocks":
            if chosen is None:
                chosen = target.pattern_of(mask.unflatten(1, (site.shape[1], -1)).any(2))
            self.chosen[site.name] = chosen
        elif target.needs_mask:
            self.chosen[site.name] = mask if self.residence.device is None else mask.cpu()

    def _restore(self, sites: Sequence[Site], tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        for site in sites:
            site.value.copy_(tensors[f"{site.name}.values"])
            self._keep(site, tensors[f"{site.name}.mask"])
            if self.method.compensate_bias and (bias := site.bias) is not None:
                bias.copy_(tensors[f"{site.name}.bias"])
        self.layers += [Layer(**layer) for layer in facts["layers"]]

    def _observed(self) -> dict[str, Statistics]:
        """Runs the dense model. Returns what enters the layers that have a density."""
        known: dict[str, Statistics] = {}
        for chain in self._chains:
            stream = self._captured(chain)
            for at, sites in enumerate(chain.sites):
                observer = Observer(sites, False)
                with self.residence.of(chain.blocks[at].modules()), observer.watching():
                    stream.hidden = stream.run(at, observer, keep=True)
                known |= {site.name: self._at_home(observer.statistics(site), site) for site in sites}
        if self._outside:
            observer = Observer(self._outside, False)
            self._run_whole(observer)
            known |= {site.name: self._at_home(observer.statistics(site), site) for site in self._outside}
        takes = self._with_density()
        return {name: each for name, each in known.items() if name in takes}

    def _with_density(self) -> set[str]:
        targets = [(site.name, self._targets[id(site)]) for site in self._sites]
        return {name for name, target in targets if target.kind != "n:m" and target.fixed is None}

    def _checked(self, densities: Mapping[str, float]) -> dict[str, float]:
        takes = self._with_density()
        for name, density in densities.items():
            if name not in takes or not 0 <= float(density) <= 1:
                got = f"{density!r} for {name}"
                remedy = f"layers with a density are {', '.join(sorted(takes)[:5]) or 'none'}"
                raise Error(_OP, "budgets in [0, 1] for pruned layers", got, remedy)
        return {name: float(density) for name, density in densities.items()}

    def _at_home(self, known: Statistics, site: Site) -> Statistics:
        squares = known.squares
        return Statistics(matrix_of(site), known.tokens, None if squares is None else squares.cpu())


@contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """Runs the body with the model in evaluation, without gradients, autocast, compiled code and the caches
    of decoders, and without torch's fused encoder layers, which call no module inside."""
    training = [(module, module.training) for module in model.modules()]
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    caching = [c for c in configs.values() if getattr(c, "use_cache", False) is True]
    fast = torch.backends.mha.get_fastpath_enabled()
    matmul = torch.backends.cuda.matmul
    precision = matmul.fp32_precision
    try:
        model.eval()
        for config in caching:
            config.use_cache = False
        torch.backends.mha.set_fastpath_enabled(False)
        matmul.fp32_precision = "ieee"  # TF32's ten bits make Hessians indefinite
        with torch.no_grad(), autocasting(None), uncompiled():
            yield
    finally:
        matmul.fp32_precision = precision
        torch.backends.mha.set_fastpath_enabled(fast)
        for config in caching:
            config.use_cache = True
        for module, was in training:
            module.training = was


def _bytes(parameter: Tensor) -> int:
    return parameter.numel() * parameter.element_size()


def _sum_bytes(sites: Sequence[Site], method: Method) -> int:
    return sum(4 * matrix_of(site).shape[1] ** 2 for site in sites) if method.needs_hessian else 0


def _work_bytes(site: Site, method: Method) -> int:
    rows, cols = matrix_of(site).shape
    return 16 * rows * cols + (32 * cols * cols if method.needs_hessian else 0)


def recipes(flow: Flow, choices: Sequence[Match[Pending]]) -> dict[str, Any]:
    """Returns {name of a layer: the recipe that stores what was kept} for sparsify_'s exchange."""
    made = {}
    for choice in choices:
        site, target = choice.site, choice.rule.target
        chosen = flow.chosen.get(site.name)
        if isinstance(chosen, Tensor):
            chosen = chosen.to(site.parameter.device).reshape(site.value.shape)
        made[site.name] = target.recipe_with(chosen) if observed(site) else target.untouched()
    return made
