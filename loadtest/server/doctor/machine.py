"""The machine that the load comes from: Python, kernel time stamps, open files, disk, GPU memory."""

from __future__ import annotations

import math
import os
import platform
import resource
import shutil
import socket
import sys
from pathlib import Path

from loadtest.model import Cell, ClientSpec
from loadtest.plan.estimate import expected_requests
from loadtest.server.doctor.findings import Finding
from loadtest.server.gpu import memory_free_mib

PYTHONS = ((3, 11), (3, 13))
"""First and last version that the tests run on."""
FILES_BESIDE = 200
"""Open files of a worker beside its streams: libraries, logs, pipes; 60 were seen."""
BYTES_PER_REQUEST = 40_000
"""Raw and merged, with text and chunk times, for 256 tokens: 25,000 were seen."""
DISK_SPARE = 2**30
SO_TIMESTAMPNS = 35
GPU_SPARE = 0.9
"""vLLM takes 92 % of the memory by default; weights that need more than this leave nothing for the KV cache."""
GPU_BUSY_MIB = 1024.0
"""An idle GPU holds some hundred MiB of driver state."""


def check_machine(cells: list[Cell], client: ClientSpec, out: Path) -> list[Finding]:
    """Everything but the GPU."""
    return [
        _python(),
        _timestamps(),
        _files(max((c.load_value for c in cells if c.load_kind == "closed"), default=1.0), client.workers),
        _disk(math.ceil(sum(expected_requests(c) for c in cells)), out),
        _cores(client.workers),
    ]


def check_gpu(weight_bytes: int) -> list[Finding]:
    """Free GPU memory against the weights of the target and its largest draft."""
    free = memory_free_mib()
    if free is None:
        return [Finding("note", "gpu", "nvidia-smi does not answer: no GPU of NVIDIA, or no driver; not checked")]
    told = ", ".join(f"GPU {i}: {f / 1024:.1f} of {total / 1024:.1f} GiB free" for i, f, total in free)
    need = weight_bytes / 2**20
    if need > GPU_SPARE * sum(f for _, f, _ in free):
        todo = "Stop what holds it (nvidia-smi names it) or use a smaller model"
        return [Finding("stop", "gpu", f"{told}; the weights alone take {need / 1024:.1f} GiB", todo)]
    if any(total - f > GPU_BUSY_MIB for _, f, total in free):
        todo = "Stop what holds it: it will get slower and be slowed, and configs will not get equal shares"
        return [Finding("lost", "gpu", f"{told}: somebody uses it", todo)]
    return [Finding("ok", "gpu", told)]


def _python() -> Finding:
    seen = f"{platform.python_version()}"
    if PYTHONS[0] <= sys.version_info[:2] <= PYTHONS[1]:
        return Finding("ok", "python", seen)
    return Finding("lost", "python", f"{seen} is not tested", "Use Python 3.11, 3.12 or 3.13")


def kernel_stamp_works() -> bool:
    """Whether the kernel stamps what arrives on a loopback TCP connection."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), 5) as client,
        ):
            client.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            peer, _ = server.accept()
            with peer:
                peer.sendall(b"x")
                _, held, _, _ = client.recvmsg(16, 256)
                return any(level == socket.SOL_SOCKET and len(data) >= 16 for level, _, data in held)
    except (OSError, AttributeError):
        return False


def _timestamps() -> Finding:
    if kernel_stamp_works():
        return Finding("ok", "time stamps", "the kernel stamps arrivals (SO_TIMESTAMPNS)")
    todo = "Use Linux and plain http to the server; until then read latencies as upper bounds"
    return Finding("lost", "time stamps", "the kernel stamps nothing here: times include the client's own delay", todo)


def _files(streams: float, workers: int) -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = math.ceil(streams / max(1, workers)) + FILES_BESIDE
    limit = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    if hard != resource.RLIM_INFINITY and hard < need:
        todo = f"Raise the hard limit (ulimit -Hn {need}) or use more workers"
        return Finding("stop", "open files", f"{need} needed per worker, the hard limit is {limit}", todo)
    return Finding("ok", "open files", f"{need} needed per worker, the hard limit is {limit}")


def _disk(requests: int, out: Path) -> Finding:
    folder = next(p for p in (out.resolve(), *out.resolve().parents) if p.exists())
    free = shutil.disk_usage(folder).free
    need = requests * BYTES_PER_REQUEST
    seen = f"{free / 2**30:.1f} GiB free at {folder}, about {need / 2**30:.1f} GiB for {requests} requests"
    if free < need:
        return Finding("stop", "disk", seen, "Free some, use --out, or set client.keep_chunks = false")
    if free < need + DISK_SPARE:
        return Finding("lost", "disk", seen, "Free some: a full disk ends the run")
    return Finding("ok", "disk", seen)


def _cores(workers: int) -> Finding:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    seen = f"{cores} cores for {workers} worker{'s' if workers > 1 else ''}, a master, a scraper and this process"
    if workers >= cores:
        todo = "Use fewer workers, or a machine of its own for the load"
        return Finding("lost", "cores", f"{seen}: a saturated client measures itself", todo)
    return Finding("ok", "cores", seen)
