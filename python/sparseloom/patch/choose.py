"""Determines which layers of a model the patterns choose, and why others stay dense. Everything is checked
before anything changes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from torch import nn
from torch.nn.parameter import is_lazy

from .. import ops
from .._progress import Bar
from ..errors import Error
from ..nn.held.sparse_weight import is_sparse
from .forms import Site
from .keys import Key, keys_of, with_keys
from .recipe import Chosen, Recipe, Rule
from .result import Skip
from .survey import Owner, Survey, owners_of, survey, tied_to

_OP = "sparsify_"
_NO_MATCH = "no pattern matches"


AnyRule = TypeVar("AnyRule", bound=Rule)


@dataclass
class Match(Generic[AnyRule]):
    """One layer that can change, and the key and rule that ask for it."""

    site: Site
    key: Any  # a name, a regex, a class, or EVERY
    rule: AnyRule


@dataclass
class Choice:
    """One layer that becomes sparse, and the part of its weight that is stored."""

    site: Site
    chosen: Chosen
    recipe: Recipe


def choose(
    model: nn.Module, patterns: Mapping[Any, Recipe] | Recipe, strict: bool
) -> tuple[list[Choice], list[Skip]]:
    """Returns the layers to change with the part of each weight that is stored, and what ``match`` leaves
    out."""
    recipes: Mapping[Any, Recipe] = with_keys(patterns, Recipe)
    _require_recipes(recipes)
    matches, skipped = match(model, recipes, strict)
    generators = {key: recipe.generator() for key, recipe in recipes.items()}
    choices = []
    with Bar(_OP) as bar:
        for each in bar.over(matches, lambda each: each.site.name):
            choices.append(Choice(each.site, each.rule.chosen(each.site, generators[each.key]), each.rule))
    return choices, skipped


def match(
    model: nn.Module, patterns: Mapping[Any, AnyRule], strict: bool
) -> tuple[list[Match[AnyRule]], list[Skip]]:
    """Returns the layers that can change, and those that stay dense with their reasons. Raises Error if a
    pattern would change nothing."""
    surveyed = survey(model)
    names = {name for site in surveyed.sites for name in site.names + site.groups}
    names |= {*surveyed.others, *surveyed.bare, *surveyed.containers}
    keys = _keys(patterns, names)
    key_of_site = _matches(surveyed, keys)
    owners = owners_of(model)
    reasons = {
        id(site): _reason(site, patterns[key_of_site[id(site)]], owners)
        for site in surveyed.sites
        if id(site) in key_of_site
    }
    for given in patterns:
        matched = [site for site in surveyed.sites if key_of_site.get(id(site)) == given]
        refused = [
            f"{site.name or 'the model'}: {reasons[id(site)]}" for site in matched if reasons[id(site)]
        ]
        if matched and len(refused) == len(matched):
            _raise_for_nothing(given, refused)
        if strict and refused:
            raise Error(
                _OP,
                "every matched layer to become sparse (strict=True)",
                "; ".join(refused),
                "match fewer layers",
            )
    matches, skipped = [], []
    for site in surveyed.sites:
        asking = key_of_site.get(id(site))
        if asking is None or reasons[id(site)]:
            skipped += [
                Skip(name, site.kind, _NO_MATCH if asking is None else reasons[id(site)])
                for name in site.names
            ]
            continue
        matches.append(Match(site, asking, patterns[asking]))
    for name, module in surveyed.others.items():
        if any(key.takes_module(name, module) for key in keys.values()):
            already = is_sparse(module)
            skipped.append(
                Skip(name, type(module).__name__, "it is sparse already" if already else "not a linear")
            )
    return matches, skipped


def _keys(patterns: Mapping[Any, Rule], names: Collection[str]) -> dict[Any, Key]:
    if not isinstance(patterns, Mapping) or not patterns:
        remedy = 'pass {r".*mlp.*": BlockSparse(density=0.25)}, or a recipe alone for all linear layers'
        raise Error(_OP, "{name or regex: BlockSparse(...) or Semi24(...)}", _told(patterns), remedy)
    return keys_of(_OP, patterns, names)


def _told(given: object) -> str:
    """Returns what was passed; a class or another module's object by its kind."""
    return f"a {type(given).__name__}" if isinstance(given, nn.Module) else repr(given)


