"""Names of the messages between master and workers, and the times that both sides keep. No locust, no gevent here.

Messages travel over Locust's own channel (msgpack; bytes survive, tuples become lists). In a run without worker
processes the same messages are handed over in the process. Every message about a cell carries its `cell_id`.

Master to workers::

    lt_clock    {asked_ns}                                              look at your clock
    lt_mix      {mix, sha256, prompts: bytes, warmup: bytes, weights}   once per mix; JSON Lines of Prompt
    lt_cell     {cell, job, workers, sha256, trace: bytes, trace_sha256}   the cell to get ready for
    lt_window   {cell_id, start_ns, end_ns, stripes: {worker: [offset, stride]}}   opens the gate, or moves the end
    lt_stop     {cell_id}                                               every measured request has ended: no more load
    lt_abort    {cell_id, reason}                                       drop the cell at once

Workers to master::

    lt_hello    {index, pid, host, version, pid_space}
    lt_looked   {index, asked_ns, time_ns}
    lt_ready    {cell_id, index, error, has_key}                        error: why the cell cannot be run, or null
    lt_batch    {cell_id, index, rows, data: bytes}                     one Arrow record batch of RAW_SCHEMA, no schema
    lt_drained  {cell_id, index}                                        no request of the window is in flight here
    lt_final    {cell_id, index, counts}                                what the worker saw; the last of a cell
"""

from __future__ import annotations

CLOCK, MIX, CELL, WINDOW, STOP, ABORT = "lt_clock", "lt_mix", "lt_cell", "lt_window", "lt_stop", "lt_abort"
LOOKED = "lt_looked"
HELLO, READY, BATCH, DRAINED, FINAL = "lt_hello", "lt_ready", "lt_batch", "lt_drained", "lt_final"

ENV_JOB = "LOADTEST_JOB"
"""Path of the LoadJob file; unset: a run by hand."""
ENV_PARENT = "LOADTEST_PARENT_PID"
"""Process id of who started the master; when it is gone the run ends. Unset: the parent at start-up."""

ENV_CONNECTED = "LOADTEST_CONNECTED_FD"
"""File descriptor that gets one byte from each worker process of `loadtest worker` that has found its master."""

BATCH_INTERVAL_S = 0.5
"""Rows reach the master's file at most about this late, so a kill loses less than a second."""
WINDOW_LEAD_NS = 200_000_000
"""An edge of the window is told to the workers this long ahead: messages take below 10 ms on one host, and a worker
that is late by more than this shows in its `late_window_ms`."""
READY_TIMEOUT_S = 60.0
"""A worker parses its prompts (about 10 us each) and collects garbage; minutes would mean that it hangs."""
FINAL_GRACE_S = 10.0
"""From the drain's deadline to the last final message: parsing a full backlog of 8,192 answers takes 5 s."""
LIVENESS_INTERVAL_S = 0.25
MASTER_SILENCE_S = 10.0
"""Locust's master answers each heartbeat (1 Hz); a worker on another host gives up after this long without one."""
