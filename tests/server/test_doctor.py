"""`loadtest doctor` with stub executables: no vLLM, an old one, a right one give three different answers."""

from __future__ import annotations

import json
import os
import shlex
import socket
import stat
import sys
from pathlib import Path

import pytest

from loadtest.plan.loader import load_plan
from loadtest.server.doctor.doctor import examine
from loadtest.server.doctor.findings import Finding
from loadtest.server.doctor.installed import ask_installed
from loadtest.server.doctor.machine import check_gpu, kernel_stamp_works
from loadtest.server.doctor.models import check_models
from loadtest.server.modelfolder import read_folder

HELP = Path(__file__).parent.parent / "data" / "server" / "help" / "vllm-0.32.0-serve-help.txt"
OLD_LACKS = ("--per-request-spec-decode-metrics", "--enable-per-request-metrics", "--fingerprint", "--spec-method")


def executable(path: Path, body: str) -> Path:
    path.write_text(f"#!{sys.executable} -S\n{body}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def stub_vllm(folder: Path, version: str, lacks: tuple[str, ...] = (), whole_help: str = "--help=all") -> Path:
    """A `vllm` that tells its version and help as vLLM does: notices on stderr, one number on stdout."""
    folder.mkdir(exist_ok=True)
    page = "\n".join(line for line in HELP.read_text().splitlines() if not line.strip().startswith(lacks or ("\0",)))
    (folder / "help.txt").write_text(page)
    return executable(
        folder / "vllm",
        "import sys; args = sys.argv[1:]\n"
        f"open({str(folder / 'asked')!r}, 'a').write(repr(args) + chr(10))\n"
        "print('Triton is installed, but no backend 3.1.0', file=sys.stderr)\n"
        f"if args == ['--version']: print({version!r})\n"
        f"elif args == ['serve', {whole_help!r}]: print(open({str(folder / 'help.txt')!r}).read())\n"
        "else: sys.exit('vllm: error: unrecognized arguments: ' + ' '.join(args))\n",
    )


def model_folder(path: Path, vocab_size: int = 32, tokens: tuple[str, ...] = ("a", "b"), **config: object) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"vocab_size": vocab_size, **config}))
    (path / "model.safetensors").write_bytes(b"x" * 1000)
    (path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {t: i for i, t in enumerate(tokens)}}}))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    return path


@pytest.fixture
def plan_of(tmp_path):
    """plan_of(command, **launch) -> a plan with a baseline and an n-gram config on a free port."""
    (tmp_path / "p.jsonl").write_text('{"prompt": "Hello there"}\n')
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]

    def make(command, speculative='{ method = "ngram", num_speculative_tokens = 4 }', target="", client="", **launch):
        model = tmp_path / "target"
        if not model.exists():
            model_folder(model, max_position_embeddings=4096)
        more = "".join(f", {k} = {v}" for k, v in launch.items())
        table = f"launch = {{ port = {port}, command = {json.dumps(list(map(str, command)))}{more} }}"
        path = tmp_path / "plan.toml"
        path.write_text(
            f'schema = 1\n[target]\nmodel = "{model}"\n{target}\n[[config]]\nname = "baseline"\n{table}\n'
            f'[[config]]\nname = "spec"\n{table}\nspeculative = {speculative}\n'
            '[[mix]]\nname = "m"\nparts = [{ dataset = "p.jsonl" }]\n[load]\nconcurrency = [4]\n'
            f'[[sampling]]\nname = "greedy"\ntemperature = 0.0\nmax_tokens = 8\n{client}\n'
        )
        return load_plan(path)

    return make


def of(found, check, level=None):
    return [f for f in found.findings if f.check == check and (level is None or f.level == level)]


def test_without_vllm_it_says_how_to_get_one_and_stops(plan_of, tmp_path):
    found = examine(plan_of([tmp_path / "none" / "vllm", "serve"]), tmp_path)
    assert found.exit_code == 2
    (answer,) = of(found, "vllm")
    assert answer.level == "stop"
    assert "cannot be run: No such file or directory" in answer.seen
    assert all(way in answer.todo for way in ("Install vLLM", "launch.command", "url", "loadtest demo"))
    assert not of(found, "flags"), "nothing is claimed about flags that nobody told"
    assert found.to_json()["vllm"][0]["version"] is None


def test_an_old_vllm_lacks_flags_and_each_says_what_is_lost(plan_of, tmp_path):
    vllm = stub_vllm(tmp_path / "old", "0.23.0", lacks=OLD_LACKS)
    found = examine(plan_of([vllm, "serve"]), tmp_path)
    assert found.exit_code == 2
    stops = {(f.config, f.seen.split(" has no ")[1].split(";")[0]): f.todo for f in of(found, "flags", "stop")}
    assert set(stops) == {
        ("spec", "--per-request-spec-decode-metrics"),
        *((c, f) for c in ("baseline", "spec") for f in ("--enable-per-request-metrics", "--fingerprint-mode")),
    }
    told = stops["spec", "--per-request-spec-decode-metrics"]
    assert 'launch.per_request_spec_metrics = "none"' in told
    assert "accepted tokens of each request" in told
    (note,) = of(found, "method")
    assert (note.level, "does not list its speculative methods" in note.seen) == ("note", True)


