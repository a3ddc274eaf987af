"""Tokens that arrived inside a window, by the stamps of the chunks that carried them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


@dataclass(slots=True)
class Arrival:
    """`rows` counts requests with tokens in the window by basis: chunk_stamps, spread, unknown."""

    tokens: float = 0.0
    rows: Counter[str] = field(default_factory=Counter)


def arrived_tokens(table: pa.Table, window: tuple[int, int], counted: npt.NDArray[np.bool_]) -> Arrival:
    """Tokens of the `counted` rows that arrived in [start, end) (UNIX ns), whatever phase the rows belong to.

    A request whose chunks all lie inside counts whole. At the window's ends the chunks decide; where the tokens of the
    chunks are not known, the request's tokens are spread evenly between its first and last one (basis `spread`).
    """
    start, end = window
    out = Arrival()
    first = pc.coalesce(table.column("first_token_ns"), table.column("end_ns"))
    last = pc.coalesce(table.column("last_token_ns"), table.column("end_ns"))
    timed = np.asarray(pc.and_(first.is_valid(), last.is_valid()).to_numpy())
    first_ns = pc.fill_null(first, 0).to_numpy()
    last_ns = np.maximum(pc.fill_null(last, 0).to_numpy(), first_ns)
    near = counted & timed & (last_ns >= start) & (first_ns < end)
    if not near.any():
        return out
    chunk_lists = table.column("chunk_tokens").combine_chunks()
    if isinstance(chunk_lists, pa.ChunkedArray):
        chunk_lists = pa.concat_arrays(chunk_lists.chunks)
    stamped = _stamped(table, chunk_lists)
    total = pc.fill_null(table.column("completion_tokens"), -1).to_numpy().astype(np.int64)
    unreported = near & (total < 0) & stamped
    if unreported.any():
        for i in np.flatnonzero(unreported):
            total[i] = sum(chunk_lists[int(i)].as_py())
    out.rows["unknown"] += int((near & (total < 0)).sum())
    near &= total >= 0
    out.rows["chunk_stamps"] += int((near & stamped).sum())
    out.rows["spread"] += int((near & ~stamped & (total > 0)).sum())
    inside = near & (first_ns >= start) & (last_ns < end)
    out.tokens += float(total[inside].sum())
    cut = near & ~inside
    spread = cut & ~stamped
    if spread.any():
        length = np.maximum(last_ns - first_ns, 1)
        overlap = np.minimum(last_ns, end) - np.maximum(first_ns, start)
        out.tokens += float((total * np.clip(overlap / length, 0, 1))[spread].sum())
    exact = np.flatnonzero(cut & stamped)
    if len(exact):
        rows = table.select(["send_ns", "chunk_offset_us", "chunk_tokens"]).take(pa.array(exact))
        for row in rows.to_pylist():
            at = row["send_ns"] + np.array(row["chunk_offset_us"], dtype=np.int64) * 1000
            out.tokens += float(np.array(row["chunk_tokens"])[(at >= start) & (at < end)].sum())
    return out


def _stamped(table: pa.Table, chunk_lists: pa.Array) -> npt.NDArray[np.bool_]:
    """Rows with one known token count for each chunk stamp."""
    tokens = pc.fill_null(pc.list_value_length(chunk_lists), 0).to_numpy(zero_copy_only=False)
    stamps = pc.fill_null(pc.list_value_length(table.column("chunk_offset_us")), 0).to_numpy()
    whole = (tokens == stamps) & (tokens > 0)
    flat = chunk_lists.flatten()
    if flat.null_count:
        parents = pc.list_parent_indices(chunk_lists).to_numpy(zero_copy_only=False)
        whole[parents[flat.is_null().to_numpy(zero_copy_only=False)]] = False
    return np.asarray(whole)
