"""report(model, example_input) tells what every layer is, which kernel it runs, and its measured time against
a dense twin."""

from .._rooms import Room
from ..timing.rounds import Spread, medians
from .measure import report
from .result import LayerReport, ModelReport, Report, Times, Totals

__all__ = ["LayerReport", "ModelReport", "Report", "Spread", "Times", "Totals", "medians", "report"]

Room.of(__name__, "report")
