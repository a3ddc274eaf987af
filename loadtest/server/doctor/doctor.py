"""All checks of a plan, and their text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from loadtest.errors import EXIT_PASS, EXIT_USAGE
from loadtest.model import SCHEMA_VERSION, ConfigSpec, TargetSpec
from loadtest.plan.cells import client_spec, expand, target_spec
from loadtest.plan.commandline import LAUNCH_DEFAULTS, serve_env
from loadtest.plan.schema import Plan
from loadtest.server.doctor.findings import Finding
from loadtest.server.doctor.installed import Installed, ask_installed
from loadtest.server.doctor.machine import check_gpu, check_machine
from loadtest.server.doctor.models import check_models
from loadtest.server.doctor.reach import check_attached, check_commands, check_ports, check_variables
from loadtest.server.doctor.software import check_vllm
from loadtest.server.launch import LOOPBACK
from loadtest.server.modelfolder import read_folder

WORDS = {"ok": "ok", "note": "note", "lost": "lost", "stop": "STOP"}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings about one plan, in the order of the checks."""

    plan: str
    vllm: tuple[Installed, ...]
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """2 where something will stop the run or a config of it, else 0."""
        return EXIT_USAGE if any(f.level == "stop" for f in self.findings) else EXIT_PASS

    def to_json(self) -> dict[str, Any]:
        """{schema, plan, ok, vllm: [{command, version, methods, problem}], findings: [...]}."""
        return {
            "schema": SCHEMA_VERSION,
            "plan": self.plan,
            "ok": self.exit_code == EXIT_PASS,
            "vllm": [
                {"command": list(v.command), "version": v.version, "methods": list(v.methods), "problem": v.problem}
                for v in self.vllm
            ],
            "findings": [asdict(f) for f in self.findings],
        }

    def text(self) -> str:
        """A line per finding, with what to do below it, and one sentence at the end."""
        lines = []
        for f in self.findings:
            where = f" [{f.config}]" if f.config else ""
            lines.append(f"{WORDS[f.level]:<5}{f.check}{where}: {f.seen}")
            lines += [f"     -> {f.todo}"] if f.todo else []
        stops, losses = (sum(f.level == level for f in self.findings) for level in ("stop", "lost"))
        end = f"{stops} will stop the run or a part of it" if stops else "nothing will stop the run"
        return "\n".join([*lines, f"doctor: {end}, {losses} will be missing from the result"])

    def to_text(self, as_json: bool) -> str:
        """For people or for machines."""
        return json.dumps(self.to_json(), ensure_ascii=False, indent=1) if as_json else self.text()


def examine(plan: Plan, out: Path, progress: Callable[[str], None] = lambda _: None) -> Diagnosis:
    """Look at everything that a run of the plan will need. Starts no server and sends no request of a measurement."""
    configs, cells = expand(plan)
    target, client = target_spec(plan), client_spec(plan)
    findings = check_machine(cells, client, out)
    findings += check_variables(client) + check_commands(configs) + check_ports(configs)
    launched = [c for c in configs if c.launch is not None]
    groups: dict[tuple[str, ...], list[ConfigSpec]] = {}
    for config in launched:
        groups.setdefault(tuple((LAUNCH_DEFAULTS | (config.launch or {}))["command"]), []).append(config)
    asked = []
    for command, group in groups.items():
        progress(f"asking `{' '.join(command)}` for its version and flags (this imports vLLM: half a minute)")
        asked.append(ask_installed(command, serve_env(group[0], target)))
        findings += check_vllm(asked[-1], group, target)
    here = [c for group, found in zip(groups.values(), asked, strict=True) if not found.remote for c in group]
    findings += _local(here, target)
    if len(here) < len(launched):
        findings.append(
            Finding("note", "model", "models and GPUs behind a command prefix are not seen from here: not checked")
        )
    findings += _proof(launched)
    for config in configs:
        if config.urls:
            findings += check_attached(config, target, client)
    if any(c.sim is not None for c in configs):
        findings.append(Finding("note", "server", "simulated servers need nothing and never give a deploy verdict"))
    findings += [Finding("note", "plan", text) for text in plan.warnings if "passed on" not in text]
    return Diagnosis(plan.name, tuple(asked), tuple(findings))


def _local(configs: list[ConfigSpec], target: TargetSpec) -> list[Finding]:
    """Models and GPUs of servers that run on this machine."""
    if not configs:
        return []
    findings = check_models(target, configs, serve_env(configs[0], target))
    drafts = [read_folder(str((c.speculative or {}).get("model"))) for c in configs]
    big = read_folder(target.model)
    weights = (big.weight_bytes if big else 0) + max((d.weight_bytes for d in drafts if d), default=0)
    return findings + check_gpu(weights)


def _proof(launched: list[ConfigSpec]) -> list[Finding]:
    """A server that others can reach gets no development mode, and so no /server_info."""
    findings = []
    for config in launched:
        launch = LAUNCH_DEFAULTS | (config.launch or {})
        if launch["host"] not in LOOPBACK:
            seen = (
                f"it listens on {launch['host']}, so VLLM_SERVER_DEV_MODE is not set: no /server_info, the log proves"
            )
            findings.append(Finding("note", "proof", seen, "", config.name))
    return findings
