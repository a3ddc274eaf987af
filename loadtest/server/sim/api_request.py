"""Reads a request body of the OpenAI API, with vLLM's errors. Fields that change nothing here are ignored."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import orjson

from loadtest.server.sim.options import SimOptions
from loadtest.server.sim.parameters import Stratum
from loadtest.server.sim.text import guess_stratum, tokenize

DEFAULT_COMPLETION_TOKENS = 16
"""What the completions API generates without max_tokens."""
MAX_N = 128
"""Bounds what one request can make the simulator do."""


class ApiError(Exception):
    """An HTTP error answer; `body` is vLLM's form of it."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A checked request. `prompt` are pseudo-tokens of the rendered prompt."""

    chat: bool
    request_id: str
    prompt: list[str]
    stratum: Stratum
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    temperature: float
    seed: int | None
    n: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    token_ids: bool
    logprobs: bool


def parse_request(raw: bytes, *, chat: bool, options: SimOptions, request_id: str | None) -> GenerationRequest:
    """The request in `raw`. Raises ApiError: 400 for what is malformed or too long, 404 for another model's name."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ApiError(
            400, "Bad Request", f"[{{'type': 'json_invalid', 'loc': ('body',), 'msg': 'JSON decode error: {error}'}}]"
        ) from error
    if not isinstance(body, dict):
        raise ApiError(
            400,
            "Bad Request",
            "[{'type': 'model_attributes_type', 'loc': ('body',), 'msg': 'Input should be a valid dictionary'}]",
        )
    model = body.get("model")
    if model not in (None, options.model):
        raise ApiError(404, "NotFoundError", f"The model `{model}` does not exist.", "model")
    visible, rendered = _chat_text(body.get("messages")) if chat else _completion_text(body.get("prompt"))
    prompt = tokenize(rendered)
    n = _number(body, "n", int, 1, 1, MAX_N)
    room = options.max_model_len - len(prompt)
    default = max(1, room) if chat else DEFAULT_COMPLETION_TOKENS
    name = "max_completion_tokens" if chat and body.get("max_completion_tokens") is not None else "max_tokens"
    max_tokens = _number(body, name, int, default, 1, 10**9)
    if max_tokens > room:
        raise ApiError(
            400,
            "BadRequestError",
            f"This model's maximum context length is {options.max_model_len} tokens. However, you requested "
            f"{max_tokens} output tokens and your prompt contains at least {len(prompt)} input tokens, for a total of "
            f"at least {max_tokens + len(prompt)} tokens. "
            "Please reduce the length of the input prompt or the number of requested output tokens.",
            "input_tokens",
        )
    stream_options = body.get("stream_options") or {}
    if not isinstance(stream_options, dict):
        raise _invalid("stream_options", stream_options, "Input should be a valid dictionary")
    if stream_options and not body.get("stream"):
        raise _invalid("stream_options", stream_options, "Stream options can only be defined when `stream=True`.")
    seed = body.get("seed")
    if seed is not None and not isinstance(seed, int):
        raise _invalid("seed", seed, "Input should be a valid integer")
    logprobs = body.get("logprobs")
    return GenerationRequest(
        chat=chat,
        request_id=("chatcmpl-" if chat else "cmpl-") + (request_id or uuid.uuid4().hex[:16]),
        prompt=prompt,
        stratum=guess_stratum(visible),
        max_tokens=max_tokens,
        min_tokens=_number(body, "min_tokens", int, 0, 0, max_tokens),
        ignore_eos=bool(body.get("ignore_eos")),
        temperature=_number(body, "temperature", float, 1.0, 0.0, 2.0),
        seed=seed,
        n=n,
        stream=bool(body.get("stream")),
        include_usage=bool(stream_options.get("include_usage")),
        continuous_usage=bool(stream_options.get("include_usage") and stream_options.get("continuous_usage_stats")),
        token_ids=bool(body.get("return_token_ids")),
        logprobs=bool(logprobs) if chat else logprobs is not None,
    )


def _chat_text(messages: Any) -> tuple[str, str]:
    """(text that people wrote, text with a chat template around it)."""
    if not isinstance(messages, list) or not messages:
        raise _invalid("messages", messages, "Input should be a list of at least one message")
    visible, rendered = [], []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _invalid("messages", message, "Input should be a message with a role")
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        if content is not None and not isinstance(content, str):
            raise _invalid("messages", message, "Input should be a valid string")
        visible.append(content or "")
        rendered.append(f"<|{message['role']}|>\n{content or ''}\n")
    return "\n".join(visible), "".join(rendered) + "<|assistant|>\n"


def _completion_text(prompt: Any) -> tuple[str, str]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        prompt = " ".join(f"t{token % 1000}" for token in prompt)
    if not isinstance(prompt, str) or not prompt:
        raise _invalid("prompt", prompt, "the simulated server takes one prompt: a string or a list of token ids")
    return prompt, prompt


def _number(body: dict[str, Any], name: str, kind: type, default: Any, low: float, high: float) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int if kind is int else int | float):
        raise _invalid(name, value, f"Input should be a valid {'integer' if kind is int else 'number'}")
    if not low <= value <= high:
        raise ApiError(400, "BadRequestError", f"{name} must be between {low:g} and {high:g}, got {value}.", name)
    return value


def _invalid(name: str, value: Any, message: str) -> ApiError:
    shown = repr(value)[:80]
    return ApiError(
        400,
        "Bad Request",
        f"[{{'type': 'value_error', 'loc': ('body', '{name}'), 'msg': {message!r}, 'input': {shown}}}]",
        name,
    )
