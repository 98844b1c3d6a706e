"""Makes tests/api/api.md from signatures and docstrings.

The page is the reference, and the snapshot that a change of the public surface has to touch.

Usage: python tools/make_api.py [--check]. With --check the exit status is 1 when the page is not up to date.
"""

import ast
import dataclasses
import importlib
import inspect
import sys
from types import ModuleType
from typing import Any, ForwardRef

from generated import ROOT, update

import sparseloom

PAGE = ROOT / "tests" / "api" / "api.md"
#: Module -> names; None stands for its __all__.
MODULES: dict[str, list[str] | None] = {
    "sparseloom": None,
    "sparseloom.nn": None,
    "sparseloom.attention": ["AttentionPattern", "merge", "plan", "serve", "use_pattern"],
    "sparseloom.attention.patterns": [
        *("full", "sliding_window", "dilated", "global_tokens", "strided", "fixed", "radial", "documents"),
    ],
    "sparseloom.layouts": None,
    "sparseloom.patch": ["Change", "Patched", "Recipe", "Skip", "drive"],
    "sparseloom.permute": ["Chain", "Permuted"],
    "sparseloom.prune": [
        *("Layer", "Plan", "Pruned", "Statistics", "embedding_agreement", "owl", "perplexity", "prune_plan"),
    ],
    "sparseloom.patch.forms": ["Form", "form_of"],
    "sparseloom.sparsify": [
        *("Context", "Magnitude", "Random", "Sparsifier", "ElementSparsifier"),
        *(
            "KeepAll",
            "RandomFraction",
            "ScalarThreshold",
            "ScalarFraction",
            "BlockwiseFraction",
            "PerBlockNM",
        ),
        *("SameFormat", "Learned", "Method", "Run", "distillation_loss", "register"),
    ],
    "sparseloom.sparsify.scores": ["Score", "Norm", "Learned"],
    "sparseloom.sparsify.select": ["Select", "TopK", "Threshold"],
    "sparseloom.sparsify.schedules": [
        "Schedule",
        "Constant",
        "Polynomial",
        "Cubic",
        "Alternating",
        "Sharpening",
        "Rising",
    ],
    "sparseloom.sparsify.gradients": [
        "Gradient",
        "Stored",
        "Masked",
        "Straight",
        "Scores",
        "Transport",
        "HardConcrete",
    ],
    "sparseloom.sparsify.regrow": ["Regrow", "Random", "Gradient", "GroupLasso"],
    "sparseloom.sparsify.gates": ["Gate"],
    "sparseloom.sparsify.methods": [
        "magnitude",
        "gradual",
        "set_",
        "rigl",
        "decreasing",
        "movement",
        "soft_movement",
        "supermask",
        "spartan",
        "l0",
        "group_lasso",
        "ac_dc",
    ],
    "sparseloom.sparsify.densities": ["erdos_renyi", "sensitivity", "proposed"],
    "sparseloom.optim": ["AdamW"],
    "sparseloom.distributed": ["mlp_plan", "borders", "BlockColwiseParallel", "BlockRowwiseParallel"],
    "sparseloom.callbacks": ["trainer_callback", "lightning_callback"],
    "sparseloom.quantize": ["Quantized", "QuantizedLayer"],
    "sparseloom.report": ["LayerReport", "ModelReport", "Spread", "Totals"],
    "sparseloom.advise.advice": ["LayerAdvice", "Option"],
    "sparseloom.pattern": [
        *(
            "random",
            "balanced",
            "biregular",
            "banded",
            "block_diagonal",
            "watts_strogatz",
            "watts_strogatz_2d",
            "barabasi_albert",
            "extra_edges",
            "strided",
            "fixed",
            "butterfly",
            "expander",
            "full",
            "from_mask",
            "top_k",
            "from_dense",
        ),
        *("Pattern", "PatternStats", "SmallWorld", "distances", "mixing", "small_world"),
    ],
    "sparseloom.ops": [
        *(
            "Index",
            "info",
            "linear",
            "linear_dw",
            "linear_dx",
            "make_index",
            "move_blocks",
            "plan",
            "quantize_rows",
            "scaled_linear",
        ),
        *("choose_blocks", "set_topology", "update_topology"),
        "set_topology",
        *("register", "Registry", "strict"),
    ],
}
#: Module -> functions. These modules need a package that is not always there: they are parsed, not imported.
READ = {"hf": ("describe_",), "lora": ("register_",)}


