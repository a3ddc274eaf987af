"""Replays scripted HTTP answers with their timing and their end, and keeps a log of what it really did.

    python replay_server.py SCRIPTS.json LOG.jsonl

Prints its port. A script is `{status, headers, headers_ms, chunks: [{t_ms, b64}], end, framing}`; times count from the
request. `framing`: "close" (the body ends with the connection), "chunked", "length" or "raw" (the pieces are the whole
response, head included). `end`: "eof", "reset" (RST) or
"timeout" (silence). The last message of a request names its script; one that was played before, and is not marked
`again`, meets silence. One JSON line per answer: {name, id, body, chunks_ns: [wall clock of each write]}.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

DEFAULT = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


class Replay:
    def __init__(self, scripts: dict[str, Any], log: Path) -> None:
        self.scripts = scripts
        self.played: set[str] = set()
        self.log = log.open("a", buffering=1)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                start = time.monotonic()
                headers = {k.lower(): v.strip() for k, _, v in (x.partition(":") for x in head.split("\r\n")[1:])}
                body = json.loads(await reader.readexactly(int(headers["content-length"])))
                name = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
                if not await self.play(name, headers, body, start, reader, writer):
                    break
        with contextlib.suppress(ConnectionError):
            writer.close()

    async def play(self, name, headers, body, start, reader, writer) -> bool:
        """-> whether the connection can be used again."""
        script = self.scripts.get(name)
        record = {"name": name, "id": headers.get("x-request-id"), "body": body, "chunks_ns": []}
        if script is None:
            data = json.dumps(DEFAULT).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(data))
            writer.write(data)
            self.log.write(json.dumps(record) + "\n")
            return True
        if name in self.played and not script.get("again"):
            await reader.read(1)
            return False
        self.played.add(name)
        framing = script.get("framing", "close")
        parts = [base64.b64decode(c["b64"]) for c in script["chunks"]]
        lines = [f"HTTP/1.1 {script['status']} X", *(f"{k}: {v}" for k, v in script["headers"].items())]
        extra = {"close": "connection: close", "chunked": "transfer-encoding: chunked"}
        lines.append(extra.get(framing, f"content-length: {sum(map(len, parts))}"))
        await self.until(start, script["headers_ms"])
        if framing != "raw":
            writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        for chunk, data in zip(script["chunks"], parts, strict=True):
            await self.until(start, chunk["t_ms"])
            record["chunks_ns"].append(time.time_ns())
            writer.write(b"%x\r\n%b\r\n" % (len(data), data) if framing == "chunked" else data)
        await writer.drain()
        self.log.write(json.dumps(record) + "\n")
        if script["end"] == "timeout":
            await reader.read(1)
        elif script["end"] == "reset":
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        elif framing == "chunked":
            writer.write(b"0\r\n\r\n")
            return True
        return framing == "length" and script["end"] == "eof"

    @staticmethod
    async def until(start: float, t_ms: float) -> None:
        await asyncio.sleep(max(0.0, start + t_ms / 1000 - time.monotonic()))


async def main(replay: Replay) -> None:
    server = await asyncio.start_server(replay.serve, "127.0.0.1", 0, limit=2**22, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(Replay(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))))
