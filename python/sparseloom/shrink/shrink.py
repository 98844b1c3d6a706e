"""shrink_ makes a model narrower by what pruning has emptied, in place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from .._arguments import named_arguments
from .._checks import as_optimizers, require_bool, whole
from ..errors import Error
from ..nn.held.as_before import or_as_before
from ..patch.announce import announce
from ..patch.optimizer import apply, forget
from ..patch.sparsify import unwrapped
from ..patch.survey import parameter_count, regex_of, require_patchable
from .attention import attention_of
from .channels import Channels, channels_of
from .config import Stated, pretrained
from .experts import experts_of
from .feed_forward import feed_forward_of
from .packed import dense_for
from .result import Shrunk, Width
from .role import Role

_OP = "shrink_"


@named_arguments
def shrink_(
    model: nn.Module,
    names: str = ".*",
    *,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    experts: bool = False,
    code: bool = False,
    multiple_of: int = 8,
) -> Shrunk:
    """Takes out what pruning has emptied, so that the model is narrower and computes the same but for
    rounding, in evaluation.

    Parts are found by the names and classes of transformers (BERT and its kind, GPT-2, Llama, Qwen2 and
    Qwen3, ViT, mixtures of experts), of timm's ViT, torchvision's ResNet and torch's encoder layers; nothing
    is traced. In dense layers what counts are zeros; block-sparse, CSR and COO layers stay so, and lose whole
    blocks. What goes:

    - a unit of a feed-forward part whose row of the first layer or column of the second is zero. Where its
      bias and activation leave a constant, that moves into the bias behind; without one the unit stays;
    - an attention head whose values or columns of the output are zero; KV heads with all of their queries,
      and of the KV heads that stay as many queries each as the one that needs most;
    - a channel between convolutions, with its place in the batch norm, unless its constant meets padded
      zeros.

    A config of transformers has one width for all layers: each then keeps as many as the layer that needs
    most. ``save_pretrained`` writes an ordinary checkpoint of the narrower config, which transformers alone
    reads.

    Args:
        names: a regex that is matched whole with the names of the modules that hold the layers, as the
            result's table lists them.
        optimizer: one or several that hold the model's parameters: they get the new ones with their state.
        experts: also lets experts go whose weights are zero. That is no rounding: a router sends tokens to
            the next expert instead of an empty one, which is what a mask on the router would do.
        code: also lets heads go where the config cannot say so (BERT, GPT-2, and Llama unless their number
            divides hidden_size): ``save_pretrained`` then writes narrow_heads.py beside the weights, which
            from_pretrained reads with trust_remote_code=True.
        multiple_of: units and channels are kept in multiples of this, for the sake of dense kernels.

    Returns every width with its reason, and prints it as sparsify_ does. Raises Error, with the model
    untouched, for a model without any such part, on the meta device, or under DistributedDataParallel or
    fully_shard.
    """
    model = unwrapped(model)
    require_patchable(_OP, model)
    optimizers = as_optimizers(_OP, optimizer)
    require_bool(_OP, "experts", experts)
    require_bool(_OP, "code", code)
    multiple = whole(_OP, "multiple_of", multiple_of, 1)
    if any(parameter.is_meta for parameter in model.parameters()):
        raise Error(_OP, "weights with values", "a model on the meta device", "load it first")
    regex = regex_of(_OP, names)
    roles = _found(model, regex, experts)
    if not roles:
        remedy = "see shrink_'s docstring for what is known; names are matched whole"
        raise Error(_OP, "a feed-forward part, an attention, a block or experts", "none", remedy)
    for role in roles:
        if not role.reason:
            role.examine(multiple)
        for part in role.parts.values():
            part.forget()
    result = Shrunk()
    stated, after = _agreed(model, roles, code)
    cut = [role for role in roles if after[role] != role.before]
    count_before = parameter_count(model)
    try:
        with or_as_before(model, optimizers):
            parts = [part for role in cut for part in role.parts.values()]
            with dense_for(model, parts, optimizers) as swaps:
                for role in cut:
                    new = role.cut(model, after[role])
                    result.notes += apply(new, optimizers)
                    swaps += new
            for each in stated:
                result.settings |= each.apply()
            result.widths = [width for role in roles for width in _widths(role, after[role])]
            result.parameters = count_before, parameter_count(model)
            if any(each.narrow for each in stated):
                result.notes.append("save_pretrained adds narrow_heads.py: load with trust_remote_code=True")
            announce(result)
    except BaseException:
        forget(model.parameters())
        raise
    return result


def _found(model: nn.Module, regex: re.Pattern[str], drop: bool) -> list[Role]:
    """Returns all roles of a model; those whose names do not match keep all they have."""
    roles: list[Role] = []
    for name, module in model.named_modules():
        found = [feed_forward_of(name, module), attention_of(name, module), experts_of(name, module, drop)]
        roles += [role for role in (*found, *channels_of(name, module)) if role is not None]
    owners = _counted(model)
    uses = Counter((id(part.module), key) for role in roles for key, part in role.parts.items())
    for role in roles:
        for key, part in role.parts.items():
            if uses[id(part.module), key] > 1 and not role.reason:
                role.keep_all(f"{part.name} is shared with another part")
            if owners.get(id(part.module._parameters.get("weight")), 1) > 1 and not role.reason:
                role.keep_all(f"{part.name} is tied to another weight")
        if not regex.fullmatch(role.name):
            role.keep_all("no pattern matches")
    return roles if any(regex.fullmatch(role.name) for role in roles) else []


def _counted(model: nn.Module) -> dict[int, int]:
    """Returns {id of a Parameter: the number of modules that hold it}."""
    counts: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            counts[id(parameter)] = counts.get(id(parameter), 0) + (parameter is not None)
    return counts


def _agreed(
    model: nn.Module, roles: Sequence[Role], code: bool
) -> tuple[list[Stated], dict[Role, tuple[int, ...]]]:
    """Returns the widths of all roles: those with one config have the same."""
    models = pretrained(model)
    outer = {
        name: each
        for name, each in models.items()
        if not any(name.startswith(_dotted(o)) and o != name for o in models)
    }
    stated = {name: Stated(name, each, code) for name, each in outer.items()}
    after: dict[Role, tuple[int, ...]] = {}
    groups: dict[tuple[str, int, type, tuple[int, ...]], list[Role]] = {}
    configs: dict[int, Any] = {}
    for role in roles:
        around = [name for name in models if role.name == name or role.name.startswith(_dotted(name))]
        after[role] = role.needed
        if not around:
            continue
        if isinstance(role, Channels):
            role.keep_all("a config cannot say the channels inside a block")
        config = models[max(around, key=len)].config
        configs[id(config)] = config
        groups.setdefault((min(around, key=len), id(config), type(role), role.before), []).append(role)
    for (name, config_id, kind, before), members in groups.items():
        wanted = tuple(max(each) for each in zip(*(role.needed for role in members), strict=True))
        unknown = [r for key, rest in groups.items() if key[:3] == (name, config_id, kind) for r in rest]
        widths, reason = before, next((f"{r.name} stays ({r.reason})" for r in unknown if 0 in r.before), "")
        if reason:
            wanted = before
        for tried in members[0].wider(wanted) if wanted != before else []:
            refused = stated[name].accept(members, tried, configs[config_id])
            if not refused:
                widths = tried
                break
            reason = reason or refused
        for role in members:
            if not role.reason and role.needed != widths:
                role.reason = reason or f"one width for all layers of a {type(configs[config_id]).__name__}"
            after[role] = widths
    return list(stated.values()), after


def _dotted(name: str) -> str:
    return f"{name}." if name else ""


def _widths(role: Role, after: tuple[int, ...]) -> list[Width]:
    rows = zip(role.kinds, role.before, role.needed, after, strict=True)
    return [Width(role.name, *row, role.reason) for row in rows]
