"""Command line. No logic: each command calls one function of a room, or of `commands` where it needs several."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import click

from loadtest import __version__
from loadtest.errors import EXIT_CRASH, EXIT_PASS, EXIT_USAGE, LoadtestError

PLAN = click.Path(path_type=Path, dir_okay=False)
RUN = click.Path(path_type=Path, file_okay=False)
FILE_TROUBLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.ENOTDIR, errno.ENAMETOOLONG)
"""Troubles with a file that lie with its place, not with us: one line instead of a traceback."""
EXITS = "Exit codes: 0 pass, 99 fail, 98 inconclusive, 2 usage or plan error, 1 crash."

ON_INCONCLUSIVE: Any = {
    "type": click.Choice(["fail", "warn"]),
    "default": "fail",
    "show_default": True,
    "help": "warn: an INCONCLUSIVE verdict ends with 0 and a warning, but never that of a simulated run.",
}


@click.group(epilog=EXITS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="loadtest")
def cli() -> None:
    """Decide, with evidence, whether a speculative-decoding config of vLLM may go to production.

    \b
    loadtest demo                 the whole job against the simulated server
    loadtest init > plan.toml     a commented starter plan
    loadtest run plan.toml        measure, merge, gate, report
    """


@cli.command()
@click.option("--out", type=RUN, default=Path("reports"), show_default=True, help="Folder that gets the run folder.")
def demo(out: Path) -> None:
    """Run the main job against the simulated server: five methods, code and chat, concurrency 1, 8 and 32.

    \b
    Example: loadtest demo --out reports
    The verdict of a simulated run is never PASS, so the exit code is 98 or 99.
    """
    from loadtest.commands import measure
    from loadtest.plan.starter import DEMO_PLAN
    from loadtest.run import prepare

    sys.exit(measure(prepare(DEMO_PLAN, out)))


@cli.command()
@click.option("-o", "--output", type=PLAN, help="Write to this file instead of standard output; never overwrites.")
def init(output: Path | None) -> None:
    """Write a commented starter plan.

    \b
    Example: loadtest init -o plan.toml
    """
    from loadtest.plan.starter import starter_plan

    text = starter_plan()
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        with output.open("x", encoding="utf-8") as f:
            f.write(text)
    except FileExistsError:
        raise click.UsageError(f"{output} exists; give another name, or delete it first") from None
    click.echo(f"wrote {output}; next: loadtest plan {output}", err=True)


@cli.command()
@click.argument("plan", type=PLAN)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def plan(plan: Path, as_json: bool) -> None:
    """Print every cell in order, each config's command line, the requests each SLO needs, and the estimated time.

    \b
    Example: loadtest plan plan.toml --json | jq .cells
    """
    from loadtest.plan.describe import describe
    from loadtest.plan.loader import load_plan

    click.echo(describe(load_plan(plan), as_json))


@cli.command()
@click.argument("plan", type=PLAN)
@click.option("--out", type=RUN, default=Path("reports"), show_default=True, help="Folder that would get the run.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def doctor(plan: Path, out: Path, as_json: bool) -> None:
    """Say what will stop PLAN, and what will be missing from its result, before anything is started.

    \b
    Example: loadtest doctor plan.toml
    Exit codes: 0 nothing will stop the run, 2 something will.
    """
    from loadtest.plan.loader import load_plan
    from loadtest.server.doctor.doctor import examine

    found = examine(load_plan(plan), out, lambda text: click.echo(text, err=True))
    click.echo(found.to_text(as_json))
    sys.exit(found.exit_code)


@cli.command()
@click.argument("plan", type=PLAN, required=False)
@click.option("--out", type=RUN, default=Path("reports"), show_default=True, help="Folder that gets the run folder.")
@click.option("--resume", type=RUN, help="Continue this run folder with its first unfinished cell; needs no PLAN.")
@click.option(
    "--run-unit-tests", is_flag=True, help="Then run the answers to code prompts with their tests: `quality`."
)
@click.option("--no-gate", is_flag=True, help="Measure and merge only; exit 0 when every cell was measured.")
@click.option("--on-inconclusive", **ON_INCONCLUSIVE)
@click.option("--expect-workers", type=click.IntRange(min=1), help="Wait for so many `loadtest worker` processes.")
@click.option("--bind", help="Address of this host where the workers come to; with --expect-workers.")
@click.option("--port", type=click.IntRange(1, 65535), default=5557, show_default=True, help="Its port.")
@click.option("--web-ui", is_flag=True, help="Locust's web page on loopback while it measures.")
@click.option("--web-port", type=click.IntRange(1, 65535), default=8089, show_default=True, help="Its port.")
def run(
    plan: Path | None,
    out: Path,
    resume: Path | None,
    no_gate: bool,
    on_inconclusive: str,
    expect_workers: int | None,
    bind: str | None,
    port: int,
    web_ui: bool,
    web_port: int,
    run_unit_tests: bool,
) -> None:
    """Measure every cell of PLAN, merge, gate and report; ends with `run: PATH`.

    \b
    Example: loadtest run plan.toml --out reports
             loadtest run --resume reports/20261129-120000-night
             loadtest run plan.toml --expect-workers 4 --bind 10.0.0.5
    """
    from dataclasses import replace

    from loadtest.commands import measure
    from loadtest.load.remote import Remote
    from loadtest.run import prepare
    from loadtest.run_folder import RunFolder

    if (plan is None) == (resume is None):
        raise click.UsageError("give either a PLAN to start or --resume RUN to continue")
    if (expect_workers is None) != (bind is None):
        raise click.UsageError("--expect-workers N and --bind HOST belong together")
    remote = None if expect_workers is None or bind is None else Remote(expect_workers, bind, port)
    if remote is not None:
        remote.check()
    folder = prepare(plan, out) if plan is not None else RunFolder(resume or out)
    folder = replace(folder, remote=remote, web_port=web_port if web_ui else None)
    sys.exit(measure(folder, gate_it=not no_gate, on_inconclusive=on_inconclusive, unit_tests=run_unit_tests))


@cli.command()
@click.option("--master", required=True, help="Host of `loadtest run --expect-workers`.")
@click.option("--port", type=click.IntRange(1, 65535), default=5557, show_default=True, help="Its port.")
@click.option("--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Workers to be.")
@click.option("--patience", default="30m", show_default=True, help="End after so long without a master.")
def worker(master: str, port: int, processes: int, patience: str) -> None:
    """Send requests for a run on another host, until that run is over. Needs no plan and no data.

    \b
    Example: OPENAI_API_KEY=… loadtest worker --master 10.0.0.5 --processes 4
    Exit codes: 0 the run is over, 1 no master for too long.
    """
    from loadtest.load.agent import run_worker
    from loadtest.plan.units import parse_duration

    try:
        patience_s = parse_duration(patience)
    except ValueError as e:
        raise click.UsageError(f"--patience: {e}") from e
    run_worker(master, port, processes=processes, patience_s=patience_s)


@cli.command()
@click.argument("plan", type=PLAN)
@click.option("--out", type=RUN, default=Path("reports"), show_default=True, help="Folder that gets the run folder.")
@click.option("--requests", type=click.IntRange(min=1), help="Prompts of each mix; all of them if left out.")
def probe(plan: Path, out: Path, requests: int | None) -> None:
    """Ask the configs of PLAN one prompt at a time, not streaming, and print whole-request times per kind of task.

    \b
    Example: loadtest probe plan.toml --requests 20
    This is no load test: it tells nothing about TTFT, TPOT or serving throughput, and passes no gate.
    Exit codes: 0 all cells were measured, 1 some were not.
    """
    from loadtest.commands import probe_plan

    sys.exit(probe_plan(plan, out, requests))


@cli.command()
@click.argument("plan", type=PLAN)
@click.option(
    "--config", "configs", multiple=True, help="Search this config only; may be given again. All if left out."
)
@click.option("--out", type=RUN, default=Path("reports"), show_default=True, help="Folder that gets the run folder.")
@click.option("--by", type=click.Choice(["concurrency", "rate"]), help="Which load, where the plan has both.")
@click.option("--max", "ceiling", type=float, help="Highest load to try; 1,024 times the plan's lowest if left out.")
@click.option(
    "--tolerance", type=float, default=0.1, show_default=True, help="Width of the interval, of its lower end."
)
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Of the whole interval.")
def capacity(
    plan: Path,
    configs: tuple[str, ...],
    out: Path,
    by: str | None,
    ceiling: float | None,
    tolerance: float,
    confidence: float,
) -> None:
    """Find the largest load of PLAN at which all criteria hold, per config, as an interval with its confidence.

    \b
    Example: loadtest capacity plan.toml --config eagle3 --max 256
    Exit codes: 0 found for every config, 99 a config fails at the lowest load, 98 not decided or simulated.
    """
    from loadtest.capacity.settings import Asked
    from loadtest.commands import search_capacity

    sys.exit(search_capacity(plan, out, configs, Asked(by, ceiling, tolerance, confidence)))


@cli.command()
@click.argument("run", type=RUN)
def merge(run: Path) -> None:
    """Turn the raw files of RUN into Parquet and .hlog. Reads raw files only; can be repeated at any time.

    \b
    Example: loadtest merge reports/20261129-120000-night
    """
    from loadtest.merge.merge import merge_run

    click.echo(merge_run(run).text())


@cli.command()
@click.argument("run", type=RUN)
@click.option("--slo", type=PLAN, help="Judge against this SLO file instead of the plan's own criteria.")
@click.option("--json", "as_json", is_flag=True, help="Print verdict.json.")
@click.option("--on-inconclusive", **ON_INCONCLUSIVE)
@click.option("--self-test", is_flag=True, help="Plant faults into a copy in memory and show that each is caught.")
def gate(run: Path, slo: Path | None, as_json: bool, on_inconclusive: str, self_test: bool) -> None:
    """Judge a finished RUN again, without a server; writes verdict.json and the reports.

    \b
    Example: loadtest gate reports/20261129-120000-night --slo slo.toml
             loadtest gate reports/20261129-120000-night --self-test
    The self-test writes nothing; its exit codes: 0 every planted fault was caught, 1 one was not.
    """
    from loadtest.commands import judge, slos_for
    from loadtest.judge.command import run_self_test

    if self_test:
        sys.exit(run_self_test(run, slos_for(run, slo), as_json))
    sys.exit(judge(run, slo=slo, as_json=as_json, on_inconclusive=on_inconclusive))


@cli.command()
@click.argument("run", type=RUN)
def report(run: Path) -> None:
    """Write the reports of RUN again from its Parquet and its verdict.json; judges nothing.

    \b
    Example: loadtest report reports/20261129-120000-night
    """
    from loadtest.merge.read import open_run
    from loadtest.report.manager import read_verdict, write_reports

    for path in write_reports(run, open_run(run), read_verdict(run / "verdict.json")):
        click.echo(path)


def main(argv: list[str] | None = None) -> None:
    """Entry point: runs a command and maps errors of our tree to exit codes, with one clear line on stderr."""
    from loadtest.judge.command import COMMANDS
    from loadtest.server.sim.command import sim_command

    for command in (sim_command, *COMMANDS):
        cli.add_command(command)
    try:
        sys.exit(cli.main(args=argv, prog_name="loadtest", standalone_mode=False) or EXIT_PASS)
    except LoadtestError as e:
        click.echo(f"loadtest: {e}", err=True)
        sys.exit(e.exit_code)
    except click.ClickException as e:
        e.show()
        sys.exit(EXIT_USAGE)
    except (KeyboardInterrupt, click.Abort):
        click.echo("loadtest: stopped; what was measured is kept, continue with `loadtest run --resume RUN`", err=True)
        sys.exit(EXIT_CRASH)
    except BrokenPipeError:
        # The reader of our output went away (head, less): not an error of the run.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_CRASH)
    except OSError as e:
        if e.filename is None or e.errno not in FILE_TROUBLE:
            raise
        click.echo(f"loadtest: {e.filename}: {e.strerror}; what was measured is kept", err=True)
        sys.exit(EXIT_CRASH)


if __name__ == "__main__":
    main()
