// Prints what hdr-histogram-js reads from a histogram log, as JSON: node read.js FILE.hlog
const fs = require("fs");
const hdr = require("hdr-histogram-js");

const reader = new hdr.HistogramLogReader(fs.readFileSync(process.argv[2], "utf8"));
const out = [];
for (let h; (h = reader.nextIntervalHistogram()); ) {
  const percentiles = {};
  for (const p of [50, 90, 99, 100]) percentiles[p] = h.getValueAtPercentile(p);
  out.push({ tag: h.tag, total: h.totalCount, start_ms: h.startTimeStampMsec, end_ms: h.endTimeStampMsec, percentiles });
}
console.log(JSON.stringify(out, null, 1));
