"use strict";
(async () => {
  const data = JSON.parse(document.getElementById("figures").textContent);
  const fail = (text) => { const e = document.getElementById("chart-error"); e.textContent = text; e.hidden = false; };
  if (typeof DecompressionStream === "undefined") { fail("This browser cannot unpack the charts (it has no DecompressionStream); every figure is in the tables."); return; }
  try {
    const packed = Uint8Array.from(atob(document.getElementById("plotly-gz").textContent.trim()), (c) => c.charCodeAt(0));
    const script = document.createElement("script");
    script.textContent = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    document.head.appendChild(script);
  } catch (e) { fail("The charts could not be unpacked (" + e + "); every figure is in the tables."); return; }

  // plotly reads a little HTML in its texts: names from plans must stay text.
  const esc = (s) => String(s).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const palette = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#6A3D9A", "#8C510A"];
  const symbol = { PASS: "circle", FAIL: "x", INCONCLUSIVE: "diamond-open" };

  for (const found of data.configs) {
    const names = [...new Set(found.probes.flatMap((p) => p.checks.map((c) => c.slo + (c.stratum ? " / " + c.stratum : ""))))];
    const traces = names.map((name, i) => {
      const points = found.probes.flatMap((p) => p.checks
        .filter((c) => c.slo + (c.stratum ? " / " + c.stratum : "") === name && c.share_of_limit !== null)
        .map((c) => ({ p, c }))).sort((a, b) => a.p.load - b.p.load);
      return {
        name: esc(name), x: points.map((q) => q.p.load), y: points.map((q) => q.c.share_of_limit), mode: "lines+markers",
        line: { color: palette[i % palette.length], width: 1 },
        marker: { size: 11, color: palette[i % palette.length], symbol: points.map((q) => symbol[q.p.status]) },
        text: points.map((q) => esc(`probe ${q.p.number}: ${q.p.status}; ${q.c.over ?? "?"} of ${q.c.n} over`)),
        hovertemplate: "%{x} " + esc(data.search.by) + ": %{y:.3f} of the limit<br>%{text}<extra></extra>",
      };
    });
    const loads = found.probes.map((p) => p.load);
    const left = found.holds_at ?? Math.min(...loads), right = found.fails_at ?? Math.max(...loads);
    const box = document.createElement("div");
    box.className = "chart";
    document.getElementById("charts").appendChild(box);
    Plotly.newPlot(box, traces, {
      title: { text: esc((data.simulated ? "SIMULATED – " : "") + found.config + ": " + found.answer), font: { size: 14 } },
      margin: { l: 60, r: 16, t: 44, b: 90 }, legend: { orientation: "h", y: -0.22 },
      xaxis: { title: { text: esc(data.search.by) }, type: "log", tickvals: [...new Set(loads)].sort((a, b) => a - b) },
      yaxis: { title: { text: "figure / limit" }, rangemode: "tozero" },
      shapes: [
        { type: "rect", xref: "x", yref: "paper", x0: left, x1: right, y0: 0, y1: 1, fillcolor: "#E69F00", opacity: 0.15, line: { width: 0 } },
        { type: "line", xref: "paper", yref: "y", x0: 0, x1: 1, y0: 1, y1: 1, line: { color: "#b3261e", width: 1, dash: "dash" } },
      ],
    }, { responsive: true, displaylogo: false });
  }
  document.body.dataset.charts = "drawn";
})();
