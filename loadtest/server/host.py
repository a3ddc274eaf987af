"""Facts about the machine that this runs on: the load generator's, and the server's where both are one."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import psutil


def host_facts() -> dict[str, Any]:
    """cpu_model, cores (usable by us), cores_online, memory_gib, kernel, system, python. No host name, no address."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu_model": cpu_model(),
        "cores": cores,
        "cores_online": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def cpu_model() -> str | None:
    """Name of the processor; None where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