def test_an_old_vllm_with_the_flags_switched_off_runs_and_loses_figures(plan_of, tmp_path):
    vllm = stub_vllm(tmp_path / "old", "0.23.0", lacks=OLD_LACKS)
    off = {"per_request_spec_metrics": '"none"', "per_request_metrics": "false", "fingerprint": "false"}
    found = examine(plan_of([vllm, "serve"], **off), tmp_path)
    assert found.exit_code == 0, found.text()
    lost = [f.seen for f in of(found, "flags", "lost")]
    assert len(lost) == 3
    assert any("accepted tokens of each request" in s and "vLLM 0.23.0 has no" in s for s in lost)
    assert "nothing will stop the run, 3 will be missing" in found.text() or of(found, "cores", "lost")


def test_a_right_vllm_is_fine_and_told_by_version_and_method(plan_of, tmp_path):
    vllm = stub_vllm(tmp_path / "new", "0.32.0+cpu")
    found = examine(plan_of([vllm, "serve"]), tmp_path)
    assert found.exit_code == 0, found.text()
    assert of(found, "vllm")[0].seen.startswith("0.32.0+cpu by")
    assert of(found, "method")[0].seen == "ngram with 4 draft tokens"
    (told,) = of(found, "flags")
    assert (told.level, told.config) == ("ok", "baseline")
    assert "does not get --per-request-spec-decode-metrics" in told.seen
    assert "mtp" in found.vllm[0].methods
    assert json.loads(found.to_text(True))["ok"] is True


def test_what_the_right_vllm_does_not_know(plan_of, tmp_path):
    vllm = stub_vllm(tmp_path / "new", "0.32.0")
    plan = plan_of(
        [vllm, "serve"], '{ method = "ngramm", num_speculative_tokens = 4, tree_width = 3 }',
        'max_model_len = 8192\nargs = ["--no-such-flag", "--enforce-eager"]',
        '[client]\nheaders_env = { X-Key = "NO_K" }',
    )  # fmt: skip
    found = examine(plan, tmp_path)
    assert "has no method 'ngramm'" in of(found, "method", "stop")[0].seen
    assert {f.seen.split()[4] for f in of(found, "flags", "stop")} == {"--no-such-flag;"}
    (parameter,) = of(found, "parameters")
    assert parameter.level == "note"
    assert "`tree_width` is not known" in parameter.seen
    assert "installed: 0.32.0" in parameter.seen
    assert "made for 4096 positions" in of(found, "model", "stop")[0].seen
    assert of(found, "environment", "stop")[0].todo == "Export NO_K"


def test_a_taken_port_is_named_with_its_owner(plan_of, tmp_path):
    plan = plan_of([stub_vllm(tmp_path / "new", "0.32.0"), "serve"])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", plan.config[0].launch.port))
        taken.listen()
        found = examine(plan, tmp_path)
    (port,) = of(found, "port")
    assert (port.level, f"pid {os.getpid()}" in port.seen) == ("stop", True)


def test_questions_go_through_a_command_prefix_and_ssh_gets_quoted_words(plan_of, tmp_path):
    """ssh joins its words for a shell, so `{"method": …}` must reach the other side in one piece."""
    vllm = stub_vllm(tmp_path / "far", "0.31.0", whole_help="--help")
    ssh = executable(tmp_path / "ssh", "import os, sys; os.execv('/bin/sh', ['sh', '-c', ' '.join(sys.argv[2:])])\n")
    plan = plan_of([ssh, "box", vllm, "serve"])
    found = examine(plan, tmp_path)
    assert found.vllm[0].remote
    assert found.vllm[0].version == "0.31.0"
    assert found.exit_code == 0, found.text()
    assert any("not seen from here" in f.seen for f in of(found, "model"))
    asked = (tmp_path / "far" / "asked").read_text().splitlines()
    assert "['serve', '--help']" in asked, "versions before --help=all are asked again"
    from loadtest.plan.cells import config_specs, target_spec
    from loadtest.plan.commandline import serve_argv

    argv = serve_argv(config_specs(plan)[1], target_spec(plan))
    far = shlex.split(" ".join(argv[2:]))
    assert json.loads(far[far.index("--speculative-config") + 1]) == plan.config[1].speculative
    plain = serve_argv(config_specs(plan_of([vllm, "serve"]))[1], target_spec(plan))
    assert far[1:] == plain[1:], "only ssh needs quotes"


def test_a_command_that_hangs_or_fails_is_no_exception(tmp_path):
    failing = executable(tmp_path / "vllm", "import sys; sys.exit('ImportError: libcudart.so.12')\n")
    assert ask_installed([str(failing), "serve"]).problem == "ended with code 1: ImportError: libcudart.so.12"
    mute = executable(tmp_path / "mute", "")
    assert ask_installed([str(mute), "serve"]).problem == "its help lists no flags"


