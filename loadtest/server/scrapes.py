"""Schema of `cells/<id>/server.arrows`: one row per sample of one scrape of one endpoint, appended while running.

Every scrape also writes one row `loadtest:scrape_ok` (1 or 0, with the cause in `error`), so that a gap is visible.
"""

from __future__ import annotations

import pyarrow as pa

SCRAPE_OK = "loadtest:scrape_ok"

SCRAPE_SCHEMA = pa.schema(
    [
        pa.field("t_ns", pa.int64(), nullable=False),  # when the answer was complete (UNIX)
        pa.field("t_request_ns", pa.int64(), nullable=False),  # when the scrape was asked for
        pa.field("mono_ns", pa.int64(), nullable=False),  # monotonic clock at t_ns: shows clock steps
        pa.field("endpoint", pa.string(), nullable=False),  # the /metrics URL: part of the series' identity
        pa.field("edge", pa.string()),  # idle_start | window_start | window_end | idle_end; null for the 1 Hz scrapes
        pa.field(
            "metric", pa.string(), nullable=False
        ),  # sample name as exposed, e.g. vllm:spec_decode_num_drafts_total
        pa.field("kind", pa.string()),  # counter | gauge | histogram | info | unknown
        pa.field("labels", pa.string(), nullable=False),  # JSON object with sorted keys, without engine and model_name
        pa.field("engine", pa.string()),
        pa.field("model", pa.string()),
        pa.field("value", pa.float64()),  # null for NaN; infinities stay out
        pa.field("error", pa.string()),
    ]
)
