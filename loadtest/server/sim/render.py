"""JSON bodies and SSE events, key by key as vLLM 0.32 writes them (tests compare with captures in tests/data/sim).

Stream chunks are joined from prepared bytes: the event loop writes thousands of them per second.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Sequence as Seq
from typing import Any

import orjson

from loadtest.server.sim.api_request import GenerationRequest
from loadtest.server.sim.options import SimOptions
from loadtest.server.sim.sequence import FinishReason, Sequence
from loadtest.server.sim.text import token_id

DONE = b"data: [DONE]\n\n"
ENGINE_ERROR = "EngineCore encountered an issue. See stack trace (above) for the root cause."
ERROR_EVENT = (
    b'data: {"error": {"message": "'
    + ENGINE_ERROR.encode()
    + b'", "type": "InternalServerError", "param": null, "code": 500}}\n\n'
)


def fingerprint(options: SimOptions) -> str:
    """`system_fingerprint`: the asked one, else `sim-<version>-<hash>`; like vLLM's, the hash does not cover gamma."""
    if options.fingerprint is not None:
        return options.fingerprint
    return f"sim-{options.version}-{zlib.crc32(f'{options.model}|{options.method}'.encode()):08x}"


def logprob(token: str) -> float:
    """A made-up but stable log probability."""
    return -(1 + token_id(token)) / 100_000


