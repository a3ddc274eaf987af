"""The HTTP surface: vLLM's routes, answered from the simulated engine."""

from __future__ import annotations

import asyncio
import time
import uuid
from random import Random
from typing import Any

import orjson
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from loadtest.server.sim.api_request import ApiError, GenerationRequest, parse_request
from loadtest.server.sim.engine import Engine
from loadtest.server.sim.faults import FaultPlan
from loadtest.server.sim.render import DONE, ENGINE_ERROR, Renderer, fingerprint
from loadtest.server.sim.runner import EngineRunner
from loadtest.server.sim.sequence import Group
from loadtest.server.sim.server_info import server_info
from loadtest.server.sim.sinks import ChoiceSink, Exchange

SIMULATED_HEADER = "x-loadtest-simulated"
MAX_BODY_BYTES = 64 * 1024 * 1024
"""vLLM has no limit; this one is far above any prompt that fits the context."""
_EVENT_STREAM = {"Content-Type": "text/event-stream; charset=utf-8"}


class Server:
    """One simulated server: engine, runner, faults and the handlers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.options = engine.options
        self.runner = EngineRunner(engine)
        self.faults = FaultPlan(self.options.faults)
        self.exchanges: set[Exchange] = set()
        self.exit = asyncio.Event()
        self._mark = fingerprint(self.options)
        self._started = int(time.time())
        self._permission = uuid.uuid4().hex[:16]

    def application(self) -> web.Application:
        """The aiohttp application with every route."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.on_response_prepare.append(_mark_simulated)
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completions),
                web.get("/v1/models", self._models),
                web.get("/version", self._version),
                web.get("/health", self._health),
                web.get("/load", self._load),
                web.get("/metrics", self._metrics),
                web.get("/server_info", self._server_info),
                web.post("/reset_prefix_cache", self._reset_prefix_cache),
            ]
        )
        return app

    def engine_death(self) -> None:
        """The engine process dies: streams get the error event, then the server exits, as vLLM's does."""
        self.runner.kill()
        for exchange in list(self.exchanges):
            exchange.die()
        asyncio.get_running_loop().call_later(0.5, self.exit.set)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def _generate(self, http: web.Request, *, chat: bool) -> web.StreamResponse:
        arrival_s = asyncio.get_running_loop().time()
        try:
            request = parse_request(
                await http.read(), chat=chat, options=self.options, request_id=http.headers.get("X-Request-Id")
            )
            fault = self.faults.next()
            if self.runner.dead or fault == "http500":
                raise ApiError(500, "InternalServerError", ENGINE_ERROR)
        except ApiError as error:
            return _json(error.body, error.status)
        if http.transport is None:
            raise ConnectionResetError
        exchange = Exchange(Renderer(request, self.options, self._mark), http.transport, fault)
        if fault == "empty":
            return await self._empty(http, exchange)
        self.exchanges.add(exchange)
        try:
            return await self._run(http, request, exchange, arrival_s)
        finally:
            self.exchanges.discard(exchange)
            exchange.done.cancel()

    async def _run(
        self, http: web.Request, request: GenerationRequest, exchange: Exchange, arrival_s: float
    ) -> web.StreamResponse:
        response = await self._open_stream(http) if request.stream else None
        group = Group(request.n)
        for index in range(request.n):
            sink = ChoiceSink(exchange, index, self.engine.parameters.merge_probability, Random(index))
            sink.sequence = self.engine.submit(
                request.prompt, request.stratum, sink, arrival_s,
                max_tokens=request.max_tokens, min_tokens=request.min_tokens, ignore_eos=request.ignore_eos,
                temperature=request.temperature, sampling_seed=request.seed, group=group, index=index,
            )  # fmt: skip
            exchange.sequences.append(sink.sequence)
        self.runner.wake()
        await exchange.done
        if response is not None:
            return response
        if exchange.failed:
            return _json(ApiError(500, "InternalServerError", ENGINE_ERROR).body, 500)
        return _json(exchange.renderer.body(exchange.sequences), 200)

    async def _open_stream(self, http: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=_EVENT_STREAM)
        response.enable_chunked_encoding()
        writer = await response.prepare(http)
        if writer is not None:
            writer.send_headers()  # vLLM's headers are on the wire before the first token too
        return response

    async def _empty(self, http: web.Request, exchange: Exchange) -> web.StreamResponse:
        if not exchange.stream:
            return _json(b"", 200)
        response = await self._open_stream(http)
        exchange.write(exchange.renderer.first(), DONE)
        return response

    async def _models(self, _: web.Request) -> web.Response:
        permission = {
            "id": f"modelperm-{self._permission}", "object": "model_permission", "created": self._started,
            "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True, "allow_search_indices": False,
            "allow_view": True, "allow_fine_tuning": False, "organization": "*", "group": None, "is_blocking": False,
        }  # fmt: skip
        model = {
            "id": self.options.model, "object": "model", "created": self._started, "owned_by": "vllm",
            "root": self.options.model, "parent": None, "max_model_len": self.options.max_model_len,
            "permission": [permission],
        }  # fmt: skip
        return _json({"object": "list", "data": [model]})

    async def _version(self, _: web.Request) -> web.Response:
        return _json({"version": self.options.version, "simulated": True})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=503 if self.runner.dead else 200)

    async def _load(self, _: web.Request) -> web.Response:
        return _json({"server_load": len(self.exchanges)})

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(body=self.engine.metrics.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _server_info(self, _: web.Request) -> web.Response:
        return _json(server_info(self.options, self.engine.parameters))

    async def _reset_prefix_cache(self, _: web.Request) -> web.Response:
        self.engine.prefix_cache.clear()
        return web.Response(status=200)


async def _mark_simulated(_: web.Request, response: web.StreamResponse) -> None:
    response.headers[SIMULATED_HEADER] = "1"


def _json(body: dict[str, Any] | bytes, status: int = 200) -> web.Response:
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    return web.Response(body=data, status=status, content_type="application/json")
