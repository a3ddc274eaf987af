"""The command line of the simulated server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from loadtest.server.sim.app import run_sim
from loadtest.server.sim.options import PER_REQUEST_METRICS, sim_options
from loadtest.server.sim.parameters import METHODS

_EPILOG = """\b
Example:
  loadtest sim --port 8000 --method eagle3 --gamma 4
  curl -s http://127.0.0.1:8000/v1/models
"""


@click.command("sim", epilog=_EPILOG, context_settings={"show_default": True})
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port; 0 takes a free one, see --port-file.")
@click.option(
    "--port-file", type=click.Path(dir_okay=False, path_type=Path), help="Gets the port number when the server listens."
)
@click.option("--method", type=click.Choice(METHODS), default="none", help="Speculation method.")
@click.option("--gamma", type=int, help="num_speculative_tokens.  [default: 4, suffix 8]")
@click.option("--seed", type=int, default=0, help="Seeds the texts and the acceptance.")
@click.option("--model", default="sim-model", help="Served model name.")
@click.option("--speed", type=float, default=1.0, help="Divides every modelled duration.")
@click.option(
    "--acceptance",
    metavar="JSON|FILE",
    help='Overrides, {"code": {"coverage": 1, "conditional": [0.8, 0.7]}}; "*" = all.',
)
@click.option("--max-num-seqs", type=int, default=256, help="Sequences in a batch; more wait.")
@click.option("--max-model-len", type=int, default=8192, help="Context length in tokens.")
@click.option("--fingerprint", help="system_fingerprint of every answer.  [default: sim-VERSION-HASH]")
@click.option(
    "--per-request-metrics",
    type=click.Choice(PER_REQUEST_METRICS),
    help="Speculation block of each answer.  [default: detailed]",
)
@click.option("--timing-metrics/--no-timing-metrics", default=True, help="Timing keys of each answer's metrics.")
@click.option("--prompt-tokens-details/--no-prompt-tokens-details", default=True, help="Cached prompt tokens in usage.")
@click.option(
    "--fail",
    multiple=True,
    metavar="MODE:VALUE",
    help="Fault: error, cut, reset, http500, stall, empty with a percentage; engine-death:SECONDS.",
)
@click.option("--version", default="0.32.0", help="vLLM version to report.")
def sim_command(**values: Any) -> None:
    """Run a simulated vLLM server.

    Speaks vLLM's HTTP API and /metrics, but computes nothing: its texts, times and acceptance are invented. Results
    made with it are marked SIMULATED and never pass the gate.
    """
    run_sim(sim_options(**values))
