"""The kinds of modules that can become block-sparse, one file each.

A new kind is a file with a subclass of Form, and its line in FORMS; docs/add_a_module.md shows one. A program
may append a Form of its own to FORMS.
"""

from __future__ import annotations

from torch import nn

from ..._arguments import named_arguments
from .attention import AttentionForm
from .conv import ConvForm, ConvTransposeForm
from .conv1d import Conv1DForm
from .conv1x1 import Conv1x1Form
from .form import Form, Site
from .linear import LinearForm
from .recurrent import RecurrentForm

#: The first form that matches a module counts.
FORMS: list[Form] = [
    AttentionForm(),
    LinearForm(),
    Conv1x1Form(),
    ConvForm(),
    ConvTransposeForm(),
    Conv1DForm(),
    RecurrentForm(),
]


@named_arguments
def form_of(module: nn.Module) -> Form | None:
    """Returns the form of a dense module, None for one that cannot become sparse."""
    return next((form for form in FORMS if form.matches(module)), None)


__all__ = ["FORMS", "Form", "Site", "form_of"]
