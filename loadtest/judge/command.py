"""The judge's own commands: self-test, compare, confirm, quality. No logic: each calls one function of this room."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from loadtest.errors import EXIT_CRASH, EXIT_PASS, InputError
from loadtest.merge.read import open_run
from loadtest.model import Slo, from_json

FILE = click.Path(path_type=Path, dir_okay=False)
RUN = click.Path(path_type=Path, file_okay=False)


def run_self_test(run: Path, slos: list[Slo], as_json: bool) -> int:
    """Print each planted fault and whether it was caught; the exit code: 0 all caught, 1 one was not."""
    from loadtest.judge.selftest import self_test, self_test_text
    from loadtest.model import to_json

    planted = self_test(open_run(run), slos)
    if as_json:
        click.echo(json.dumps(to_json(planted), ensure_ascii=False, indent=1))
    else:
        click.echo(self_test_text(planted))
    return EXIT_PASS if all(p.caught for p in planted) else EXIT_CRASH


@click.command("compare")
@click.argument("run_a", type=RUN)
@click.argument("run_b", type=RUN)
@click.option(
    "--allow", multiple=True, metavar="KEY", help="This may differ: plan, prompts, versions, gpus, model, host."
)
@click.option("--delta", type=float, default=0.05, show_default=True, help="Largest slow-down that is no regression.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole record.")
@click.option("--out", type=FILE, help="Write the record (JSON) to this file as well.")
def compare_command(
    run_a: Path, run_b: Path, allow: tuple[str, ...], delta: float, as_json: bool, out: Path | None
) -> None:
    r"""Say whether RUN_B (the new build) is slower than RUN_A, prompt by prompt, for two runs of the same plan.

    \b
    Example: loadtest compare reports/20261129-old reports/20261130-new --allow versions
    Exit codes: 0 no regression, 99 regression, 98 not known, 2 the runs may not be compared.
    """
    from loadtest.judge.compare import compare_runs

    found = compare_runs(open_run(run_a), open_run(run_b), delta=delta, allow=allow)
    record = json.dumps(found.to_json(), ensure_ascii=False, indent=1, allow_nan=False)
    if out is not None:
        try:
            out.write_text(record + "\n", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{out} cannot be written ({error.strerror}); give another --out") from error
    click.echo(record if as_json else found.text())
    sys.exit(found.exit_code)


@click.command("confirm")
@click.argument("run", type=RUN)
@click.option(
    "-o", "--output", type=FILE, default=Path("confirm.toml"), show_default=True, help="The plan; never overwritten."
)
@click.option("--config", help="Confirm this config instead of the best.")
def confirm_command(run: Path, output: Path, config: str | None) -> None:
    r"""Write the plan of a fresh run that confirms the best config of RUN: other seed, other prompts where possible.

    \b
    Example: loadtest confirm reports/20261129-120000-night -o confirm.toml && loadtest run confirm.toml
    Its prompt files are written beside it.
    """
    from loadtest.judge.confirm import write_confirm_plan

    data = open_run(run)
    click.echo(write_confirm_plan(data, slos_of(data.run), output, config))


@click.command("quality")
@click.argument("run", type=RUN)
@click.option("--jobs", type=click.IntRange(min=1), help="Answers run at the same time; all cores if left out.")
def quality_command(run: Path, jobs: int | None) -> None:
    r"""Run the unit tests of RUN's code prompts on the answers that it kept; the next gate takes them into account.

    \b
    Example: loadtest quality reports/20261129-120000-night && loadtest gate reports/20261129-120000-night
    This executes code that a model wrote: each answer in a process of its own, without network, in an empty folder,
    with limits on CPU, memory and time. That stops accidents, not attacks: use a machine that you can lose.
    """
    from loadtest.judge.unit_tests import run_unit_tests

    click.echo(run_unit_tests(open_run(run), jobs=jobs or 0))


def slos_of(run: dict[str, object]) -> list[Slo]:
    """The criteria that the run's plan named."""
    given = run.get("slos")
    return [from_json(Slo, s) for s in given] if isinstance(given, list) else []


COMMANDS = (compare_command, confirm_command, quality_command)
"""What the command line adds."""
