"""The cause of a failed start from its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.server.diagnose import RULES, diagnose, tail

LOGS = Path(__file__).parent.parent / "data" / "server" / "logs"
HEAD = "(APIServer pid=1) INFO 11-29 16:22:57 [api_utils.py:286] non-default args: {'model': 'm'}\n"
FOOT = (
    "(APIServer pid=1) Traceback (most recent call last):\n"
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}\n"
)
CORE = "(EngineCore pid=26591) ERROR 11-29 16:23:50 [core.py:1344] "

LINES = [
    (
        "unsupported_method",
        "RuntimeError: Model does not support EAGLE3 interface but aux_hidden_state_outputs was requested",
    ),
    ("unsupported_method", "AssertionError: Synthetic acceptance not supported with CPU sampling"),
    ("bad_draft", "AssertionError: All drafting layers should belong to the same kv cache group"),
    (
        "bad_draft",
        "ValueError: There is no module or parameter named 'draft_id_to_target_id' in Eagle3LlamaForCausalLM",
    ),
    ("out_of_memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB."),
    (
        "out_of_memory",
        (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing the engine."
        ),
    ),
    (
        "out_of_memory",
        (
            "ValueError: Free memory on device (7.9/139.8 GiB) on startup is less than desired GPU memory utilization "
            "(0.9, 125.8 GiB)."
        ),
    ),
    (
        "out_of_memory",
        (
            "ValueError: To serve at least one request with the models's max seq len (131072), (4.11 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (4.0 GiB)."
        ),
    ),
    (
        "per_request_metrics_refused",
        (
            "ValueError: --per-request-spec-decode-metrics requires speculative decoding to be enabled "
            "(via --speculative-config)"
        ),
    ),
    ("missing_model", "OSError: /models/x is not a local folder and is not a valid model identifier listed on the hub"),
    ("no_device", "RuntimeError: Failed to infer device type"),
]


@pytest.mark.parametrize(("reason", "line"), LINES, ids=[line[:40] for _, line in LINES])
def test_known_causes_are_found_under_the_api_servers_own_complaint(reason, line):
    found = diagnose(HEAD + CORE + line + "\n" + FOOT, 1)
    assert found.reason == reason
    assert found.line == line[:297] + "…" if len(line) > 300 else line
    assert found.todo in str(found)
    assert line[:60] in str(found)


@pytest.mark.parametrize(
    ("reason", "log"),
    [
        (
            "port_in_use",
            "OSError: [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use",
        ),
        (
            "unknown_argument",
            "usage: vllm serve [model_tag]\nvllm: error: unrecognized arguments: --fingerprint-mode custom",
        ),
        ("unknown_argument", "vllm serve: error: argument --dtype: invalid choice: 'int3'"),
        ("command_not_found", "loadtest: cannot run 'vllm': [Errno 2] No such file or directory: 'vllm'"),
        ("command_not_found", "/usr/bin/python3: No module named vllm"),
    ],
)
def test_causes_before_any_engine(reason, log):
    assert diagnose(log, 2).reason == reason


def test_captured_failed_starts_name_the_engine():
    for name in ("eagle3-failed-start-server.log", "draft_model-hybridkv-fail-failed-start-server.log"):
        found = diagnose((LOGS / name).read_text(), 1)
        assert found.reason == "engine_start_failed"
        assert found.line.startswith("RuntimeError: Engine core initialization failed")


def test_a_captured_engine_death():
    found = diagnose((LOGS / "enginedeath-server.log").read_text(), 0)
    assert found.reason == "engine_dead"
    assert "EngineDeadError" in found.line


def test_the_root_cause_is_shown_for_an_engine_that_died():
    log = CORE + "RuntimeError: shape '[-1, 576]' is invalid for input of size 8832\n"
    log += (LOGS / "enginedeath-server.log").read_text()
    assert diagnose(log, 0).line == "RuntimeError: shape '[-1, 576]' is invalid for input of size 8832"


@pytest.mark.parametrize("name", ["ngram-server.log", "baseline-server.log", "synthetic-server.log"])
def test_a_healthy_log_shows_no_cause(name):
    text = (LOGS / name).read_text()
    assert "not supported with ngram" in text or "ngram" not in name
    assert diagnose(text).reason == "unknown"
    assert diagnose(text, timed_out_s=30).reason == "hang"


def test_without_a_known_text_the_first_exception_or_the_end_is_told():
    assert diagnose("x\nKeyError: 'architectures'\ny\n", 1).reason == "exception"
    killed = diagnose("Loading weights\n", 137)
    assert (killed.reason, killed.line) == ("killed", "Loading weights")
    assert "signal 9 (the kernel's out-of-memory killer?)" in killed.says
    assert diagnose("", 3).says == "the server ended with exit code 3"


def test_every_rule_says_what_to_do():
    for rule in RULES:
        assert rule.says
        assert len(rule.todo) > 20


def test_tail_is_the_end():
    assert tail("\n".join(map(str, range(100))), 3) == "97\n98\n99"
