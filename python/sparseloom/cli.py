"""The command line. info, plan, report and patterns need nothing but torch, prune and deploy transformers.
Other packages bring more commands: benchmarks/ of the source tree brings bench, experiment and demo."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import platform
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from .errors import Error

#: Entry points of this group are commands of other packages: a function that takes the arguments behind the
#: command's name and returns the exit status. The first line of its docstring is the help.
GROUP = "sparseloom.commands"
#: The package of these commands, benchmarks/ of the source tree, is no part of the library. In a source tree
#: it can be imported, but has no entry point.
BENCHMARKS = "sparseloom_bench"
OF_BENCHMARKS = ("bench", "demo", "experiment")
INSTALL_BENCHMARKS = "run `pip install ./benchmarks` in a clone of sparseloom's repository"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status. An Error of the library becomes one line on stderr and
    status 2."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if arguments and (command := _command(arguments[0])):
            return command(arguments[1:])
        parsed = _parser().parse_args(arguments)
        run: Callable[[argparse.Namespace], int] = parsed.run
        return run(parsed)
    except Error as error:
        print(f"sparseloom: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    from . import __version__

    parser = argparse.ArgumentParser(prog="sparseloom", description="Block-sparse layers for PyTorch.")
    parser.add_argument("--version", action="version", version=f"sparseloom {__version__}")
    parser.add_argument(
        "--cmake-dir", action=_CmakeDir, nargs=0, help="print where CMake's find_package(sparseloom) finds it"
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    info = commands.add_parser(
        "info", help="versions, machine, kernels compiled in, and why a part is missing"
    )
    info.add_argument("--json", action="store_true", help="print JSON")
    info.set_defaults(run=_info)
    plan = commands.add_parser("plan", help="which kernel a layer would run, and why")
    plan.add_argument("--tokens", type=int, default=1024, help="rows of x (default 1024)")
    plan.add_argument("--in-features", type=int, default=4096, help="default 4096")
    plan.add_argument("--out-features", type=int, default=4096, help="default 4096")
    plan.add_argument("--density", type=float, default=0.1, help="share of blocks kept (default 0.1)")
    plan.add_argument("--block", type=_block, default=(32, 32), help="32 or 32x64 (default 32)")
    plan.add_argument("--dtype", default="float32", choices=("float32", "float16", "bfloat16", "float64"))
    plan.add_argument("--direction", default="forward", choices=("forward", "dx", "dw"))
    plan.add_argument("--device", default="cpu", help="cpu, cuda or cuda:1: where it would run (default cpu)")
    plan.add_argument("--residual", action="store_true", help="forward adds a residual")
    plan.add_argument("--accumulate", action="store_true", help="dw is added to a float32 main_grad")
    plan.add_argument("--measure", action="store_true", help="also run the candidates, for about a second")
    plan.add_argument("--strict", action="store_true", help="forbid the dense and reference kernels")
    plan.add_argument("--json", action="store_true", help="print JSON")
    plan.set_defaults(run=_plan)
    patterns = commands.add_parser(
        "patterns", help="a gallery of patterns, and a signal that spreads through a small world"
    )
    patterns.add_argument("--out", type=Path, default=Path("patterns-out"), help="folder (patterns-out)")
    patterns.add_argument("--seed", type=int, default=1, help="of the patterns that are drawn (default 1)")
    patterns.set_defaults(run=_patterns)
    report = commands.add_parser(
        "report", help="measure a model's layers and itself beside dense: a page to send on, and JSON"
    )
    report.add_argument("factory", nargs="?", help="MODULE:NAME of what returns (model, example input)")
    report.add_argument("--hf", metavar="FOLDER", help="a folder that transformers' save_pretrained wrote")
    report.add_argument("--out", type=Path, default=Path("report.html"), help="the page (report.html)")
    report.add_argument("--batch", type=int, default=1, help="rows of tokens, with --hf (default 1)")
    report.add_argument("--tokens", type=int, default=128, help="tokens of a row, with --hf (default 128)")
    report.add_argument("--ways", default="eager", help="of eager,compiled,exported,graph (default eager)")
    report.add_argument("--seconds", type=float, default=0.3, help="of timing a layer (default 0.3)")
    report.add_argument("--no-advice", action="store_true", help="leave out what dense layers would gain")
    report.set_defaults(run=_report)
    prune = commands.add_parser("prune", help="prune a transformers checkpoint as a recipe file says")
    prune.add_argument("recipe", type=Path, help="file with [prune] and [layers]: see docs/pruning.md")
    prune.set_defaults(run=_prune)
    deploy = commands.add_parser(
        "deploy", help="make a program of a sparse checkpoint, and say how fast it is"
    )
    deploy.add_argument("recipe", type=Path, help="file with [deploy]: see docs/pruning.md")
    deploy.set_defaults(run=_deploy)
    for name in sorted({*OF_BENCHMARKS, *entry_points(group=GROUP).names}):
        try:
            text = _command(name).__doc__
        except Error as error:
            text = f"missing: {error.remedy}"
        commands.add_parser(name, help=text)
    return parser


def _command(name: str) -> Callable[[Sequence[str]], int] | None:
    """Returns the command of this name from another package, or None without one. Raises Error for a command
    of the benchmarks where they are not installed, and for one whose package cannot be imported."""
    for point in entry_points(group=GROUP, name=name):
        try:
            command: Callable[[Sequence[str]], int] = point.load()
        except Exception as error:  # code of another package: anything
            remedy = (
                INSTALL_BENCHMARKS if name in OF_BENCHMARKS else "install the package that brings it anew"
            )
            raise Error(name, f"{point.value} that can be imported", str(error), remedy) from error
        return command
    if name not in OF_BENCHMARKS:
        return None
    if importlib.util.find_spec(BENCHMARKS) is None:
        raise Error(name, "the package sparseloom-bench", "an environment without it", INSTALL_BENCHMARKS)
    return getattr(importlib.import_module(f"{BENCHMARKS}.commands"), name)  # type: ignore[no-any-return]


class _CmakeDir(argparse.Action):
    """Prints the folder of the package's CMake files and exits, as --version does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        folder = Path(__file__).parent / "cmake"
        if not (folder / "sparseloom-config.cmake").exists():
            remedy = "pip install the package, or cmake --install the build"
            raise Error("--cmake-dir", "an installed package", f"none in {folder}, of a source tree", remedy)
        print(folder)
        parser.exit()


