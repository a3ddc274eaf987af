"""Makes the environments of the other tools: `python benchmarks/peers_setup.py [tool …]`.

One virtual environment per tool (they contradict each other's pins), versions from peers.toml, about 2 GB in all. What
cannot be installed is named with the reason, which the benchmark's table repeats. `vllm bench serve` is taken from the
environment that tools/vllm_cpu/setup.sh makes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
VENVS = HERE / ".venvs"
WHY = "not-installed.txt"
"""File in a tool's folder that says why it could not be installed."""


def specs() -> dict[str, dict[str, Any]]:
    return tomllib.loads((HERE / "peers.toml").read_text())


def interpreter(version: str) -> str | None:
    """A working Python of this version: $PYTHON_3_12, one on PATH, or one that pyenv has."""
    named = os.environ.get(f"PYTHON_{version.replace('.', '_')}")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [named, shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)]
    check = f"import sys; sys.exit(sys.version_info[:2] != {tuple(map(int, version.split('.')))})"
    for candidate in filter(None, candidates):  # a version manager leaves names that only print an error
        if subprocess.run([candidate, "-c", check], capture_output=True, check=False).returncode == 0:
            return str(candidate)
    return None


def recipe(spec: dict[str, Any]) -> str:
    return json.dumps([spec["python"], spec.get("first", []), spec["packages"]])


def install(name: str, spec: dict[str, Any]) -> str | None:
    """Makes the environment where it is not there yet; -> None, or why it cannot be made."""
    folder, stamp = VENVS / name, VENVS / name / "recipe.json"
    if stamp.exists() and stamp.read_text() == recipe(spec):
        return None
    python = interpreter(spec["python"])
    if python is None:
        return f"needs Python {spec['python']}, which this machine does not have"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([python, "-m", "venv", folder], check=True)
    for packages in (spec.get("first"), spec["packages"]):
        if not packages:
            continue
        argv = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
            return f"pip install {' '.join(packages)}: {(errors or ['exit code ' + str(done.returncode)])[-1]}"
    stamp.write_text(recipe(spec))
    return None


def main() -> None:
    wanted = sys.argv[1:] or list(specs())
    for name in wanted:
        print(f"{name}: installing (a minute or two)", flush=True)
        why = install(name, specs()[name])
        (VENVS / name).mkdir(parents=True, exist_ok=True)
        if why:
            (VENVS / name / WHY).write_text(why + "\n")
        else:
            (VENVS / name / WHY).unlink(missing_ok=True)
        print(f"{name}: {why or 'ready'}", flush=True)


if __name__ == "__main__":
    main()
