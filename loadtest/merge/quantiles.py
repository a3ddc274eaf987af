"""Exact nearest-rank quantiles of any number of values in constant memory.

Values are kept as they are, in memory while few and in an unnamed temporary file when many. A coarse histogram over
the bits of the floats then says which narrow range holds a rank, and a second pass sorts only that range: the answer
is a value that was put in, not an approximation.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Kind = TypeVar("Kind", np.float64, np.uint64)

QUANTILES: dict[str, float] = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99, "p999": 0.999}

_IN_MEMORY = 1 << 19  # 4 MiB of float64 for each metric: below that a file costs more than it saves
_PASS = 1 << 20  # values of one read of the second pass, 8 MiB
_SHIFT = 46  # keeps sign, exponent and 6 bits of mantissa: ranges about 1.5 % wide, 2**18 of them
_BUCKETS = 1 << (64 - _SHIFT)
_RANGE_STARTS = np.arange(64, dtype=np.uint64) << np.uint64(58)  # 64 ranges of hashes: 160,000 of ten million in each
_DENSE_US = 1 << 21  # gaps up to 2.1 s are counted one by one, 16 MiB; longer ones are rare


def nearest_rank(n: int, q: float) -> int:
    """Rank (1-based) of quantile q of n values: ceil(q n), at least 1. 1e-9 undoes float noise (0.999 * 20000)."""
    return max(1, math.ceil(q * n - 1e-9))


class _Spill(Generic[Kind]):
    """Arrays of one kind of eight bytes: in memory while few, in an unnamed temporary file when many."""

    def __init__(self, dtype: type[Kind], folder: Path | None) -> None:
        self._dtype: type[Kind] = dtype
        self._folder = folder
        self._parts: list[npt.NDArray[Kind]] = []
        self._held = 0
        self._file: BinaryIO | None = None

    @property
    def spilled(self) -> bool:
        """Whether the file is in use."""
        return self._file is not None

    def add(self, values: npt.NDArray[Kind]) -> None:
        """Keeps the array itself until it is written."""
        self._parts.append(values)
        self._held += len(values)
        if self._held > _IN_MEMORY:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - lives as long as this object
            for part in self._parts:
                part.tofile(self._file)
            self._parts, self._held = [], 0

    def parts(self) -> Iterator[npt.NDArray[Kind]]:
        """All values, in pieces."""
        if self._file is not None:
            self._file.flush()
            self._file.seek(0)
            while data := self._file.read(_PASS * 8):
                yield np.frombuffer(data, dtype=self._dtype)
            self._file.seek(0, 2)
        yield from self._parts

    def whole(self) -> npt.NDArray[Kind]:
        """All values as one array; for what is in memory."""
        return np.concatenate([*self.parts(), np.zeros(0, self._dtype)])

    def close(self) -> None:
        """Frees the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class ExactQuantiles:
    """Collects float64 values (NaN is left out) and gives exact nearest-rank quantiles, count and mean."""

    def __init__(self, spill_dir: Path | None = None) -> None:
        self._kept = _Spill(np.float64, spill_dir)
        self.n = 0
        self._sum = 0.0

    def add(self, values: npt.NDArray[np.float64]) -> None:
        """Adds the values; the array is not kept if it is a view."""
        values = np.asarray(values, dtype=np.float64)
        values = values[~np.isnan(values)]
        if not len(values):
            return
        self.n += len(values)
        self._sum += float(values.sum())
        self._kept.add(values)

    @property
    def mean(self) -> float | None:
        """Arithmetic mean, None without values."""
        return self._sum / self.n if self.n else None

    def quantiles(self, qs: Sequence[float]) -> list[float | None]:
        """Exact nearest-rank quantiles; None for each without values."""
        if not self.n:
            return [None] * len(qs)
        return list(self.at_ranks([nearest_rank(self.n, q) for q in qs]))

    def at_ranks(self, ranks: Sequence[int]) -> list[float]:
        """The values with these 1-based ranks."""
        if not self._kept.spilled:
            ordered = np.sort(self._kept.whole())
            return [float(ordered[rank - 1]) for rank in ranks]
        counts = np.zeros(_BUCKETS, dtype=np.int64)
        for part in self.parts():
            counts += np.bincount(_bucket(part), minlength=_BUCKETS)
        cumulative = np.cumsum(counts)
        wanted = np.searchsorted(cumulative, ranks, "left")
        picked: dict[int, list[FloatArray]] = {int(b): [] for b in wanted}
        for part in self.parts():
            buckets = _bucket(part)
            for bucket, found in picked.items():
                found.append(part[buckets == bucket])
        ordered_by = {bucket: np.sort(np.concatenate(found)) for bucket, found in picked.items()}
        below = {bucket: int(cumulative[bucket] - counts[bucket]) for bucket in picked}
        return [float(ordered_by[int(b)][rank - 1 - below[int(b)]]) for rank, b in zip(ranks, wanted, strict=True)]

    def parts(self) -> Iterator[FloatArray]:
        """All values, in pieces."""
        return self._kept.parts()

    def close(self) -> None:
        """Frees the temporary file."""
        self._kept.close()


