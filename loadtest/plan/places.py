"""Where the files lie that a plan names."""

from __future__ import annotations

from pathlib import Path

import loadtest

BUNDLED = Path(loadtest.__file__).parent / "datasets"
"""The data sets that come with the project; in the repository links to `datasets/`, in a wheel the files."""
DEFAULT_WARMUP = "datasets/warmup.jsonl"


def find_dataset(name: str, folder: Path | None) -> Path | None:
    """Where a data set lies: beside the plan, else in the current folder, else among the bundled ones; or None."""
    return next((path for path in dataset_places(name, folder) if path.is_file()), None)


def dataset_places(name: str, folder: Path | None) -> list[Path]:
    """The places that are looked at, in order."""
    path = Path(name).expanduser()
    if path.is_absolute():
        return [path]
    places = [folder / path] if folder is not None else []
    parts = path.parts[1:] if path.parts[:1] == ("datasets",) else path.parts
    return [*places, Path.cwd() / path, BUNDLED.joinpath(*parts)]
