"""GPUs and driver of this machine as nvidia-smi tells them; nothing is guessed where it is absent."""

from __future__ import annotations

import csv
import io
import subprocess
from typing import Any

FIELDS = ("index", "name", "uuid", "memory.total", "memory.used", "driver_version", "power.limit", "clocks.max.sm")
TIMEOUT_S = 20.0
"""nvidia-smi can take seconds where persistence mode is off."""


def gpus() -> list[dict[str, Any]] | None:
    """One dict per GPU: index, name, memory_total_mib, memory_used_mib, driver, power_limit_w, max_sm_clock_mhz.

    None where nvidia-smi is absent or fails: not known, which is not the same as no GPU.
    """
    argv = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse(done.stdout)


def parse(text: str) -> list[dict[str, Any]]:
    """The rows of nvidia-smi's CSV in the order of FIELDS; values such as `[N/A]` become None."""
    found = []
    for row in csv.reader(io.StringIO(text), skipinitialspace=True):
        if len(row) == len(FIELDS):
            index, name, _uuid, total, used, driver, power, clock = (c.strip() for c in row)
            found.append(
                {
                    "index": _number(index),
                    "name": name,
                    "memory_total_mib": _number(total),
                    "memory_used_mib": _number(used),
                    "driver": driver,
                    "power_limit_w": _number(power),
                    "max_sm_clock_mhz": _number(clock),
                }
            )
    return found


def _number(text: str) -> float | int | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() else value
