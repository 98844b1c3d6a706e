"""What the config of a transformers model says of widths: whether it can say others, and how.

transformers is not imported here unless a model of it exists.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

import torch
from torch import nn

from .role import KEPT_HEADS, Role


class Stated:
    """The config of one transformers model, and the widths that it will say.

    Args:
        model: an outermost PreTrainedModel.
        code: lets heads go that the config cannot say, by a class in narrow_heads.py.
    """

    def __init__(self, name: str, model: Any, code: bool) -> None:
        self.model, self._code = model, code
        self._prefix = f"{name}." if name else ""
        self._class: Any = type(model)
        self._config, self._memo = _copied(model.config)
        self._shapes = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
        self._accepted: list[tuple[str, str, int | None, Any]] = []

    @property
    def narrow(self) -> bool:
        """Whether the model becomes one of narrow_heads.py."""
        return self._class is not type(self.model) or KEPT_HEADS in vars(self.model.config)

    def accept(self, roles: list[Role], widths: tuple[int, ...], config: Any) -> str:
        """Takes other widths of roles that share a config. Returns why it cannot say them; "" if it can."""
        before, after = (roles[0].settings(each) for each in (roles[0].before, widths))
        shapes: dict[str, tuple[int, ...]] = {}
        for role in roles:
            shapes |= {name.removeprefix(self._prefix): size for name, size in role.shapes(widths).items()}
        is_narrow = KEPT_HEADS in after and hasattr(config, KEPT_HEADS)
        changes = dict[str, tuple[Any, Any]]()
        reason = "" if is_narrow else _changes(config, before, after, changes)
        if not is_narrow and not reason:
            reason = self._fits(config, changes, shapes, self._class)
        if is_narrow or (reason and KEPT_HEADS in after):
            if not is_narrow and not self._code:
                return f"{reason}: code=True writes narrow_heads.py beside the weights, which can say it"
            changes = {KEPT_HEADS: (getattr(config, KEPT_HEADS, None), after[KEPT_HEADS])}
            cls = narrowed(self._class)
            reason = self._fits(config, changes, shapes, cls)
            self._class = self._class if reason else cls
        if not reason:
            path = self._path(config)
            self._accepted += [
                (path, key, *change) for key, change in changes.items() if change[0] != change[1]
            ]
        return reason

    def apply(self) -> dict[str, tuple[Any, Any]]:
        """Writes the accepted numbers into the model's config, of which it gets one of its own. Returns
        them."""
        if not self._accepted:
            return {}
        from ..hf import own_config

        own_config(self.model)
        for path, key, _, number in self._accepted:
            setattr(_at(self.model.config, path), key, number)
        if self._class is not type(self.model):
            _name_code(self.model, self._class)
        return {f"{path}.{key}" if path else key: (old, new) for path, key, old, new in self._accepted}

    def _path(self, config: Any) -> str:
        """Returns where a config lies inside that of the model, with dots."""
        if config is self.model.config:
            return ""
        found = [name for name, value in vars(self.model.config).items() if value is config]
        return found[0] if found else ""

    def _fits(
        self,
        config: Any,
        changes: dict[str, tuple[Any, Any]],
        shapes: dict[str, tuple[int, ...]],
        cls: Any,
    ) -> str:
        """Makes a model on the meta device of the config, as it is read from a file, and returns in what it
        differs from the model that will be; "" if in nothing."""
        trial, memo = _copied(self._config)
        target = memo.get(id(self._memo.get(id(config), config)), trial)
        for key, (_, number) in changes.items():
            setattr(target, key, number)
        try:
            written = type(trial).from_dict(trial.to_dict())
            with torch.device("meta"):
                twin = cls(written)
        except Exception as error:  # a class checks its config in any way
            cause = str(error).strip().splitlines()[-1].strip().rstrip(".")
            return f"{type(config).__name__} refuses it ({cause})"
        expected = self._shapes | shapes
        biases = {f"{name.removesuffix('weight')}bias" for name in shapes}
        for name, parameter in twin.named_parameters():
            if name in expected and name not in biases and tuple(parameter.shape) != expected[name]:
                return f"{type(config).__name__} cannot say {name} of {' x '.join(map(str, expected[name]))}"
        self._config = trial
        self._shapes = {name: shape for name, shape in expected.items() if name not in biases}
        self._memo = {key: memo.get(id(value), value) for key, value in self._memo.items()}
        return ""


def _changes(
    config: Any, before: dict[str, Any], after: dict[str, Any], changes: dict[str, tuple[Any, Any]]
) -> str:
    """Fills ``changes`` with {key: (old, new)}. Returns why the config has other numbers than ``before``."""
    for key, number in after.items():
        names = key.rstrip("?").split("|")
        name = next((each for each in names if hasattr(config, each)), None)
        if key == KEPT_HEADS or (name is None and key.endswith("?")):
            continue
        if name is None and key != "head_dim":
            return f"{type(config).__name__} has no {names[0]}"
        name = name or key
        old = getattr(config, name, None)
        if old not in (None, before[key]):
            return f"{type(config).__name__} says {name} {old}"
        changes[name] = old, number
    return ""


def narrowed(cls: type) -> Any:
    """Returns the class whose attentions have config.kept_heads heads."""
    from . import narrow_heads  # imports transformers

    name = cls.__name__.removeprefix("Narrow")
    return getattr(narrow_heads, f"Narrow{name}")


def pretrained(model: nn.Module) -> dict[str, Any]:
    """Returns the transformers models in a model by their names, outer ones first."""
    library = sys.modules.get("transformers.modeling_utils")
    base = getattr(library, "PreTrainedModel", None)  # a model exists only if its module was imported
    return {} if base is None else {n: m for n, m in model.named_modules() if isinstance(m, base)}


def _copied(config: Any) -> tuple[Any, dict[int, Any]]:
    memo: dict[int, Any] = {}
    return copy.deepcopy(config, memo), memo


def _at(config: Any, path: str) -> Any:
    return getattr(config, path) if path else config


def _name_code(model: Any, cls: Any) -> None:
    """Makes the model one of narrow_heads.py, which save_pretrained then writes beside it."""
    from transformers.models.auto import modeling_auto

    bare = cls.__name__.removeprefix("Narrow")
    kinds = {
        name: auto._model_mapping._model_mapping.get(model.config.model_type)
        for name, auto in vars(modeling_auto).items()
        if name.startswith("AutoModel") and getattr(auto, "_model_mapping", None) is not None
    }
    model.config.auto_map = {
        name: f"narrow_heads.Narrow{kind}"
        for name, kind in kinds.items()
        if isinstance(kind, str) and (name == "AutoModel" or kind == bare)
    }
    cls._auto_class = next((name for name in model.config.auto_map if name != "AutoModel"), "AutoModel")
    model.__class__ = cls
