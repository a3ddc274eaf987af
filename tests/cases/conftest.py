"""Locust runs and scrapers that the cases share: one start of each for the whole folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loadtest.model import ClientSpec
from loadtest.plan.datasets import load_dataset
from loadtest.server.scraper import start_scraper
from tests.cases import exchanges, kit
from tests.cases.answer_variants import ANSWERED
from tests.cases.kit import Run, Scrapers
from tests.cases.stream_variants import STREAMED


@pytest.fixture(scope="session")
def scrapers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scrapers]:
    folder = tmp_path_factory.mktemp("scrapers")
    held = Scrapers(lambda urls: start_scraper(urls, folder / str(len(urls)), timeout_s=2.0))
    yield held
    held.close()


@pytest.fixture(scope="session")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Every stream at once, one user each, through a whole Locust run; cell 1 is case 52."""
    folder = tmp_path_factory.mktemp("streams")
    scripts = {n: exchanges.case(n) for n in exchanges.STREAMS if n != "52"}
    scripts["49"] = exchanges.retokenised()
    for n in exchanges.PLAIN_SSE:
        for name, (change, more) in exchanges.CHANGES.items():
            scripts[f"{n} {name}"] = exchanges.changed(n, change, **more)
    for n in ("37", "38", "40"):
        scripts[f"{n} stretched"] = exchanges.changed(n, exchanges.stretched)
    scripts |= {f"v {name}": played for name, (played, _) in STREAMED.items()}
    files = {"streams": kit.write_prompts(folder, "streams", [(name, name) for name in scripts])}
    dead = {f"52/{i}": exchanges.case("52") for i in range(4)}
    files["dead"] = kit.write_prompts(folder, "dead", [(name, name) for name in dead])
    first = kit.make_cell(0, mix="streams", load=len(scripts))
    second = kit.make_cell(1, mix="dead", load=4)
    times = {"warmup_s": 0.0, "salt": "", "drain_s": 3.5}
    cells = [
        kit.changed_cell(first, measure_s=3.5, **times),
        kit.changed_cell(second, measure_s=1.0, **times | {"drain_s": 4.0}),
    ]
    return kit.locust_run(folder, scripts | dead, cells, files)


@pytest.fixture(scope="session")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Every plain answer in turn by one user; cell 1 repeats the two rows of case 56, cell 2 sends those of case 76."""
    folder = tmp_path_factory.mktemp("answers")
    scripts = exchanges.plain_answers() | {f"v {name}": played for name, (played, _) in ANSWERED.items()}
    files = {"answers": kit.write_prompts(folder, "answers", [(name, name) for name in scripts])}
    cells = [kit.sequential(0, "answers", len(scripts))]
    for index, (number, requests) in enumerate((("56", 4), ("76", 2)), 1):
        dataset = load_dataset(kit.folder_of(number) / "data.jsonl")
        files[number] = kit.write_dataset(folder, number, dataset)
        cells.append(kit.sequential(index, number, requests))
    client = ClientSpec(stream=False, read_timeout_s=kit.READ_TIMEOUT_S)
    return kit.locust_run(folder, scripts, cells, files, client=client, model_name="chat-small")
