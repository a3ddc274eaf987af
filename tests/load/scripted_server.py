"""A small OpenAI-like server for tests: raw asyncio, its own log of every request as the truth to compare with.

    python scripted_server.py --log FILE [--step-ms 5] [--tokens 6]

Prints its port. One JSON line per request in the log: {id, connection, auth, prompt, model, temperature, stream, t_ns}.
A prompt with HANG in it gets two tokens and then silence, one with SLOW ten times the step, one with FAIL HTTP 500.
Answers carry a speculation block with S=2, D=8, A=3. Also serves /v1/models and a tiny /metrics.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time
from pathlib import Path

BLOCK = {
    "num_spec_steps": 2,
    "num_draft_tokens": 8,
    "num_accepted_draft_tokens": 3,
    "num_spec_tokens": 4,
    "acceptance_histogram": [0, 1, 1, 0, 0],
}


class Server:
    def __init__(self, log: str, step_s: float, tokens: int) -> None:
        self.log = Path(log).open("a", buffering=1)  # noqa: SIM115
        self.step_s, self.tokens, self.connections = step_s, tokens, 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                first, *lines = head.split("\r\n")
                headers = {k.lower(): v.strip() for k, v in (x.split(":", 1) for x in lines if ":" in x)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await self.answer(number, first.split()[1], headers, body, writer)
        with contextlib.suppress(ConnectionError):
            writer.close()

    async def answer(self, number, path, headers, body, writer) -> None:
        if path.endswith("/models"):
            return self.plain(writer, 200, json.dumps({"object": "list", "data": [{"id": "scripted"}]}))
        if path == "/metrics":
            return self.plain(writer, 200, "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n")
        if not path.endswith("/completions"):
            return self.plain(writer, 404, json.dumps({"error": {"message": f"no {path}"}}))
        request = json.loads(body)
        text = request["messages"][-1]["content"] if "messages" in request else request["prompt"]
        record = {"id": headers.get("x-request-id"), "connection": number, "auth": headers.get("authorization")}
        record |= {"prompt": text, "model": request["model"], "temperature": request["temperature"]}
        record |= {"messages": request.get("messages")}
        record |= {"stream": request["stream"], "max_tokens": request["max_tokens"], "t_ns": time.time_ns()}
        self.log.write(json.dumps(record) + "\n")
        if "FAIL" in text:
            return self.plain(writer, 500, json.dumps({"error": {"message": "scripted failure"}}))
        if not request["stream"]:
            await asyncio.sleep(self.step_s * self.tokens)
            message = {"role": "assistant", "content": "t" * self.tokens}
            choice = {"index": 0, "message": message, "finish_reason": "length"}
            return self.plain(writer, 200, json.dumps(self.chunk(choice, self.tokens)))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for i in range(self.tokens):
            await asyncio.sleep(self.step_s * (10 if "SLOW" in text else 1))
            last = i == self.tokens - 1
            choice = {"index": 0, "delta": {"content": "t"}, "finish_reason": "length" if last else None}
            self.event(writer, json.dumps(self.chunk(choice, i + 1)))
            await writer.drain()
            if "HANG" in text and i == 1:
                await asyncio.sleep(60)
        final = self.chunk(None, self.tokens) | {"metrics": {"speculative_decoding": BLOCK}}
        self.event(writer, json.dumps(final))
        self.event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        return await writer.drain()

    @staticmethod
    def chunk(choice, done: int) -> dict:
        usage = {"prompt_tokens": 5, "completion_tokens": done, "total_tokens": 5 + done}
        return {"id": "x", "model": "scripted", "choices": [choice] if choice else [], "usage": usage}

    @staticmethod
    def event(writer, data: str) -> None:
        payload = f"data: {data}\n\n".encode()
        writer.write(b"%x\r\n%b\r\n" % (len(payload), payload))

    @staticmethod
    def plain(writer, status: int, text: str) -> None:
        data = text.encode()
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(data), data))


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log", required=True)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--tokens", type=int, default=6)
    args = parser.parse_args()
    server = await asyncio.start_server(
        Server(args.log, args.step_ms / 1000, args.tokens).serve, args.host, 0, limit=2**20, backlog=1024
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
