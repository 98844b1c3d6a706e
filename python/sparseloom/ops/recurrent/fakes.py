"""Fake kernels of the operators of recurrent steps and norms, which write into their arguments."""

from typing import Any

from ..fakes import fake


@fake("lstm_cell_pointwise")
@fake("lstm_cell_pointwise_backward")
@fake("gru_cell_pointwise")
@fake("gru_cell_pointwise_backward")
@fake("recurrent_steps")
@fake("recurrent_steps_backward")
@fake("unit_norm")
@fake("unit_norm_backward")
def _cell_fake(*operands: Any) -> None:
    return None