def check_pair(tmp_path, method="draft_model", big=None, small=None, **extra):
    from loadtest.model import ConfigSpec, TargetSpec

    target, draft = model_folder(tmp_path / "big", **(big or {})), model_folder(tmp_path / "small", **(small or {}))
    spec = {"method": method, "model": str(draft), "num_speculative_tokens": 2, **extra}
    config = ConfigSpec("d", method, 2, speculative=spec, launch={})
    return [f for f in check_models(TargetSpec(str(target)), [config], {}) if f.check == "vocabulary"]


@pytest.mark.parametrize(
    ("kwargs", "level", "words"),
    [
        ({}, "ok", "have 32 tokens"),
        ({"small": {"vocab_size": 31}}, "stop", "the target has 32 tokens, the draft 31"),
        ({"small": {"vocab_size": 31}, "use_heterogeneous_vocab": True}, "note", "the draft 31"),
        ({"small": {"tokens": ("b", "a")}}, "stop", "tokenizer.json differs"),
        ({"big": {"text_config": {"vocab_size": 9}, "vocab_size": None}}, "stop", "the target has 9 tokens"),
        ({"small": {"vocab_size": None}}, "note", "not checked"),
    ],
)
def test_vocabularies_of_target_and_draft(tmp_path, kwargs, level, words):
    (found,) = check_pair(tmp_path, **kwargs)
    assert (found.level, words in found.seen) == (level, True), found


def test_a_head_for_another_hidden_size_is_noted(tmp_path):
    found = check_pair(tmp_path, "eagle3", {"hidden_size": 64}, {"hidden_size": 32})
    assert [f.level for f in found] == ["ok", "note"]
    assert "hidden size is 64, that of the head 32" in found[1].seen


def test_models_that_are_not_there(tmp_path):
    from loadtest.model import TargetSpec

    (path,) = check_models(TargetSpec(str(tmp_path / "none")), [], {})
    assert path.level == "stop"
    (hub,) = check_models(TargetSpec("owner/name"), [], {"HF_HUB_OFFLINE": "1"})
    assert (hub.level, "cache" in hub.seen) == ("note", True)
    empty = model_folder(tmp_path / "empty")
    (empty / "model.safetensors").unlink()
    (weights,) = check_models(TargetSpec(str(empty)), [], {})
    assert (weights.level, "no weight file" in weights.seen) == ("stop", True)


def test_facts_of_a_model_folder(tmp_path):
    folder = model_folder(tmp_path / "m", torch_dtype="bfloat16", architectures=["LlamaForCausalLM"])
    facts = read_folder(str(folder))
    assert (facts.vocab_size, facts.weight_bytes, facts.dtype) == (32, 1000, "bfloat16")
    told = facts.chat_template_sha256
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert read_folder(str(folder)).chat_template_sha256 == told, "the same template in either place"
    (folder / "chat_template.jinja").write_text("{{ other }}")
    assert read_folder(str(folder)).chat_template_sha256 not in (told, None)
    (folder / "config.json").write_text("{")
    assert read_folder(str(folder)) is None


@pytest.mark.parametrize(
    ("page", "weights", "level"),
    [("0, 70000, 80000\n", 2**30, "lost"), ("0, 79500, 80000\n", 2**30, "ok"), ("0, 500, 80000\n", 2**31, "stop")],
)
def test_gpu_memory_against_the_weights(tmp_path, monkeypatch, page, weights, level):
    executable(tmp_path / "nvidia-smi", f"import sys; print({page!r})\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (found,) = check_gpu(weights)
    assert found.level == level, found


def test_no_gpu_is_a_note_and_not_zero_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check_gpu(2**40) == [
        Finding("note", "gpu", "nvidia-smi does not answer: no GPU of NVIDIA, or no driver; not checked")
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps arrivals on TCP")
def test_linux_stamps_arrivals_on_loopback():
    assert kernel_stamp_works()


def test_attached_servers_are_asked_now(make_web, reply, tmp_path):
    (tmp_path / "p.jsonl").write_text('{"prompt": "Hello there"}\n')
    web = make_web()
    web.pages["/v1/models"] = reply(b'{"data": [{"id": "m"}]}')
    web.pages["/metrics"] = reply(b"# TYPE router_requests counter\nrouter_requests 3\n")

    def plan(url):
        path = tmp_path / "plan.toml"
        path.write_text(
            f'schema = 1\n[target]\nmodel = "m"\n[[config]]\nname = "baseline"\nurl = "{url}"\n'
            '[[mix]]\nname = "m"\nparts = [{ dataset = "p.jsonl" }]\n[load]\nconcurrency = [1]\n'
            '[[sampling]]\nname = "greedy"\ntemperature = 0.0\nmax_tokens = 8\n'
        )
        return load_plan(path)

    found = examine(plan(web.url), tmp_path)
    assert found.exit_code == 0, found.text()
    assert "a gateway's or router's page?" in of(found, "metrics", "lost")[0].seen
    assert of(found, "proof", "lost")
    gone = examine(plan("http://127.0.0.1:9"), tmp_path)
    assert gone.exit_code == 2
    assert "http://127.0.0.1:9" in of(gone, "server", "stop")[0].seen
