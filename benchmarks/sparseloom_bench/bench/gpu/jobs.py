"""Lists what a run does, with one record each: the cells, and what is timed beyond single products."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from sparseloom.errors import Error
from sparseloom.ops import semi24

from ..cells import SUITES, Cell
from . import (
    attention_blocks,
    attention_group,
    batches,
    host,
    semi24_group,
    semi24_training,
    topology,
    training,
)
from .device import alive
from .goals import DENSITIES
from .groups import GROUPS, gpu_cells
from .measure import DeadContext, Record, Settings, cell_fields, measure, one_line


@dataclass(frozen=True)
class Job:
    """One part of a run.

    `fields` stand in its record and tell it from all others; the record of an error has these and the error.
    """

    name: str
    group: str
    fields: Record
    run: Callable[[Settings], Record]

    def __str__(self) -> str:
        return self.name

    def done(self, records: Iterable[Record]) -> bool:
        return any(all(record.get(key) == value for key, value in self.fields.items()) for record in records)


def of_cell(cell: Cell) -> Job:
    return Job(str(cell), "", cell_fields(cell), partial(measure, cell))


def _guarded(fields: Record, one: Callable[[Settings], Record]) -> Callable[[Settings], Record]:
    """Returns a run that turns what `one` raises into its record, or raises DeadContext when the CUDA context
    broke."""

    def run(settings: Settings) -> Record:
        try:
            return one(settings)
        except Exception as error:
            record = fields | {"error": one_line(error)}
            if not alive():
                raise DeadContext(record) from error
            return record

    return run


def _extra(group: str, fields: Record, one: Callable[[Settings], Record]) -> Job:
    return Job(str(fields.get("name", fields["op"])), group, fields, _guarded(fields, one))


def extras() -> list[Job]:
    """Returns the jobs that are not cells: training steps, the MLP, plans of a changed topology, walks over
    all batch sizes, and the host overhead of a module call."""

    def layer(block: int, density: float) -> Callable[[Settings], Record]:
        return lambda settings: training.layer_step(settings, block, density)

    made = [
        _extra("step", training.step_fields(block, density), layer(block, density))
        for block in training.BLOCKS
        for density in DENSITIES
    ]
    made.append(_extra("mlp", training.mlp_fields(), lambda settings: training.compiled_mlp(settings)))
    made.append(
        _extra("topology", topology.fields("host"), lambda settings: topology.host_plan(settings.device))
    )
    made.append(
        _extra("topology", topology.fields("device"), lambda settings: topology.device_plan(settings.device))
    )
    made += [
        _extra("batches", batches.fields(*walk), lambda settings, walk=walk: batches.walk(settings, *walk))  # type: ignore[misc]
        for walk in batches.WALKS
    ]
    made += semi24_jobs()
    for module in (attention_group, attention_blocks):
        made += [
            _extra(module.GROUP, module.fields(cell), partial(module.measure, cell)) for cell in module.CELLS
        ]
    made.append(_extra("host", {"op": "host"}, lambda settings: host.host_cost(settings.device)))
    return made


def semi24_jobs() -> list[Job]:
    """Returns the jobs of 2:4 weights: products, a layer's training step, and pruning with packing of W alone
    and with W^T."""
    group = semi24_group
    made = [_extra(group.GROUP, group.fields(cell), partial(group.measure, cell)) for cell in group.CELLS]
    made.append(_extra(group.GROUP, semi24_training.fields(), semi24_training.measure))
    ways = [(method, both) for method in semi24.METHODS for both in (False, True)]
    return made + [
        _extra(group.GROUP, group.pruning_fields(*way), lambda settings, way=way: group.prune(settings, *way))  # type: ignore[misc]
        for way in ways
        if way != ("magnitude", True)  # its W^T is not 2:4
    ]


def names() -> list[str]:
    """Returns the names of the groups, in the order of a run."""
    return list(dict.fromkeys([*GROUPS, *(job.group for job in extras())]))


def choose(groups: list[str], only: list[str]) -> list[Job]:
    """Returns the jobs of these groups (none: all) whose names contain every text of `only`.

    Raises Error when a group is unknown or no job is left.
    """
    known = names()
    for group in groups:
        if group not in known:
            raise Error(
                "bench",
                f"a group of {', '.join(known)}",
                repr(group),
                "name one of them, or leave --group out",
            )
    cells: list[Any] = (
        gpu_cells([group for group in groups if group in GROUPS]) if groups else SUITES["gpu"]()
    )
    jobs = [of_cell(cell) for cell in cells] + [job for job in extras() if not groups or job.group in groups]
    found = [job for job in jobs if all(text in job.name for text in only)]
    if not found:
        raise Error("bench", "--only to match a part of gpu", " and ".join(only), "see --list for the names")
    return found