class Renderer:
    """Everything that one request sends."""

    def __init__(self, request: GenerationRequest, options: SimOptions, mark: str) -> None:
        self.request, self.options, self._mark = request, options, mark
        self.created = int(time.time())
        chat = request.chat
        kind = b"chat.completion.chunk" if chat else b"text_completion"
        self._head = (
            b'data: {"id":' + orjson.dumps(request.request_id) + b',"object":"' + kind
            + b'","created":' + str(self.created).encode() + b',"model":' + orjson.dumps(options.model)
            + b',"choices":['
        )  # fmt: skip
        self._choice = [
            self._head + b'{"index":' + str(i).encode() + (b',"delta":{"content":' if chat else b',"text":')
            for i in range(request.n)
        ]
        self._close = b"}" if chat else b""
        # The usual chunk is one of two texts around the content: made once.
        self._plain_tail = self._tail(None, None, b"null", b"null")

    def first(self) -> bytes:
        """The role chunks of a chat stream; nothing for completions."""
        if not self.request.chat:
            return b""
        ids = orjson.dumps([token_id(t) for t in self.request.prompt]) if self.request.token_ids else b"null"
        parts = []
        for index in range(self.request.n):
            parts += [
                self._head, b'{"index":', str(index).encode(),
                b',"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]',
                self._usage(0) if self.request.continuous_usage else b"",
                b',"prompt_token_ids":', ids, b',"prompt_text":null}\n\n',
            ]  # fmt: skip
        return b"".join(parts)

    def chunk(
        self, index: int, sequence: Sequence, start: int, end: int, finish: FinishReason | None, total: int
    ) -> bytes:
        """Tokens `start` to `end` as one event; `total` is the cumulative count over all choices."""
        tokens = sequence.tokens[start:end]
        text = orjson.dumps(tokens[0] if len(tokens) == 1 else "".join(tokens))
        request = self.request
        if finish is None and not (request.token_ids or request.logprobs):
            if not request.continuous_usage:
                return self._choice[index] + text + self._plain_tail
            return self._choice[index] + text + self._plain_tail[:-3] + self._usage(total) + b"}\n\n"
        ids = orjson.dumps([token_id(t) for t in tokens]) if request.token_ids else b"null"
        logprobs = orjson.dumps(self._logprobs(sequence.tokens, start, end)) if request.logprobs else b"null"
        prompt_ids = (
            orjson.dumps([token_id(t) for t in request.prompt]) if request.token_ids and start == 0 else b"null"
        )
        usage = self._usage(total) if request.continuous_usage else b""
        mark = b',"system_fingerprint":' + orjson.dumps(self._mark) if finish and not request.include_usage else b""
        return self._choice[index] + text + self._tail(finish, prompt_ids, logprobs, ids)[:-3] + usage + mark + b"}\n\n"

    def _tail(self, finish: FinishReason | None, prompt_ids: bytes | None, logprobs: bytes, ids: bytes) -> bytes:
        reason = f'"{finish}"'.encode() if finish else b"null"
        head = self._close + b',"logprobs":' + logprobs + b',"finish_reason":' + reason
        if self.request.chat:
            return head + (b',"stop_reason":null' if finish else b"") + b',"token_ids":' + ids + b"}]}\n\n"
        return (
            head
            + b',"stop_reason":null,"prompt_token_ids":'
            + (prompt_ids or b"null")
            + b',"token_ids":'
            + ids
            + b"}]}\n\n"
        )

    def _usage(self, completion: int) -> bytes:
        prompt = len(self.request.prompt)
        details = b',"completion_tokens_details":null' if self.request.chat else b""
        return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d%b}' % (
            prompt,
            prompt + completion,
            completion,
            details,
        )

    def last(self, sequences: Seq[Sequence]) -> list[bytes]:
        """The usage chunk, where it was asked for, and [DONE]."""
        if not self.request.include_usage:
            return [DONE]
        body: dict[str, Any] = {"usage": self._usage_dict(sequences, full=False), "system_fingerprint": self._mark}
        metrics = self.metrics(sequences, full=False)
        if metrics:
            body["metrics"] = metrics
        return [self._head + b"]," + orjson.dumps(body)[1:] + b"\n\n", DONE]

    def body(self, sequences: Seq[Sequence]) -> bytes:
        """The answer without streaming."""
        request = self.request
        ids = [token_id(t) for t in request.prompt] if request.token_ids else None
        answer: dict[str, Any] = {
            "id": request.request_id,
            "object": "chat.completion" if request.chat else "text_completion",
            "created": self.created,
            "model": self.options.model,
            "choices": [self._full_choice(i, s, ids) for i, s in enumerate(sequences)],
            "service_tier": None,
            "system_fingerprint": self._mark,
            "usage": self._usage_dict(sequences, full=True),
        }
        if request.chat:
            answer |= {"prompt_logprobs": None, "prompt_token_ids": ids, "prompt_text": None}
        answer |= {
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": self.metrics(sequences, full=True),
        }
        return orjson.dumps(answer)

    def _full_choice(self, index: int, sequence: Sequence, prompt_ids: list[int] | None) -> dict[str, Any]:
        request, tokens = self.request, sequence.tokens[: sequence.delivered]
        text = "".join(tokens)
        choice: dict[str, Any] = {"index": index}
        if request.chat:
            nothing = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
            choice["message"] = {"role": "assistant", "content": text, **nothing}
        else:
            choice["text"] = text
        choice |= {
            "logprobs": self._logprobs(tokens, 0, len(tokens)) if request.logprobs else None,
            "finish_reason": sequence.finish,
            "stop_reason": None,
            "token_ids": [token_id(t) for t in tokens] if request.token_ids else None,
        }
        if not request.chat:
            choice |= {"prompt_logprobs": None, "prompt_token_ids": prompt_ids}
        return choice | {"routed_experts": None}

    def _logprobs(self, tokens: list[str], start: int, end: int) -> dict[str, Any]:
        part = tokens[start:end]
        if self.request.chat:
            entries = [{"token": t, "logprob": logprob(t), "bytes": list(t.encode())} for t in part]
            return {"content": [entry | {"top_logprobs": [entry]} for entry in entries]}
        offset = sum(map(len, tokens[:start]))
        offsets = []
        for token in part:
            offsets.append(offset)
            offset += len(token)
        values = [logprob(t) for t in part]
        return {
            "text_offset": offsets,
            "token_logprobs": values,
            "tokens": part,
            "top_logprobs": [{t: v} for t, v in zip(part, values, strict=True)],
        }

    def _usage_dict(self, sequences: Seq[Sequence], *, full: bool) -> dict[str, Any]:
        prompt, completion = len(self.request.prompt), sum(s.delivered for s in sequences)
        usage: dict[str, Any] = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
        }
        if self.options.prompt_tokens_details:
            cached = sequences[0].cached
            details: dict[str, Any] = {
                "cached_tokens": cached,
                "created_cache_tokens": None if cached else 0,
                "multimodal_tokens": None,
            }
            usage["prompt_tokens_details"] = details if full else {k: v for k, v in details.items() if v is not None}
        elif full:
            usage["prompt_tokens_details"] = None
        if full:
            usage["completion_tokens_details"] = None
        return usage

    def metrics(self, sequences: Seq[Sequence], *, full: bool) -> dict[str, Any] | None:
        """The `metrics` object; None with n > 1 or nothing to tell. `full` keeps the keys without a value."""
        options, level = self.options, self.options.per_request_metrics
        if len(sequences) != 1 or (level == "none" and not options.timing_metrics):
            return None
        sequence = sequences[0]
        result: dict[str, Any] = self._timing(sequence) if options.timing_metrics else dict.fromkeys(_TIMING)
        result["speculative_decoding"] = None if level == "none" else self._speculation(sequence, full)
        return result if full else {k: v for k, v in result.items() if v is not None}

    def _timing(self, sequence: Sequence) -> dict[str, Any]:
        count = sequence.delivered
        first_s = sequence.first_token_s - sequence.scheduled_s
        decode_s = sequence.last_token_s - sequence.first_token_s
        values = (
            first_s * 1e3,
            decode_s * 1e3,
            (sequence.scheduled_s - sequence.arrival_s) * 1e3,
            decode_s * 1e3 / (count - 1) if count > 1 else None,
            count / (first_s + decode_s) if first_s + decode_s > 0 else None,
        )
        return dict(zip(_TIMING, values, strict=True))

    def _speculation(self, sequence: Sequence, full: bool) -> dict[str, Any]:
        spec, gamma = sequence.spec, self.options.gamma
        histogram = [0] * (gamma + 1)
        for accepted in spec.step_accepted:
            histogram[accepted] += 1
        result: dict[str, Any] = {
            "mean_acceptance_length": 1 + spec.accepted / spec.steps if spec.steps else 1.0,
            "draft_acceptance_rate": spec.accepted / spec.drafted if spec.drafted else 0.0,
            "acceptance_histogram": histogram,
            "num_spec_steps": spec.steps,
            "num_accepted_draft_tokens": spec.accepted,
            "num_draft_tokens": spec.drafted,
            "num_spec_tokens": gamma,
        }
        detailed = self.options.per_request_metrics == "detailed" and spec.steps > 0
        if detailed or full:
            result["per_step_accepted"] = spec.step_accepted if detailed else None
            result["per_step_drafted"] = spec.step_drafted if detailed else None
        return result


_TIMING = ("time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second")
