"""Schema of the raw request records that workers send and the master appends (`cells/<id>/worker-<n>.arrows`).

One row per request that was sent (or dropped by an open-loop cap). The merge adds the cell's own columns.
Units: `_ns` UNIX nanoseconds, `_us` durations in microseconds, null = not measured. No locust, no gevent here.
"""

from __future__ import annotations

import pyarrow as pa

RAW_SCHEMA = pa.schema(
    [
        # identity
        pa.field("seq", pa.int64(), nullable=False),  # number in the cell's prompt order
        pa.field("worker", pa.int32(), nullable=False),
        pa.field("user", pa.int32(), nullable=False),
        pa.field("phase", pa.string(), nullable=False),  # warmup | measure | drain, by send time
        pa.field(
            "request_id", pa.string(), nullable=False
        ),  # X-Request-Id: <cell index>-<worker>-<seq>, unique in a run
        pa.field("server_request_id", pa.string()),  # "id" of the response
        pa.field("server_fingerprint", pa.string()),
        pa.field("response_model", pa.string()),
        # prompt
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("stratum", pa.string(), nullable=False),
        pa.field("turn", pa.int16(), nullable=False),  # 0 = first turn of a conversation
        pa.field("prompt_sha256", pa.string(), nullable=False),  # of the text sent, salt included
        pa.field("max_tokens", pa.int32()),
        # time
        pa.field("intended_ns", pa.int64()),
        pa.field("send_ns", pa.int64()),  # null: never sent
        pa.field("first_byte_ns", pa.int64()),
        pa.field("first_token_ns", pa.int64()),
        pa.field("last_token_ns", pa.int64()),
        pa.field("end_ns", pa.int64()),
        pa.field("clock", pa.string(), nullable=False),  # kernel | user | mixed
        pa.field("client_lag_us", pa.int64()),  # worst read: user time minus kernel stamp
        pa.field("reads", pa.int32()),
        pa.field("coalesced_reads", pa.int32()),  # reads that held more than one token-carrying event
        pa.field("first_chunk_merged", pa.bool_()),  # the first token's time is only an upper bound: TTFT is censored
        pa.field("lateness_us", pa.int64()),  # send minus intended
        # result
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("http_status", pa.int16()),
        pa.field("error", pa.string()),
        pa.field("warning", pa.string()),  # e.g. "no [DONE]", "stream_downgraded", "block_inconsistent"; ";"-joined
        pa.field("finish_reason", pa.string()),
        # tokens
        pa.field("prompt_tokens", pa.int32()),
        pa.field("cached_tokens", pa.int32()),
        pa.field("completion_tokens", pa.int32()),
        pa.field("reasoning_tokens", pa.int32()),
        pa.field("token_source", pa.string(), nullable=False),  # usage | per_chunk_usage | none
        # latency
        pa.field("ttft_us", pa.int64()),
        pa.field("ttft_visible_us", pa.int64()),  # first content (not reasoning) minus send
        pa.field("tpot_us", pa.float64()),
        pa.field("tpot_basis", pa.string()),  # first_chunk_known | first_chunk_assumed_1
        pa.field("e2e_us", pa.int64()),  # send to last token; the stream's end is end_ns
        pa.field("e2e_intended_us", pa.int64()),
        pa.field("max_gap_us", pa.int64()),
        # chunks that carry tokens
        pa.field("chunks", pa.int32()),
        pa.field("chunk_offset_us", pa.list_(pa.int32())),  # from send_ns
        pa.field("chunk_tokens", pa.list_(pa.int16())),  # null where the tokens per chunk are not known
        # speculation, as the response's own block says
        pa.field("spec_steps", pa.int32()),
        pa.field("draft_tokens", pa.int32()),
        pa.field("accepted_tokens", pa.int32()),
        pa.field("num_spec_tokens", pa.int16()),
        pa.field("acceptance_histogram", pa.list_(pa.int32())),
        pa.field("step_accepted", pa.list_(pa.int16())),
        pa.field("step_drafted", pa.list_(pa.int16())),
        pa.field("spec_source", pa.string()),  # response_block | null
        # the server's own view of this request
        pa.field("server_ttft_us", pa.int64()),
        pa.field("server_queue_us", pa.int64()),
        pa.field("server_generation_us", pa.int64()),
        # output
        pa.field("output_sha256", pa.string()),
        pa.field("output_text", pa.string()),
        pa.field("reasoning_text", pa.string()),
        pa.field("output_bytes", pa.int32()),
    ]
)
