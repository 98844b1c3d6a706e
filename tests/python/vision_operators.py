"""torchvision beside a CPU build of torch: PyPI's is built for CUDA, its operators do not load, and its
import fails at the first one that it registers something for, ``torchvision::nms``; with it fails the import
of every model of transformers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch


def define_missing() -> None:
    """Defines what that import needs where torchvision's own do not load; before anything imports it. They
    compute nothing."""
    found = importlib.util.find_spec("torchvision")
    if found is None or hasattr(torch.ops.torchvision, "nms"):
        return
    libraries = [
        path for folder in found.submodule_search_locations or () for path in Path(folder).glob("_C*.so")
    ]
    try:
        for library in libraries:
            torch.ops.load_library(str(library))
    except (OSError, RuntimeError):
        libraries = []
    if not libraries:
        for name in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )
