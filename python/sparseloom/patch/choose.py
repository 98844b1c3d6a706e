"""Determines which layers of a model the patterns choose, and why others stay dense. Everything is checked
before anything changes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import nn
from torch.nn.parameter import is_lazy

from .. import ops
from ..errors import Error
from ..nn.held.sparse_weight import is_sparse
from .forms import Site
from .recipe import Chosen, Recipe, Rule
from .result import Skip
from .survey import Owner, Survey, owners_of, survey, tied_to

_OP = "sparsify_"
_NO_MATCH = "no pattern matches"


AnyRule = TypeVar("AnyRule", bound=Rule)


@dataclass
class Match(Generic[AnyRule]):
    """One layer that can change, and the regex and rule that ask for it."""

    site: Site
    regex: str
    rule: AnyRule


@dataclass
class Choice:
    """One layer that becomes sparse, and the part of its weight that is stored."""

    site: Site
    chosen: Chosen
    recipe: Recipe


def choose(model: nn.Module, patterns: Mapping[str, Recipe], strict: bool) -> tuple[list[Choice], list[Skip]]:
    """Returns the layers to change with the part of each weight that is stored, and what ``match`` leaves
    out."""
    _require_recipes(patterns)
    matches, skipped = match(model, patterns, strict)
    generators = {regex: recipe.generator() for regex, recipe in patterns.items()}
    choices = [
        Choice(each.site, each.rule.chosen(each.site, generators[each.regex]), each.rule) for each in matches
    ]
    return choices, skipped


def match(
    model: nn.Module, patterns: Mapping[str, AnyRule], strict: bool
) -> tuple[list[Match[AnyRule]], list[Skip]]:
    """Returns the layers that can change, and those that stay dense with their reasons. Raises Error if a
    pattern would change nothing."""
    regexes = _compiled(patterns)
    surveyed = survey(model)
    regex_of_site = _matches(surveyed, regexes)
    owners = owners_of(model)
    reasons = {
        id(site): _reason(site, patterns[regex_of_site[id(site)]], owners)
        for site in surveyed.sites
        if id(site) in regex_of_site
    }
    for regex in patterns:
        matched = [site for site in surveyed.sites if regex_of_site.get(id(site)) == regex]
        refused = [
            f"{site.name or 'the model'}: {reasons[id(site)]}" for site in matched if reasons[id(site)]
        ]
        if matched and len(refused) == len(matched):
            _raise_for_nothing(regex, refused)
        if strict and refused:
            raise Error(
                _OP,
                "every matched layer to become sparse (strict=True)",
                "; ".join(refused),
                "match fewer layers",
            )
    matches, skipped = [], []
    for site in surveyed.sites:
        asking = regex_of_site.get(id(site))
        if asking is None or reasons[id(site)]:
            skipped += [
                Skip(name, site.kind, _NO_MATCH if asking is None else reasons[id(site)])
                for name in site.names
            ]
            continue
        matches.append(Match(site, asking, patterns[asking]))
    for name, module in surveyed.others.items():
        if any(compiled.fullmatch(name) for compiled in regexes.values()):
            already = is_sparse(module)
            skipped.append(
                Skip(name, type(module).__name__, "it is sparse already" if already else "not a linear")
            )
    return matches, skipped


def _compiled(patterns: Mapping[str, Rule]) -> dict[str, re.Pattern[str]]:
    if not isinstance(patterns, Mapping) or not patterns:
        raise Error(
            _OP,
            "{regex: BlockSparse(...) or Semi24(...)}",
            repr(patterns),
            'pass {r".*mlp.*": BlockSparse(density=0.25)}',
        )
    compiled = {}
    for regex in patterns:
        try:
            compiled[regex] = re.compile(regex)
        except (re.error, TypeError) as error:
            raise Error(
                _OP, "regular expressions as keys", f"{regex!r} ({error})", "escape dots and brackets"
            ) from error
    return compiled


def _require_recipes(patterns: Mapping[str, Recipe]) -> None:
    for regex, recipe in patterns.items() if isinstance(patterns, Mapping) else ():
        if not isinstance(recipe, Recipe):
            remedy = "pass BlockSparse(block=32, density=0.25), Semi24(), or InLayout('csr')"
            raise Error(_OP, f"a BlockSparse or Semi24 for {regex!r}", repr(recipe), remedy)


def _matches(surveyed: Survey, regexes: Mapping[str, re.Pattern[str]]) -> dict[int, str]:
    """Returns id(site) -> the first regex that matches one of its names. Raises Error when a regex gets no
    site."""
    regex_of_site: dict[int, str] = {}
    for regex, compiled in regexes.items():
        matched, earlier = False, set()
        for site in surveyed.sites:
            if any(compiled.fullmatch(name) for name in site.names + site.groups):
                if id(site) in regex_of_site:
                    earlier.add(regex_of_site[id(site)])
                else:
                    regex_of_site[id(site)], matched = regex, True
        if matched:
            continue
        names = [name for site in surveyed.sites for name in site.names]
        if earlier:
            listed = ", ".join(repr(other) for other in sorted(earlier))
            remedy = "the first pattern that matches counts: put this one before"
            raise Error(_OP, f"layers for {regex!r}", f"only layers that {listed} has taken", remedy)
        if not_linear := [
            f"{name} ({type(m).__name__}{', sparse already' if is_sparse(m) else ''})"
            for name, m in (surveyed.others | surveyed.bare).items()
            if name and compiled.fullmatch(name)
        ]:
            raise Error(
                _OP,
                f"linear layers for {regex!r}",
                _few(not_linear),
                f"linear layers are {_few(names) or 'none'}",
            )
        if inside := [name for name in surveyed.containers if name and compiled.fullmatch(name)]:
            remedy = f"match the layers inside: {regex + '[.].*'!r}"
            raise Error(
                _OP, f"linear layers for {regex!r}", f"modules that hold others: {_few(inside)}", remedy
            )
        if not names:
            remedy = "sparsify_ takes nn.Linear, convolutions, nn.MultiheadAttention, nn.LSTM and nn.GRU"
            raise Error(_OP, f"linear layers for {regex!r}", "a model without dense ones", remedy)
        similar = difflib.get_close_matches(regex.replace("\\", ""), names, 3, 0.5) or names
        remedy = f"names are matched whole; linear layers are {_few(similar) or 'none'}"
        raise Error(_OP, f"a module name for {regex!r}", "none", remedy)
    return regex_of_site


def _raise_for_nothing(regex: str, refused: list[str]) -> None:
    raise Error(
        _OP,
        f"a layer for {regex!r} that can become sparse",
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