def _require_recipes(patterns: Mapping[Any, Recipe]) -> None:
    for given, recipe in patterns.items() if isinstance(patterns, Mapping) else ():
        if not isinstance(recipe, Recipe):
            remedy = "pass BlockSparse(block=32, density=0.25), Semi24(), or Csr(density=0.1)"
            raise Error(_OP, f"a BlockSparse or Semi24 for {given!r}", _told(recipe), remedy)


def _matches(surveyed: Survey, keys: Mapping[Any, Key]) -> dict[int, Any]:
    """Returns id(site) -> the first key that takes it. Raises Error when a key gets no site."""
    key_of_site: dict[int, Any] = {}
    for given, key in keys.items():
        matched, earlier = False, set()
        for site in surveyed.sites:
            if key.takes(site):
                if id(site) in key_of_site:
                    earlier.add(key_of_site[id(site)])
                else:
                    key_of_site[id(site)], matched = given, True
        if matched:
            continue
        names = [name for site in surveyed.sites for name in site.names]
        if earlier:
            listed = ", ".join(repr(other) for other in sorted(earlier, key=repr))
            remedy = "the first pattern that matches counts: put this one before"
            raise Error(_OP, f"layers for {given!r}", f"only layers that {listed} has taken", remedy)
        if not_linear := [
            f"{name} ({type(m).__name__}{', sparse already' if is_sparse(m) else ''})"
            for name, m in (surveyed.others | surveyed.bare).items()
            if name and key.takes_module(name, m)
        ]:
            raise Error(
                _OP,
                f"linear layers for {given!r}",
                _few(not_linear),
                f"linear layers are {_few(names) or 'none'}",
            )
        if inside := [name for name in surveyed.containers if name and key.takes_name(name)]:
            text = given.pattern if isinstance(given, re.Pattern) else given
            remedy = f"match the layers inside: {text + '[.].*'!r}"
            raise Error(
                _OP, f"linear layers for {given!r}", f"modules that hold others: {_few(inside)}", remedy
            )
        if not names:
            remedy = "sparsify_ takes nn.Linear, convolutions, nn.MultiheadAttention, nn.LSTM and nn.GRU"
            raise Error(_OP, f"linear layers for {given!r}", "a model without dense ones", remedy)
        if not isinstance(given, (str, re.Pattern)):
            raise Error(_OP, f"layers for {given!r}", "none", f"dense layers are {_few(names)}")
        text = given if isinstance(given, str) else given.pattern
        similar = difflib.get_close_matches(text.replace("\\", ""), names, 3, 0.5) or names
        remedy = f"names are matched whole; linear layers are {_few(similar) or 'none'}"
        raise Error(_OP, f"a module name for {text!r}", "none", remedy)
    return key_of_site


def _raise_for_nothing(given: object, refused: list[str]) -> None:
    raise Error(
        _OP,
        f"a layer for {given!r} that can become sparse",
        _few(refused),
        "match other layers, or change these first",
    )


def _reason(site: Site, rule: Rule, owners: list[Owner]) -> str:
    """Returns why a matched layer stays dense; "" when it becomes sparse. Raises Error where leaving it dense
    would hide a mistake."""
    if site.name == "":
        return f"it is the model itself: use {rule.layer}.from_dense"
    if any(is_lazy(parameter) for parameter in site.module.parameters()):
        return "it is lazy: run the model once first"
    if reason := site.refusal(rule.in_place):
        return reason
    weight = site.parameter
    if tied_name := tied_to(site, owners):
        return f"tied to {tied_name}: both would have to change"
    if weight.dtype not in ops.DTYPES:
        return f"its dtype {weight.dtype} has no kernels"
    if reason := rule.refusal(site):
        return reason
    if not ops.has_kernels_for(weight.device):
        raise Error(
            _OP,
            f"{site.name} on a device with kernels in this build",
            str(weight.device),
            "call .to('cpu') first",
        )
    return ""


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