def _block(text: str) -> tuple[int, int]:
    sides = [int(side) for side in text.split("x")]
    if len(sides) > 2:
        raise ValueError(text)
    return sides[0], sides[-1]


def gathered_info() -> dict[str, Any]:
    """Returns what ``sparseloom info`` prints: the core's own report, Python, torch, and whether the
    package of bench, demo and experiment is there."""
    import torch

    from . import ops

    present = importlib.util.find_spec(BENCHMARKS) is not None
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "sparseloom": ops.info(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "torch threads": torch.get_num_threads(),
        "torch cuda": torch.version.cuda or "none: a CPU build of torch",
        "gpus": gpus or "none found",
        "benchmarks": "installed" if present else f"missing: {INSTALL_BENCHMARKS}",
    }


def _info(parsed: argparse.Namespace) -> int:
    info = gathered_info()
    print(json.dumps(info, indent=2) if parsed.json else "\n".join(_lines(_readable(info))))
    return 0


def _readable(info: dict[str, Any]) -> dict[str, Any]:
    """Returns the entries as a person reads them: the kernels that run here by family, and those that do not
    by their reason."""
    core = dict(info["sparseloom"])
    del core["kernels"]
    missing: dict[str, list[str]] = {}
    for kernel, reason in core.pop("kernels_unavailable").items():
        missing.setdefault(reason, []).append(kernel)
    families = {name: kernels or "none" for name, kernels in core.pop("families").items()}
    core["rates"] = {
        name: f"{rate / 1e9:,.0f} {'GB/s' if 'bytes' in name else 'Gflop/s'} of one core"
        for name, rate in core["rates"].items()
        if rate
    }
    core["kernels, beside dense and reference"] = families
    core["block-linear kernels that do not run here"] = missing or "none"
    return info | {"sparseloom": core}


def _lines(entries: dict[str, Any], indent: str = "") -> list[str]:
    lines = []
    for key, value in entries.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}", *_lines(value, indent + "  ")]
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            lines += [f"{indent}{key}", *(line for item in value for line in _lines(item, indent + "  "))]
        else:
            text = ", ".join(str(item) for item in value) if isinstance(value, list) else value
            lines.append(f"{indent}{key + ':':<{max(1, 26 - len(indent))}} {text}")
    return lines


def _plan(parsed: argparse.Namespace) -> int:
    import torch

    from . import nn

    device = parsed.device if parsed.measure else "meta"
    layer = nn.BlockSparseLinear(
        parsed.in_features, parsed.out_features, density=parsed.density, block=parsed.block, device=device
    )
    layer.strict = parsed.strict
    arguments = {name: getattr(parsed, name) for name in ("device", "measure", "residual", "accumulate")}
    plan = layer.plan(parsed.tokens, parsed.direction, getattr(torch, parsed.dtype), **arguments)
    print(json.dumps(plan, indent=2) if parsed.json else plan["text"].rstrip())
    return 0


def _prune(parsed: argparse.Namespace) -> int:
    from .prune import command

    command.run(parsed.recipe)
    return 0


def _report(parsed: argparse.Namespace) -> int:
    from .advise import command

    command.run(
        parsed.factory, parsed.hf, parsed.out, batch=parsed.batch, tokens=parsed.tokens,
        ways=parsed.ways.split(","), seconds=parsed.seconds, with_advice=not parsed.no_advice,
    )  # fmt: skip
    return 0


def _deploy(parsed: argparse.Namespace) -> int:
    from .prune import deploy

    print(deploy.run(parsed.recipe))
    return 0


def _patterns(parsed: argparse.Namespace) -> int:
    from .pattern import gallery

    try:
        paths = gallery.write(parsed.out, parsed.seed)
    except OSError as error:
        raise Error("patterns", "a folder that can be written", str(error), "pass --out FOLDER") from error
    print("\n".join(str(path) for path in paths))
    return 0
