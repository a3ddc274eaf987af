"""GPUs and driver of this machine as nvidia-smi tells them; nothing is guessed where it is absent.

Where CUDA_VISIBLE_DEVICES is set for the run, only those GPUs count: two runs on two GPUs of one machine are none of
each other's business.
"""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
from collections.abc import Sequence
from typing import Any

FIELDS = ("index", "name", "memory.total", "driver_version", "power.limit", "clocks.max.sm")
TIMEOUT_S = 20.0
"""nvidia-smi can take seconds where persistence mode is off."""


def gpus() -> list[dict[str, Any]] | None:
    """One dict per GPU: index, name, memory_total_mib, driver, power_limit_w, max_sm_clock_mhz.

    Only what stays the same between two servers, so that configs can be compared by it. None where nvidia-smi is
    absent or fails: not known, which is not the same as no GPU.
    """
    rows = _query(FIELDS)
    return None if rows is None else [_gpu(row) for row in rows]


def memory_used_mib() -> float | None:
    """Memory in use on all visible GPUs together, MiB; None where it is not known."""
    rows = _query(("memory.used",))
    used = [_number(row[0]) for row in rows or []]
    return sum(u for u in used if u is not None) if used and None not in used else None


def memory_free_mib() -> list[tuple[int, float, float]] | None:
    """(index, free, total) of each GPU, MiB; None where it is not known."""
    rows = [[_number(cell) for cell in row] for row in _query(("index", "memory.free", "memory.total")) or []]
    known = [(int(r[0]), float(r[1]), float(r[2])) for r in rows if r[0] is not None and r[1] is not None and r[2]]
    return known if rows and len(known) == len(rows) else None


def _query(fields: Sequence[str]) -> list[list[str]] | None:
    argv = ["nvidia-smi", *_visible(), f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    rows = csv.reader(io.StringIO(done.stdout), skipinitialspace=True)
    return [[cell.strip() for cell in row] for row in rows if len(row) == len(fields)]


def _visible() -> list[str]:
    """The option that picks the GPUs of CUDA_VISIBLE_DEVICES; none where it is unset or names parts of a GPU (MIG)."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES", "").replace(" ", "")
    return [f"--id={value}"] if re.fullmatch(r"(\d+|GPU-[0-9A-Fa-f-]+)(,(\d+|GPU-[0-9A-Fa-f-]+))*", value) else []


def _gpu(row: Sequence[str]) -> dict[str, Any]:
    index, name, total, driver, power, clock = row
    return {
        "index": _number(index),
        "name": name,
        "memory_total_mib": _number(total),
        "driver": driver,
        "power_limit_w": _number(power),
        "max_sm_clock_mhz": _number(clock),
    }


def _number(text: str) -> float | int | None:
    """None for texts such as `[N/A]`."""
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() else value