def _bucket(values: FloatArray) -> IntArray:
    """Number of the coarse range of each value; rises with the value, negative ones included."""
    bits = values.view(np.int64)
    ordered = bits ^ ((bits >> 63) & np.int64(0x7FFFFFFFFFFFFFFF))
    return (ordered >> _SHIFT) + (_BUCKETS >> 1)


class CountedMicroseconds:
    """Exact distribution of whole microseconds (chunk gaps): one counter for each value below about 2 s."""

    def __init__(self, spill_dir: Path | None = None) -> None:
        self._counts: IntArray = np.zeros(0, dtype=np.int64)
        self._long = ExactQuantiles(spill_dir)
        self._dense_n = 0

    @property
    def n(self) -> int:
        """Number of values."""
        return self._dense_n + self._long.n

    def add(self, values: npt.NDArray[np.integer]) -> None:
        """Adds whole microseconds; negative values (a clock that stepped back) count as 0."""
        if not len(values):
            return
        values = np.maximum(values, 0)
        top = int(values.max())
        if top >= _DENSE_US:
            far = values >= _DENSE_US
            self._long.add(values[far].astype(np.float64))
            values = values[~far]
            if not len(values):
                return
        counts = np.bincount(values, minlength=len(self._counts))
        if len(counts) > len(self._counts):
            counts[: len(self._counts)] += self._counts
            self._counts = counts
        else:
            self._counts += counts
        self._dense_n += len(values)

    def quantiles(self, qs: Sequence[float]) -> list[float | None]:
        """Exact nearest-rank quantiles; None for each without values."""
        if not self.n:
            return [None] * len(qs)
        cumulative = np.cumsum(self._counts)
        out: list[float | None] = []
        for q in qs:
            rank = nearest_rank(self.n, q)
            if rank <= self._dense_n:
                out.append(float(np.searchsorted(cumulative, rank, "left")))
            else:
                out.extend(self._long.at_ranks([rank - self._dense_n]))
        return out

    def value_counts(self) -> Iterator[tuple[IntArray, IntArray]]:
        """(values, how often each), in pieces."""
        values = np.flatnonzero(self._counts)
        if len(values):
            yield values, self._counts[values]
        for part in self._long.parts():
            unique, counts = np.unique(part.astype(np.int64), return_counts=True)
            yield unique, counts

    def close(self) -> None:
        """Frees the temporary file."""
        self._long.close()


class DistinctStrings:
    """Counts how many strings are repeats of an earlier one, by 64-bit hashes, in constant memory.

    Each (position, byte) has a random 64-bit number and a string's hash is their sum: n strings collide by chance with
    a probability of about n**2 / 2**65, one in 10**5 for 10**7 strings.
    """

    _table = np.random.default_rng(0x5EED).integers(0, 2**63, size=(256, 64), dtype=np.int64).astype(np.uint64)

    def __init__(self, spill_dir: Path | None = None) -> None:
        self._kept = _Spill(np.uint64, spill_dir)
        self.n = 0

    def add(self, offsets: npt.NDArray[np.integer], data: npt.NDArray[np.uint8]) -> None:
        """Adds strings in Arrow layout: string i is data[offsets[i]:offsets[i + 1]]."""
        lengths = np.diff(offsets)
        if not len(lengths):
            return
        used = data[offsets[0] : offsets[-1]]
        starts = offsets[:-1] - offsets[0]
        position = np.arange(len(used)) - np.repeat(starts, lengths)
        mixed = self._table[used, position & 63] * (2 * (position >> 6) + 1).astype(np.uint64)
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
        hashes = sums[starts + lengths] - sums[starts] + lengths.astype(np.uint64)
        self._kept.add(hashes)
        self.n += len(hashes)

    def repeats(self) -> int:
        """How many of the strings added are repeats. Works through the hashes range by range."""
        if not self._kept.spilled:
            return self.n - len(np.unique(self._kept.whole()))
        ranges = max(1, -(-self.n // _PASS))
        distinct = 0
        for k in range(ranges):
            picked = [h[(h >> np.uint64(40)) % np.uint64(ranges) == k] for h in self._kept.parts()]
            distinct += len(np.unique(np.concatenate(picked)))
        return self.n - distinct

    def close(self) -> None:
        """Frees the temporary file."""
        self._kept.close()
