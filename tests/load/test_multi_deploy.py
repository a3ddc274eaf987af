"""The manifests: valid for Kubernetes, and they fit each other and the command line."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from loadtest.cli import cli
from loadtest.plan.cells import expand
from loadtest.plan.loader import load_plan

DEPLOY = Path(__file__).parents[2] / "deploy"
FOLDER = DEPLOY / "kubernetes"
VERSION = "1.29"
"""The oldest that is worth supporting; the fields are in all later ones too."""


def documents(path: Path) -> list[dict[str, Any]]:
    return [d for d in yaml.safe_load_all(path.read_text()) if d is not None]


MANIFESTS = {
    f"{path.stem}-{d['kind']}": d
    for path in sorted(FOLDER.glob("*.yaml"))
    for d in documents(path)
    if d["kind"] != "Kustomization"
}


def pod(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = MANIFESTS[name]["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_what_the_api_server_takes(name: str) -> None:
    """The API server's own schema, unknown fields refused."""
    kubernetes_validate.validate(MANIFESTS[name], VERSION, strict=True)
    assert MANIFESTS[name]["kind"] == "Namespace" or MANIFESTS[name]["metadata"]["namespace"] == "loadtest"


def test_a_broken_manifest_would_be_refused() -> None:
    broken = {**MANIFESTS["workers-Deployment"], "spec": {"replica": 4}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSION, strict=True)


def test_the_workers_are_as_many_as_the_master_expects_and_find_it() -> None:
    args = pod("master-Job")["containers"][0]["args"]
    deployment, service = MANIFESTS["workers-Deployment"], MANIFESTS["network-Service"]
    assert int(args[args.index("--expect-workers") + 1]) == deployment["spec"]["replicas"]
    worker_args = pod("workers-Deployment")["containers"][0]["args"]
    assert worker_args[worker_args.index("--master") + 1] == service["metadata"]["name"]
    assert service["spec"]["ports"][0]["port"] == 5557  # the default of both commands
    labels = MANIFESTS["master-Job"]["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    policy = MANIFESTS["network-NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    let_in = policy["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    assert let_in.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


def test_volumes_and_plan_are_there() -> None:
    for name in ("master-Job", "ci-job-Job"):
        (container,) = pod(name)["containers"]
        assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod(name)["volumes"]}
        assert container["args"][1] == "/plan/plan.toml"
    claims = [
        v["persistentVolumeClaim"]["claimName"]
        for v in pod("master-Job")["volumes"]
        if len(v) and "persistentVolumeClaim" in v
    ]
    assert claims == [MANIFESTS["reports-PersistentVolumeClaim"]["metadata"]["name"]]


def test_the_plan_in_the_config_map_is_a_plan(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(MANIFESTS["plan-ConfigMap"]["data"]["plan.toml"])
    configs, cells = expand(load_plan(tmp_path / "plan.toml"))
    assert [c.name for c in configs] == ["baseline", "ngram"]
    assert len(cells) == 2 * 2 * 3 * 3


@pytest.mark.parametrize("name", ["master-Job", "ci-job-Job", "workers-Deployment"])
def test_the_commands_exist(name: str) -> None:
    """Every option of a manifest is one of the command line."""
    command, *rest = pod(name)["containers"][0]["args"]
    told = CliRunner().invoke(cli, [command, "--help"])
    assert told.exit_code == 0
    assert all(arg in told.output for arg in rest if arg.startswith("--"))


@pytest.mark.parametrize("name", ["master-Job", "ci-job-Job", "workers-Deployment"])
def test_no_cpu_limit_and_no_rights(name: str) -> None:
    """A CPU limit would stall the client; a run is not repeated by the cluster."""
    spec = pod(name)
    (container,) = spec["containers"]
    assert "cpu" not in container["resources"]["limits"]
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    if name.endswith("Job"):
        assert MANIFESTS[name]["spec"]["backoffLimit"] == 0


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_builds_all_but_the_ci_job() -> None:
    built = subprocess.run(["kubectl", "kustomize", str(FOLDER)], capture_output=True, text=True, timeout=60)
    assert built.returncode == 0, built.stderr
    found = {d["kind"]: d for d in yaml.safe_load_all(built.stdout)}
    assert set(found) == {
        *("Namespace", "ConfigMap", "PersistentVolumeClaim", "Service", "NetworkPolicy", "Deployment", "Job")
    }
    assert found["Job"]["spec"]["template"]["spec"]["containers"][0]["image"] == "loadtest:0.1.0"
