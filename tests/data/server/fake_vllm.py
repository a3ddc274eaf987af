"""A stand-in for `vllm serve` that behaves badly on command. Standard library only; MODE in the environment:

ok | hang | dies | oom | bad_flag | ignores_term | dies_later | late | other_config | other_model | dead_engine
dies_under_load: ends like a dead engine at its fifth request; dies_at_first: at its first, answered with HTTP 500.
VLLM_API_KEY, as with vLLM: requests below /v1 without it get 401.
IGNORE_TERM=1 ignores SIGTERM in any mode.
CHILD=1 forks a child first that detaches itself and ignores SIGTERM; its pid goes to the file PIDS, with our own.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HERE = Path(__file__).parent
MODE = os.environ.get("MODE", "ok")
ARGV = sys.argv[1:]


def option(flag, default=None):
    return ARGV[ARGV.index(flag) + 1] if flag in ARGV else default


SPEC = json.loads(option("--speculative-config", "null"))
if MODE == "other_config":
    SPEC = {**(SPEC or {"method": "ngram"}), "num_speculative_tokens": 7}
MODEL = option("--served-model-name", ARGV[0] if MODE != "other_model" else "x")
if MODE == "other_model":
    MODEL = "something-else"
CHILD = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(120)"

pids = [os.getpid()]
if os.environ.get("CHILD"):
    pids.append(subprocess.Popen([sys.executable, "-S", "-c", CHILD], start_new_session=True).pid)
if "PIDS" in os.environ:
    Path(os.environ["PIDS"]).write_text(json.dumps(pids))

print(f"(APIServer pid=1) INFO 11-29 16:14:04 [api_utils.py:286] non-default args: {{'speculative_config': {SPEC!r}}}")
sys.stdout.flush()
if MODE == "hang":
    print("Loading safetensors checkpoint shards:  0% Completed", flush=True)
    time.sleep(120)
if MODE == "dies":
    print((HERE / "logs" / "eagle3-failed-start-server.log").read_text(), flush=True)
    sys.exit(1)
if MODE == "oom":
    print("(EngineCore pid=2) ERROR 11-29 16:15:00 [core.py:1344] EngineCore failed to start.")
    print(
        "(EngineCore pid=2) ERROR 11-29 16:15:00 [core.py:1344] torch.OutOfMemoryError: CUDA out of memory. "
        "Tried to allocate 224.00 MiB. GPU 0 has a total capacity of 11.53 GiB of which 187.75 MiB is free."
    )
    print("RuntimeError: Engine core initialization failed. See root cause above.", flush=True)
    sys.exit(1)
if MODE == "bad_flag":
    print("vllm: error: unrecognized arguments: --fingerprint-mode custom", flush=True)
    sys.exit(2)
if MODE == "ignores_term" or os.environ.get("IGNORE_TERM"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

PAGES = {
    "/health": b"",
    "/version": b'{"version":"0.32.0"}',
    "/v1/models": json.dumps(
        {"data": [{"id": MODEL, "root": ARGV[0], "max_model_len": int(option("--max-model-len", "2048"))}]}
    ).encode(),
    "/metrics": (HERE / "metrics" / f"{'ngram' if SPEC else 'baseline'}-metrics-before.txt").read_bytes(),
    "/v1/chat/completions": json.dumps(
        {"choices": [], "system_fingerprint": option("--fingerprint-value", "vllm-0.32.0-5616ca06")}
    ).encode(),
}
INFO = json.loads((HERE / "info" / "ngram-server_info.json").read_text())
INFO["vllm_config"]["speculative_config"] = SPEC
INFO["vllm_config"]["model_config"] |= {"model": ARGV[0], "served_model_name": MODEL}
if os.environ.get("VLLM_SERVER_DEV_MODE") == "1":
    PAGES["/server_info?config_format=json"] = json.dumps(INFO).encode()


requests = []  # of completions


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.command == "POST":
            requests.append(self.path)
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = PAGES.get(self.path)
        status = 200 if body is not None else 404
        if MODE in ("dead_engine", "dies_at_first") and self.path.startswith("/v1/chat"):
            status, body = 500, b'{"error":{"message":"EngineCore encountered an issue.","code":500}}'
        key = os.environ.get("VLLM_API_KEY")
        if key and self.path.startswith("/v1") and self.headers.get("Authorization") != f"Bearer {key}":
            status, body = 401, b'{"error":"Unauthorized"}'
        self.send_response(status)
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    do_POST = do_GET

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    def server_bind(self):
        """As vLLM does: two servers may share a port."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()


if MODE == "late":
    time.sleep(1.0)
server = Server((option("--host"), int(option("--port"))), Handler)
server.timeout = 0.05
started = time.monotonic()
while not (MODE == "dies_later" and time.monotonic() - started > 0.5) and not (
    (MODE == "dies_under_load" and len(requests) >= 5) or (MODE == "dies_at_first" and requests)
):
    server.handle_request()
print(
    "(APIServer pid=1) ERROR 11-29 16:37:00 [serving.py:500] vllm.v1.engine.exceptions.EngineDeadError: "
    "EngineCore encountered an issue. See stack trace (above) for the root cause.",
    flush=True,
)
sys.exit(1)