def first_paragraph(thing: Any) -> str:
    text = inspect.getdoc(thing) or ""
    return " ".join(text.split("\n\n")[0].split())


class Bare(str):
    """An annotation that prints without quotes: in the sources, annotations are strings."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def signature(thing: Any) -> str:
    """Returns the signature as written in the source."""
    found = inspect.signature(thing)
    parameters = [each.replace(annotation=bare(each.annotation)) for each in found.parameters.values()]
    return str(found.replace(parameters=parameters, return_annotation=bare(found.return_annotation)))


def bare(annotation: Any) -> Any:
    if isinstance(annotation, ForwardRef):  # a NamedTuple has these
        annotation = annotation.__forward_arg__
    return Bare(annotation) if isinstance(annotation, str) else annotation


def untold(base: type) -> list[tuple[str, Any]]:
    """Returns what a class has from a base class of ours that has no entry of its own."""
    ours = base.__module__.startswith("sparseloom.") and base.__name__ not in sparseloom.nn.__all__
    return list(vars(base).items()) if ours else []


def members(cls: type) -> list[str]:
    """Lists the methods and properties that the class itself defines, in the order of the source, then those
    of its bases that have no entry: each name once, as the class has it."""
    lines, told = [], {"extra_repr"}  # torch's, of which nothing is to be said
    if not dataclasses.is_dataclass(cls) and not issubclass(cls, tuple):  # their fields are in the signature
        lines += [
            f"- `.{name}: {kind}`"
            for name, kind in inspect.get_annotations(cls).items()
            if not name.startswith("_")
        ]
    for name, value in [*vars(cls).items(), *(each for base in cls.__bases__ for each in untold(base))]:
        if name.startswith("_") or name in told:
            continue
        told.add(name)
        if isinstance(value, property):
            lines.append(f"- `.{name}`: {first_paragraph(value)}")
        elif isinstance(value, (classmethod, staticmethod)) or inspect.isfunction(value):
            bound = getattr(cls, name)
            lines.append(f"- `.{name}{signature(bound)}`: {first_paragraph(bound)}")
    return lines


def entry(name: str, thing: Any) -> list[str]:
    if isinstance(thing, ModuleType):
        return []
    if inspect.isclass(thing):
        told = [up for base in thing.__bases__ for up in (base.__bases__ if untold(base) else (base,))]
        bases = ", ".join(f"`{base.__name__}`" for base in told if base not in (object, tuple))
        about = (f"({bases}) " if bases else "") + first_paragraph(thing)
        return [f"### {name}", "", f"`{name}{signature(thing)}`", "", about, "", *members(thing), ""]
    return [f"### {name}", "", f"`{name}{signature(thing)}`", "", first_paragraph(thing), ""]


def read_entries(names: tuple[str, ...], source: str) -> list[str]:
    """Lists functions of a module that is not imported."""
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    lines = []
    for name in names:
        node = functions[name]
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
        lines += [f"### {name}", "", f"`{name}({ast.unparse(node.args)}){returns}`", "", text, ""]
    return lines


def reference() -> str:
    lines = []
    for module_name, names in MODULES.items():
        module = importlib.import_module(module_name)
        lines += [f"## {module_name}", ""]
        again = set(sparseloom.nn.__all__) if module is sparseloom else set()  # layers: under sparseloom.nn
        for name in sorted(set(names or module.__all__) - again, key=lambda each: (each.lower(), each)):
            thing = getattr(module, name)
            if inspect.ismodule(thing):  # a module that is called as its function
                thing = getattr(thing, vars(thing).get("_called_as", ""), thing)
            lines += entry(name, thing)
    for module_name, functions in READ.items():
        source = (ROOT / "python" / "sparseloom" / f"{module_name}.py").read_text()
        lines += [f"## sparseloom.{module_name}", "", *read_entries(functions, source)]
    return "\n".join(lines).rstrip()


if __name__ == "__main__":
    check = "--check" in sys.argv
    current = update(PAGE, {"api": reference()}, check)
    if check and not current:
        sys.exit(
            f"{PAGE.relative_to(ROOT)} is not up to date: run python "
            "tools/make_api.py, and say in CHANGELOG.md what changed"
        )
