"""Starts and stops the simulated server. `python -m loadtest.server.sim` and `loadtest sim` end here."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from aiohttp import web

from loadtest.errors import ServerError
from loadtest.server.sim.engine import Engine
from loadtest.server.sim.handlers import Server
from loadtest.server.sim.options import SimOptions

SHUTDOWN_S = 0.5
"""Streams still open at a stop are cut after this long: a test double has nothing to save."""


async def serve(options: SimOptions, stop: asyncio.Event) -> None:
    """Serves until `stop` is set or the engine died. Raises ServerError when the port cannot be had."""
    server = Server(Engine(options))
    runner = web.AppRunner(
        server.application(), access_log=None, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, options.host, options.port, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            raise ServerError(
                f"sim: cannot listen on {options.host}:{options.port}: {error}; choose another --port"
            ) from error
        port = int(runner.addresses[0][1])
        _announce(options, port)
        server.runner.start()
        if server.faults.death_s is not None:
            asyncio.get_running_loop().call_later(server.faults.death_s, server.engine_death)
        waits = [asyncio.create_task(stop.wait()), asyncio.create_task(server.exit.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
    finally:
        await server.runner.stop()
        await runner.cleanup()
    if server.exit.is_set():
        raise ServerError("sim: the engine died, as --fail engine-death asked for")


def _announce(options: SimOptions, port: int) -> None:
    speculation = f"{options.method}, gamma {options.gamma}" if options.speculative else "no speculation"
    print(
        f"SIMULATED server on http://{options.host}:{port} ({options.model}, {speculation}, seed {options.seed})",
        flush=True,
    )
    if options.port_file is not None:
        part = Path(f"{options.port_file}.part")
        part.write_text(f"{port}\n", "utf-8")
        part.replace(options.port_file)


def run_sim(options: SimOptions) -> None:
    """Serves in this process until SIGINT or SIGTERM. Raises ServerError (port taken, engine death)."""

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        await serve(options, stop)

    # A collection in mid-step would show up as latency of the server under test.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    asyncio.run(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `loadtest sim` with these arguments (default: the process's own); returns the exit code."""
    import click

    from loadtest.errors import LoadtestError
    from loadtest.server.sim.command import sim_command  # it imports this module

    try:
        sim_command.main(args=list(argv) if argv is not None else None, prog_name="loadtest sim", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except LoadtestError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0
