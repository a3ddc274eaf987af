"use strict";
(async () => {
  const data = JSON.parse(document.getElementById("figures").textContent);
  const fail = (text) => { const e = document.getElementById("chart-error"); e.textContent = text; e.hidden = false; };
  if (!data.rows.length) { fail("Nothing was measured, so there is nothing to draw."); return; }
  try {
    const packed = Uint8Array.from(atob(document.getElementById("plotly-gz").textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.appendChild(script);
  } catch (e) { fail("The charts could not be unpacked (" + e + "); every figure is in the tables."); return; }

  const uniq = (xs) => [...new Set(xs)];
  const configs = uniq(data.rows.map((r) => r.config));
  const palette = ["#5b6876", "#0b5cad", "#c2410c", "#1a7f45", "#7b3fa0", "#b08900", "#0f8b8d", "#b3261e", "#4a5fc1", "#7d5a3c"];
  const color = Object.fromEntries(configs.map((c, i) => [c, palette[i % palette.length]]));
  const pick = (name) => document.getElementById("pick-" + name);
  const fill = (name, values) => { for (const v of values) pick(name).add(new Option(v, v)); };
  fill("mix", uniq(data.rows.map((r) => r.mix)));
  fill("sampling", uniq(data.rows.map((r) => r.sampling)));
  fill("metric", data.metrics);
  fill("load", uniq(data.rows.map((r) => r.load)));
  pick("load").selectedIndex = pick("load").options.length - 1;

  const mark = data.simulated ? " – SIMULATED" : "";
  const draw = (id, traces, title, x, y, extra) => Plotly.react(id, traces, {
    title: { text: title + mark, font: { size: 15 } }, margin: { l: 70, r: 16, t: 44, b: 52 }, legend: { orientation: "h", y: -0.22 },
    xaxis: { title: { text: x.title }, ...x }, yaxis: { title: { text: y.title }, rangemode: "tozero", ...y }, hovermode: "closest", ...(extra || {}),
  }, { displaylogo: false, responsive: true });
  const shown = () => data.rows.filter((r) => r.mix === pick("mix").value && r.sampling === pick("sampling").value);
  const nines = [0, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999];

  function redraw() {
    const metric = pick("metric").value, load = pick("load").value, rows = shown();
    const x = (q) => (q >= 1 ? null : 1 / (1 - q));
    draw("chart-percentiles", rows.filter((r) => r.load === load && r.curve[metric][0].length).map((r) => {
      const [q, v] = r.curve[metric];
      // The maximum has q = 1: drawn at the place of rank n of n + 1.
      const n = r.latency[metric].n;
      return { x: q.map((p) => x(Math.min(p, n / (n + 1)))), y: v.map((u) => u / 1000), name: `${r.config} (n=${n})`, mode: "lines",
        line: { color: color[r.config], shape: "vh" }, customdata: q.map((p) => (p * 100).toFixed(3)), hovertemplate: "%{customdata} %: %{y:.3f} ms" };
    }), `${metric} by percentile, load ${load}`, { title: "percentile (point estimates)", type: "log", tickvals: nines.map((q) => 1 / (1 - q)), ticktext: nines.map((q) => `${+(q * 100).toFixed(2)} %`) }, { title: `${metric} (ms)` });

    const byConfig = (rs) => configs.map((c) => [c, rs.filter((r) => r.config === c).sort((a, b) => a.value - b.value)]).filter(([, r]) => r.length);
    const closed = rows.every((r) => r.kind === "closed");
    draw("chart-throughput", byConfig(rows).map(([c, r]) => ({ x: r.map((p) => p.value), y: r.map((p) => p.tok_s), name: c, mode: "lines+markers", line: { color: color[c] },
      customdata: r.map((p) => p.n), hovertemplate: "load %{x}: %{y:.1f} tok/s (n=%{customdata})" })),
      "output throughput by load", { title: closed ? "concurrency" : "load (concurrency or requests/s)", type: "log", tickvals: uniq(rows.map((r) => r.value)), ticktext: uniq(rows.map((r) => String(r.value))) }, { title: "output tokens/s (point estimates)" });

    const ratios = data.ratios.filter((r) => r.mix === pick("mix").value && r.sampling === pick("sampling").value && r.name === "tpot");
    draw("chart-ratio", byConfig(ratios).map(([c, r]) => ({ x: r.map((p) => p.value), y: r.map((p) => 1 / p.estimate), name: c, mode: "lines+markers", line: { color: color[c] },
      error_y: { type: "data", symmetric: false, array: r.map((p) => (p.lower ? 1 / p.lower - 1 / p.estimate : 0)), arrayminus: r.map((p) => (p.upper ? 1 / p.estimate - 1 / p.upper : 0)) },
      customdata: r.map((p) => p.n), hovertemplate: "load %{x}: %{y:.2f}x (n=%{customdata} prompts)" })),
      "speed-up in TPOT against the baseline, paired by prompt", { title: "load", type: "log", tickvals: uniq(ratios.map((r) => r.value)), ticktext: uniq(ratios.map((r) => String(r.value))) }, { title: "times as fast (with interval)" },
      { shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { dash: "dot", color: "#5b6876" } }] });

    draw("chart-survival", rows.filter((r) => r.load === load && r.survival.length).map((r) => ({ x: r.survival.map((_, i) => i + 1), y: r.survival.map((p) => p * 100), name: `${r.config} (coverage ${r.coverage === null ? "undefined" : (r.coverage * 100).toFixed(0) + " %"})`,
      mode: "lines+markers", line: { color: color[r.config] }, hovertemplate: "position %{x}: %{y:.1f} %" })),
      `drafts accepted up to each position, load ${load}`, { title: "position in the draft", dtick: 1 }, { title: "share of drafted steps (%)", range: [0, 105] });
  }
  for (const name of ["mix", "sampling", "metric", "load"]) pick(name).addEventListener("change", redraw);
  redraw();
  document.body.dataset.charts = "drawn";
})();
