"""The loads of a plan: closed loops, rates, a ramp, a trace."""

from __future__ import annotations

import math
from dataclasses import dataclass

from loadtest.errors import PlanError
from loadtest.model import LoadKind, load_label
from loadtest.plan.places import dataset_places, find_dataset
from loadtest.plan.schema import Plan
from loadtest.plan.trace import Arrivals, read_trace

TRACE_FILE = "prompts/arrivals.txt"
"""Below the run folder: the arrivals of the trace, as they are replayed."""


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """One load of the plan. `length_s`: a load that brings its own window."""

    kind: LoadKind
    value: float
    length_s: float | None = None
    ramp: tuple[tuple[float, float, float], ...] = ()
    trace_file: str | None = None

    @property
    def label(self) -> str:
        """As it stands in the cell id and in selectors."""
        return load_label(self.kind, self.value)


def load_points(plan: Plan) -> list[LoadPoint]:
    """The loads of a plan: closed loops ascending, rates ascending, the ramp, the trace. Raises DatasetError."""
    open_kind: LoadKind = plan.load.arrival
    points = [LoadPoint("closed", float(c)) for c in sorted(plan.load.concurrency)]
    points += [LoadPoint(open_kind, rate) for rate in sorted(plan.load.rate)]
    if plan.load.ramp:
        steps = tuple(step.step for step in plan.load.ramp)
        length_s = math.fsum(s for _, _, s in steps)
        mean = math.fsum((a + b) / 2 * s for a, b, s in steps) / length_s
        points.append(LoadPoint("ramp", float(f"{mean:.4g}"), length_s, steps))
    if plan.load.trace is not None:
        arrivals = trace_arrivals(plan)
        points.append(LoadPoint("trace", float(f"{arrivals.rate:.4g}"), arrivals.length_s, trace_file=TRACE_FILE))
    return points


def trace_arrivals(plan: Plan) -> Arrivals:
    """The arrivals of the plan's trace. Raises PlanError where it is not there, DatasetError where it is none."""
    trace = plan.load.trace
    path = None if trace is None else find_dataset(trace.file, plan.folder)
    if trace is None:
        raise PlanError("the plan has no load.trace")
    if path is None:
        looked = ", ".join(str(place) for place in dataset_places(trace.file, plan.folder))
        raise PlanError(f'"{trace.file}" not found; looked at {looked}')
    return read_trace(path, trace)
