"""Has hdr-histogram-js read a log that we wrote and compares every figure. Run by `make check-hlog-js`.

python tools/hlog_js_check/check.py            # npm install, then compare
python tools/hlog_js_check/check.py --write    # also renew the sample under tests/data/load/js
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from loadtest.load import hdr

HERE = Path(__file__).parent
SAMPLE = HERE.parents[1] / "tests" / "data" / "load" / "js"
START_NS = 1_795_968_963_000_000_000


def write_sample(path: Path) -> None:
    """A log with a tag per metric: a wide, a narrow and an almost empty histogram."""
    random = np.random.default_rng(20)
    values = {
        "ttft": random.lognormal(11, 0.7, 5000),
        "c8-code.e2e": random.lognormal(15, 0.2, 1000),
        "chunk_gap": np.array([20_000, 3_600_000_000]),
    }
    histograms = {}
    for tag, data in values.items():
        histograms[tag] = hdr.new_histogram()
        hdr.record(histograms[tag], data.astype(np.int64))
    hdr.write_hlog(path, hdr.one_interval(histograms, START_NS, START_NS + 60_000_000_000))


def main() -> None:
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            raise SystemExit(f"{tool} is not installed; the check needs Node.js")
    if not (HERE / "node_modules").exists():
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"], cwd=HERE, check=True)
    SAMPLE.mkdir(parents=True, exist_ok=True)
    path = SAMPLE / "sample.hlog"
    if "--write" in sys.argv:
        write_sample(path)
    text = subprocess.run(["node", "read.js", str(path)], cwd=HERE, check=True, capture_output=True, text=True).stdout
    told = {entry["tag"]: entry for entry in json.loads(text)}
    entries = hdr.read_hlog(path)
    assert len(entries) == len(told), (len(entries), sorted(told))
    for entry in entries:
        js, h = told[entry.tag], entry.histogram
        ours = hdr.percentiles(h, [50, 90, 99, 100])
        assert js["total"] == h.total_count, entry.tag
        assert list(js["percentiles"].values()) == ours, (entry.tag, js["percentiles"], ours)
        assert js["start_ms"] == round(entry.start_s * 1000), (entry.tag, js["start_ms"])
        print(f"{entry.tag}: {h.total_count} values, p50/p90/p99/p100 = {ours} us, the same in hdr-histogram-js")
    if "--write" in sys.argv:
        (SAMPLE / "read_by_js.json").write_text(text)


if __name__ == "__main__":
    main()
