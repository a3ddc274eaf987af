"""Plain answers beside the published cases: errors with HTTP 200, odd choices, speculation blocks of any shape."""

from __future__ import annotations

import gzip
import json
from typing import Any

from tests.cases.exchanges import ROLE, TAIL, A, B, Script, at, json_answer, usage
from tests.cases.stream_variants import BLOCK, NO_BLOCK, Has


def message(content: Any = "ab", *, tokens: Any = 2, finish: Any = "stop", **fields: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage(tokens), **fields}


def plain(value: Any, **more: Any) -> Script:
    return json_answer(value if isinstance(value, str | bytes) else json.dumps(value), **more)


def spec(steps: Any = 2, drafted: Any = 8, accepted: Any = 3, **more: Any) -> dict[str, Any]:
    block = {"num_spec_steps": steps, "num_draft_tokens": drafted, "num_accepted_draft_tokens": accepted, **more}
    return message(metrics={"speculative_decoding": block})


PLAIN_OK = {"outcome": "ok", "output_text": "ab", "completion_tokens": 2, "error": None, "ttft_us": None}


def refused(words: str = "") -> dict[str, Any]:
    return {"outcome": "bad_payload", "error": Has(words), "completion_tokens": None}


def told_tools() -> dict[str, Any]:
    answer = message(None, finish="tool_calls")
    answer["choices"][0]["message"]["tool_calls"] = [{"function": {"name": "f", "arguments": "{}"}}]
    return answer


def with_choice(**fields: Any) -> dict[str, Any]:
    answer = message()
    answer["choices"][0] |= fields
    return answer


ANSWERED: dict[str, tuple[Script, dict[str, Any]]] = {
    "an answer": (plain(message()), PLAIN_OK),
    "BOM": (plain(b"\xef\xbb\xbf" + json.dumps(message()).encode()), PLAIN_OK),
    "error false": (plain(message(error=False)), PLAIN_OK),
    "error empty": (plain(message(error={})), PLAIN_OK),
    "error as a text": (plain({"error": "overloaded"}), refused("overloaded")),
    "error as a list": (plain([{"error": {"message": "boom"}}]), refused("boom")),
    "detail": (plain({"detail": "Not Found"}), refused("Not Found")),
    "message and code": (plain({"code": 500, "message": "inner failure"}), refused("inner failure")),
    "choices empty": (plain(message(choices=[])), refused("choices")),
    "choices an object": (plain(message(choices={"0": {}})), refused("choices")),
    "choice null": (plain(message(choices=[None])), refused("choices")),
    "message null": (plain(with_choice(message=None)), refused("message")),
    "null": (plain("null"), refused()),
    "a list": (plain("[]"), refused()),
    "blanks": (plain("  \n"), {"outcome": "empty"}),
    "cut JSON": (plain(json.dumps(message())[:-5]), refused()),
    "HTML called JSON": (plain("<html>502</html>"), refused("<html>")),
    "tool calls alone": (plain(told_tools()), {**PLAIN_OK, "output_text": "", "finish_reason": "tool_calls"}),
    "content parts": (plain(message([{"type": "text", "text": "ab"}])), PLAIN_OK),
    "empty content with tokens": (plain(message("", tokens=1)), {"outcome": "ok", "completion_tokens": 1}),
    "empty content without usage": (plain(message("", usage=None)), {"outcome": "empty"}),
    "aborted": (plain(message(finish="abort")), {"outcome": "stream_error", "error": Has("abort")}),
    "NaN somewhere": (plain(json.dumps(message())[:-1] + ', "score": NaN}'), PLAIN_OK),
    "a stream nobody asked for": (
        at(ROLE, A, B, TAIL),
        {"outcome": "ok", "completion_tokens": 2, "warning": Has("unrequested_stream")},
    ),
    "gzip": (
        json_answer(gzip.compress(json.dumps(message()).encode()), framing="close")
        | {"headers": {"content-type": "application/json", "content-encoding": "gzip"}},
        {**PLAIN_OK, "warning": Has("compressed")},
    ),
    # blocks
    "block": (plain(spec()), BLOCK),
    "block of whole floats": (plain(spec(2.0, 8.0, 3.0)), BLOCK),
    "block on the choice, dense": (
        plain(
            with_choice(
                speculative_decoding={"num_spec_steps": 2, "num_draft_tokens": 8, "num_accepted_draft_tokens": 3}
            )
        ),
        BLOCK,
    ),
    "block with sparse histogram": (
        plain(spec(num_spec_tokens=4, acceptance_histogram={"1": 1, "2": 1})),
        {**BLOCK, "acceptance_histogram": [0, 1, 1, 0, 0], "warning": None},
    ),
    "block with integer-like histogram keys out of order": (
        plain(spec(acceptance_histogram={"2": 1, "1": 1})),
        {**BLOCK, "acceptance_histogram": [0, 1, 1], "warning": None},
    ),
    "block without accepted": (plain(spec(accepted=None)), {**NO_BLOCK, "warning": Has("block_unreadable")}),
    "block with a negative count": (plain(spec(accepted=-1)), {**NO_BLOCK, "warning": Has("block_unreadable")}),
    "block with texts": (plain(spec("2", "8", "3")), {**NO_BLOCK, "warning": Has("block_unreadable")}),
    "block with true": (plain(spec(True)), {**NO_BLOCK, "warning": Has("block_unreadable")}),
    "more accepted than drafted": (plain(spec(accepted=9)), {"warning": Has("block_inconsistent")}),
    "per-step sums contradict": (
        plain(spec(per_step_accepted=[1, 1], per_step_drafted=[4, 4])),
        {**BLOCK, "warning": Has("block_inconsistent")},
    ),
    "block of several requests": (
        plain(spec(20, 80, 60, num_spec_tokens=4)),
        {"spec_steps": 20, "warning": Has("block_inconsistent")},
    ),
    "cut last step": (plain(spec(1, 4, 4, num_spec_tokens=4)), {"spec_steps": 1, "warning": None}),
    "block empty": (plain(message(metrics={"speculative_decoding": {}})), NO_BLOCK),
    "metrics a list": (plain(message(metrics=[])), NO_BLOCK),
    "block a number": (plain(message(metrics={"speculative_decoding": 1})), NO_BLOCK),
    "all zero with null ratios": (
        plain(spec(0, 0, 0, mean_acceptance_length=None, draft_acceptance_rate=None)),
        {"spec_steps": 0, "draft_tokens": 0, "accepted_tokens": 0, "spec_source": "response_block", "warning": None},
    ),
}
