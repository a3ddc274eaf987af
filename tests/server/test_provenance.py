"""What servers disclose, and how it proves or contradicts what was asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.model import ConfigSpec, TargetSpec
from loadtest.server import gpu
from loadtest.server.attach import attach
from loadtest.server.disclosed import from_log, from_server_info, is_synthetic, lossy_modes
from loadtest.server.proof import Source, asked_for, prove
from loadtest.server.provenance import collect

DATA = Path(__file__).parent.parent / "data" / "server"
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 5}
TARGET = TargetSpec("models/gemma3-270m", served_name="gemma", max_model_len=2048, dtype="float32")


def info(name):
    return json.loads((DATA / "info" / f"{name}-server_info.json").read_text())


def log(name):
    return (DATA / "logs" / f"{name}-server.log").read_text()


def spec_config(speculative, **more):
    gamma = speculative["num_speculative_tokens"] if speculative else None
    return ConfigSpec("c", speculative["method"] if speculative else "none", gamma, speculative=speculative, **more)


def statuses(speculative, *sources):
    asked = asked_for(spec_config(speculative, launch={}), TARGET, "gemma")
    return {k: f["status"] for k, f in prove(asked, sources).items()}


@pytest.mark.parametrize("source", [from_server_info(info("ngram")), from_log(log("ngram"))])
def test_server_info_and_the_startup_log_prove_every_field(source):
    assert set(statuses(NGRAM, Source("s", source)).values()) == {"proven"}


@pytest.mark.parametrize("source", [from_server_info(info("baseline")), from_log(log("baseline"))])
def test_a_baseline_is_proven_to_have_no_speculation(source):
    assert source["speculative"] is None
    fact = prove({"speculative.method": "none"}, [Source("s", source)])["speculative.method"]
    assert (fact["status"], fact["value"]) == ("proven", "none")
    contradicted = {k for k, s in statuses(NGRAM, Source("s", source)).items() if s == "contradicted"}
    assert contradicted == {f"speculative.{k}" for k in NGRAM}


def test_a_draft_model_from_the_log_of_an_older_server():
    found = from_log(log("draft_model-0.26"))
    assert found["vllm_version"] == "0.26.0"
    assert found["speculative"] == {
        "method": "draft_model",
        "model": "/models/draft",
        "num_speculative_tokens": 4,
        "draft_tensor_parallel_size": 1,
    }
    assert (found["dtype"], found["max_model_len"], found["enable_prefix_caching"]) == ("bfloat16", 4096, False)


def test_a_server_info_without_values_says_nothing():
    assert from_server_info(info("tiny-eagle3")) == {}
    assert from_server_info(None) == {}
    assert from_server_info({"vllm_config": "VllmConfig(model=...)"}) == {}
    assert from_log("nothing of use\n") == {}


def test_without_disclosure_fields_are_unknown_and_metrics_only_do_not_contradict():
    assert set(statuses(NGRAM).values()) == {"unknown"}
    metrics = Source("/metrics", {"spec_families_present": True, "k_from_positions": 4})
    found = statuses(NGRAM, metrics)
    assert found["speculative.method"] == "not_contradicted"
    assert found["speculative.num_speculative_tokens"] == "proven"
    assert found["speculative.prompt_lookup_min"] == "unknown"


def test_k_and_missing_families_on_the_metrics_page_contradict():
    metrics = Source("/metrics", {"spec_families_present": True, "k_from_positions": 8})
    assert statuses(NGRAM, metrics)["speculative.num_speculative_tokens"] == "contradicted"
    bare = Source("/metrics", {"spec_families_present": False, "k_from_positions": None})
    assert statuses(NGRAM, bare)["speculative.method"] == "contradicted"
    assert statuses(None, bare)["speculative.method"] == "not_contradicted"


def test_one_contradicting_source_outweighs_one_that_agrees():
    good, bad = Source("a", {"model": "models/gemma3-270m"}), Source("b", {"model": "models/other"})
    fact = prove({"model": "models/gemma3-270m"}, [good, bad])["model"]
    assert fact == {"asked": "models/gemma3-270m", "value": "models/other", "source": "b", "status": "contradicted"}


@pytest.mark.parametrize(
    ("asked", "seen", "status"),
    [
        ("/models/x", "/models/x/", "proven"),
        ("/models/x", "/mnt/models/x", "not_contradicted"),
        ("org/name", "/root/.cache/hub/models--org--name/snapshots/0a1b", "not_contradicted"),
        ("/models/x", "/models/y", "contradicted"),
    ],
)
def test_model_paths(asked, seen, status):
    assert prove({"model": asked}, [Source("s", {"model": seen})])["model"]["status"] == status


def test_synthetic_and_lossy_modes_are_seen_wherever_they_stand():
    assert is_synthetic(from_server_info(info("synthetic"))["speculative"])
    assert is_synthetic(from_log(log("synthetic"))["speculative"])
    assert not is_synthetic(from_server_info(info("ngram"))["speculative"])
    assert lossy_modes(from_server_info(info("ngram"))["speculative"]) == []
    assert lossy_modes({"rejection_sample_method": "block"}) == []
    assert lossy_modes({"acceptance_method": "typical_acceptance_sampler"}) == [
        "acceptance_method=typical_acceptance_sampler"
    ]
    assert is_synthetic({"synthetic_acceptance_length": 2.5})


@pytest.fixture
def replica(make_web, reply):
    """replica(info name or None, metrics name, **more pages) -> a scripted vLLM."""

    def make(info_name, metrics, **pages):
        web = make_web()
        web.pages["/version"] = reply(b'{"version":"0.32.0"}')
        card = {"id": "gemma", "root": "models/gemma3-270m", "max_model_len": 2048}
        web.pages["/v1/models"] = reply(json.dumps({"data": [card]}).encode())
        web.pages["/metrics"] = reply((DATA / "metrics" / f"{metrics}-metrics-after.txt").read_bytes())
        if info_name:
            web.pages["/server_info?config_format=json"] = reply(json.dumps(info(info_name)).encode())
        web.pages |= pages
        return web

    return make


def attached(tmp_path, speculative, *webs, **kwargs):
    config = spec_config(speculative, urls=tuple(w.url for w in webs))
    return collect(config, TARGET, attach(config, TARGET), tmp_path, **kwargs)


def test_an_attached_server_without_dev_mode(replica, tmp_path):
    web = replica(None, "ngram")
    found = attached(tmp_path, NGRAM, web)
    facts = {k: f["status"] for k, f in found["facts"].items()}
    assert facts["speculative.method"] == "not_contradicted"
    assert facts["speculative.num_speculative_tokens"] == "proven"
    assert facts["speculative.prompt_lookup_max"] == "unknown"
    assert facts["dtype"] == "unknown"
    assert facts["model"] == facts["max_model_len"] == "proven"
    assert found["contradictions"] == []
    told = {"id": "gemma", "root": "models/gemma3-270m", "max_model_len": 2048, "revision": None}
    unread = dict.fromkeys(("architecture_sha256", "chat_template_sha256", "tokenizer_sha256"))
    assert found["model"] == told | unread, "a folder that is not here is not guessed at"
    assert set(found["serving"].values()) == {None}
    assert found["draft"] is None
    assert not any(path.endswith("completions") for path, _ in web.seen), "nothing is generated on foreign servers"
    json.dumps(found, allow_nan=False)


def test_replicas_that_differ_are_a_contradiction(replica, reply, tmp_path):
    other = replica("ngram", "ngram", **{"/version": reply(b'{"version":"0.26.0"}')})
    found = attached(tmp_path, NGRAM, replica("ngram", "ngram"), other)
    assert found["contradictions"] == ["vllm_version"]
    plain = replica(None, "baseline")
    found = attached(tmp_path, NGRAM, replica("ngram", "ngram"), plain)
    assert found["contradictions"] == ["speculative.method"]
    assert found["facts"]["speculative.method"]["source"] == f"{plain.url}/metrics"


def test_synthetic_acceptance_of_an_attached_server_is_marked(replica, tmp_path):
    found = attached(tmp_path, NGRAM, replica("synthetic", "ngram"))
    assert found["synthetic_acceptance"] is True
    assert found["lossy_modes"] == ["rejection_sample_method=synthetic"]
    assert found["contradictions"] == []


def test_a_simulated_server_cannot_pass_as_an_attached_real_one(replica, reply, tmp_path):
    by_version = replica(None, "ngram", **{"/version": reply(b'{"version":"0.32.0","simulated":true}')})
    found = attached(tmp_path, NGRAM, by_version)
    assert found["simulated"] is True
    assert "simulated" in found["facts"]
    by_header = replica(None, "ngram")
    by_header.pages["/version"].headers["X-Loadtest-Simulated"] = "1"
    assert attached(tmp_path, NGRAM, by_header)["simulated"] is True


def test_a_metrics_page_that_fails_is_noted_and_unknown(replica, reply, tmp_path):
    web = replica(None, "ngram", **{"/metrics": reply(b"Internal Server Error", 500)})
    found = attached(tmp_path, NGRAM, web)
    assert found["notes"] == [f"{web.url}/metrics: HTTP 500: Internal Server Error"]
    assert found["spec_families_present"] is None
    assert found["facts"]["speculative.method"]["status"] == "unknown"


def test_the_fingerprint_of_a_probe_request(replica, reply, tmp_path):
    body = b'{"choices":[],"system_fingerprint":"vllm-0.32.0-a0c3687b"}'
    web = replica(None, "ngram", **{"/v1/chat/completions": reply(body)})
    assert attached(tmp_path, NGRAM, web, probe=True)["fingerprint"] == "vllm-0.32.0-a0c3687b"


def fake_smi(folder, *rows):
    smi = folder / "nvidia-smi"
    smi.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
    smi.chmod(0o755)
    return smi


def test_nvidia_smi_rows_are_read_and_absence_is_not_zero(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu.gpus() is None
    assert gpu.memory_used_mib() is None
    smi = fake_smi(tmp_path, "0, NVIDIA H200, 143771, 570.86.15, 700.00, 1980", "1, X, 143771, 570.86.15, [N/A], 1980")
    first, second = gpu.gpus()
    assert first == {
        "index": 0,
        "name": "NVIDIA H200",
        "memory_total_mib": 143771,
        "driver": "570.86.15",
        "power_limit_w": 700,
        "max_sm_clock_mhz": 1980,
    }
    assert second["power_limit_w"] is None
    fake_smi(tmp_path, "12", "30")
    assert gpu.memory_used_mib() == 42
    fake_smi(tmp_path, "12", "[N/A]")
    assert gpu.memory_used_mib() is None
    smi.write_text("#!/bin/sh\nexit 9\n")
    assert gpu.gpus() is None


def test_only_the_visible_gpus_count(monkeypatch, tmp_path):
    """Two runs on two GPUs: what the other one holds must not look like memory that was not freed."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text('#!/bin/sh\ncase " $* " in *" --id=1 "*) echo 30 ;; *) echo 12; echo 30 ;; esac\n')
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpu.memory_used_mib() == 42
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpu.memory_used_mib() == 30
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-c7384736-a75d-5afc-978f-d2f1294409fd")
    assert gpu.memory_used_mib() == 42
