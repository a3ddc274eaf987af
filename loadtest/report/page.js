"use strict";
(async () => {
  const data = JSON.parse(document.getElementById("figures").textContent);
  const fail = (text) => { const e = document.getElementById("chart-error"); e.textContent = text; e.hidden = false; };
  if (!data.rows.length) { fail("Nothing was measured, so there is nothing to draw."); return; }
  if (typeof DecompressionStream === "undefined") { fail("This browser cannot unpack the charts (it has no DecompressionStream); every figure is in the tables."); return; }
  try {
    const packed = Uint8Array.from(atob(document.getElementById("plotly-gz").textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.appendChild(script);
  } catch (e) { fail("The charts could not be unpacked (" + e + "); every figure is in the tables."); return; }
  document.getElementById("charts-live").hidden = false;

  // plotly reads a little HTML in its texts: names from plans must stay text.
  const esc = (s) => String(s).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const uniq = (xs) => [...new Set(xs)];
  const pct = (v) => (v === null || v === undefined ? null : v * 100);

  // Colours after Okabe and Ito, told apart by colour-blind readers; markers and dashes serve black-and-white print.
  const palette = ["#3b4652", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#6A3D9A", "#8C510A"];
  const symbols = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down", "pentagon", "hexagon"];
  const dashes = ["solid", "dash", "dashdot", "longdash", "dot", "longdashdot"];
  const configs = uniq(data.rows.map((r) => r.config));
  const index = Object.fromEntries(configs.map((c, i) => [c, i]));
  const color = (c) => palette[index[c] % palette.length];
  const symbol = (c, open) => symbols[index[c] % symbols.length] + (open ? "-open" : "");
  const line = (c, more) => ({ color: color(c), dash: dashes[index[c] % dashes.length], width: 2, ...(more || {}) });
  const marks = (c, rows, open) => ({ color: color(c), size: 9, symbol: rows.map((r) => symbol(c, open(r))) });

  const pick = (name) => document.getElementById("pick-" + name);
  const fill = (name, values) => { for (const v of values) pick(name).add(new Option(v, v)); };
  fill("mix", uniq(data.rows.map((r) => r.mix)));
  fill("sampling", uniq(data.rows.map((r) => r.sampling)));
  fill("metric", data.metrics);
  fill("load", uniq(data.rows.map((r) => r.load)));
  pick("load").selectedIndex = pick("load").options.length - 1;
  const ratioNames = { output_rate: "output rate per request", tpot: "TPOT", e2e: "E2E", ttft: "TTFT" };
  const ratioOrder = Object.keys(ratioNames), place = (name) => (ratioOrder.indexOf(name) + 9) % 9;
  for (const name of uniq(data.ratios.map((r) => r.name)).sort((a, b) => place(a) - place(b))) pick("ratio").add(new Option(ratioNames[name] || name, name));

  const mark = (data.simulated ? "SIMULATED – " : "") + (data.synthetic ? "SYNTHETIC ACCEPTANCE – " : "");
  const axis = (base, title) => ({ automargin: true, zeroline: false, linecolor: "#5b6876", ...base, title: { text: esc(title), standoff: 8 } });
  const draw = (id, traces, title, note, x, y, extra) => Plotly.react(id, traces, {
    title: { text: `<b>${esc(mark + title)}</b><br><span style="font-size:12px;color:#5b6876">${esc(note)}</span>`, font: { size: 15, color: "#1c2530" }, x: 0, xref: "paper", xanchor: "left", y: 0.965, yanchor: "top" },
    font: { family: "system-ui, sans-serif", size: 12, color: "#1c2530" }, margin: { l: 64, r: 20, t: 64, b: 60 }, hovermode: "closest", showlegend: true,
    legend: { orientation: "h", y: -0.2, yanchor: "top", x: 0 }, paper_bgcolor: "#fff", plot_bgcolor: "#fff",
    xaxis: axis({ ...x, title: undefined }, x.title), yaxis: axis({ rangemode: "tozero", gridcolor: "#e3e8ed", ...y, title: undefined }, y.title),
    annotations: traces.length ? [] : [{ text: "nothing to draw for this choice", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5 }], ...(extra || {}),
  }, { displayModeBar: false, responsive: true });

  const byConfig = (rs) => configs.map((c) => [c, rs.filter((r) => r.config === c).sort((a, b) => a.value - b.value)]).filter(([, r]) => r.length);
  const kindOf = Object.fromEntries(data.rows.map((r) => [r.load, r.kind]));
  // One kind of load: a log axis in its unit. Several share no unit: their labels stand side by side, without lines.
  const loadAxis = (rs) => {
    const kinds = uniq(rs.map((r) => kindOf[r.load]));
    if (kinds.length > 1) return { of: (r) => r.load, mode: "markers", axis: { type: "category", categoryorder: "array", categoryarray: uniq(data.rows.map((r) => r.load)), title: "load" } };
    const values = uniq(rs.map((r) => r.value)).sort((a, b) => a - b);
    const name = ["poisson", "constant"].includes(kinds[0]) ? `requests sent per second (${kinds[0]})` : kinds[0] === "trace" ? "speed of the trace" : "concurrency (requests in flight)";
    return { of: (r) => r.value, mode: "lines+markers", axis: { type: "log", tickvals: values, ticktext: values.map(String), title: name } };
  };
  const nines = [0, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999, 0.99999];

  function redraw() {
    const metric = pick("metric").value, load = pick("load").value, ratio = pick("ratio").value;
    const here = (r) => r.mix === pick("mix").value && r.sampling === pick("sampling").value;
    const rows = data.rows.filter(here), atLoad = rows.filter((r) => r.load === load);
    const where = `${pick("mix").value}, ${pick("sampling").value}`;

    const curves = atLoad.filter((r) => r.curve[metric][0].length);
    const most = Math.max(2, ...curves.map((r) => r.latency[metric].n + 1));
    draw("chart-percentiles", curves.map((r) => {
      const [q, v] = r.curve[metric], n = r.latency[metric].n;
      // The maximum has q = 1: drawn at the place of rank n of n + 1.
      return { x: q.map((p) => 1 / (1 - Math.min(p, n / (n + 1)))), y: v.map((u) => u / 1000), name: `${esc(r.config)} (n=${n})`, mode: "lines",
        line: line(r.config, { shape: "vh" }), customdata: q.map((p) => (p * 100).toPrecision(6)), hovertemplate: "P%{customdata}: %{y:.3f} ms" };
    }), `${metric} by percentile`, `${where}, ${load}; point estimates, n in the legend`, { title: "percentile", type: "log", range: [0, Math.log10(most)], tickvals: nines.map((q) => 1 / (1 - q)), ticktext: nines.map((q) => `${+(q * 100).toFixed(3)} %`) }, { title: `${metric} (ms)` });

    const x = loadAxis(rows);
    const least = (rs) => `point estimates, n ${Math.min(...rs)} to ${Math.max(...rs)} requests (hover for each)`;
    const known = rows.filter((r) => r.tok_s !== null);
    draw("chart-throughput", byConfig(known).map(([c, r]) => ({ x: r.map(x.of), y: r.map((p) => p.tok_s), name: esc(c), mode: x.mode, line: line(c), marker: marks(c, r, () => false),
      customdata: r.map((p) => [esc(p.load), p.n]), hovertemplate: "%{customdata[0]}: %{y:.1f} tok/s (n=%{customdata[1]})" })),
      "Output throughput by load", `${where}; ${known.length ? least(known.map((r) => r.n)) : ""}`, x.axis, { title: "output tokens per second" });

    const tails = rows.filter((r) => r.latency[metric].p99 !== null);
    draw("chart-tail", byConfig(tails).map(([c, r]) => ({ x: r.map(x.of), y: r.map((p) => p.latency[metric].p99 / 1000), name: esc(c), mode: x.mode, line: line(c), marker: marks(c, r, (p) => p.latency[metric].n < data.claim_p99),
      customdata: r.map((p) => [esc(p.load), p.latency[metric].n]), hovertemplate: "%{customdata[0]}: %{y:.3f} ms (n=%{customdata[1]})" })),
      `${metric} P99 by load`, `${where}; point estimates; open marker: n below ${data.claim_p99}, too few to claim a P99`, x.axis, { title: `${metric} P99 (ms)` });

    const faster = (r, v) => (r.name === "output_rate" ? v : 1 / v);
    const ratios = data.ratios.filter((r) => here(r) && r.name === ratio).map((r) => {
      const ends = [r.lower, r.upper].map((v) => (v ? faster(r, v) : null)).sort((a, b) => a - b);
      return { ...r, y: faster(r, r.estimate), ends: ends.includes(null) ? null : ends };
    });
    const rx = loadAxis(ratios);
    draw("chart-ratio", byConfig(ratios).map(([c, r]) => ({ x: r.map(rx.of), y: r.map((p) => p.y), name: esc(c), mode: rx.mode, line: line(c), marker: marks(c, r, (p) => !p.trusted),
      error_y: { type: "data", symmetric: false, thickness: 1.5, color: color(c), array: r.map((p) => (p.ends ? p.ends[1] - p.y : null)), arrayminus: r.map((p) => (p.ends ? p.y - p.ends[0] : null)) },
      customdata: r.map((p) => [esc(p.load), p.n, p.ends ? `${p.ends[0].toFixed(3)} to ${p.ends[1].toFixed(3)} at ${p.confidence * 100} %` : "no interval"]), hovertemplate: "%{customdata[0]}: %{y:.3f} times as fast, %{customdata[2]} (n=%{customdata[1]} prompts)" })),
      `Speed-up in ${ratioNames[ratio] || ratio}`, ratios.length ? `${where}; paired, ${ratios[0].confidence * 100} % intervals, n ${Math.min(...ratios.map((r) => r.n))} to ${Math.max(...ratios.map((r) => r.n))} prompts; open marker: does not count` : where, rx.axis, { title: "times as fast as the baseline" },
      ratios.length ? { shapes: [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: 1, y1: 1, line: { dash: "dot", width: 1.5, color: "#5b6876" } }] } : {});

    const survived = atLoad.filter((r) => r.survival.length);
    draw("chart-survival", survived.map((r) => ({ x: r.survival.map((_, i) => i + 1), y: r.survival.map(pct), name: `${esc(r.config)} (S=${r.steps})`,
      mode: "lines+markers", line: line(r.config), marker: marks(r.config, r.survival, () => false), hovertemplate: "position %{x}: %{y:.1f} %" })),
      "Drafts still right at each position", `${where}, ${load}; point estimates over S drafted steps (in the legend)`, { title: "position in the draft", dtick: 1 }, { title: "share of drafted steps (%)", range: [0, 105] });

    const task = (c, name, points, size, outline) => ({ x: points.map((p) => pct(p.coverage)), y: points.map((p) => pct(p.acceptance)), name, mode: "markers",
      marker: { color: color(c), symbol: symbol(c, !outline), size, line: { width: outline ? 1.5 : 2, color: outline ? "#1c2530" : color(c) } },
      customdata: points.map((p) => [esc(p.name), p.n, p.drafts, p.accepted]), hovertemplate: `${esc(c)}, %{customdata[0]}: coverage %{x:.1f} %, A/D %{y:.1f} % (n=%{customdata[1]}, D=%{customdata[2]}, A=%{customdata[3]})<extra></extra>` });
    const drafted = atLoad.filter((r) => r.tasks.length);
    const corner = (x, y, text) => ({ text: `<i>${text}</i>`, showarrow: false, xref: "paper", yref: "paper", x, y, xanchor: x ? "right" : "left", yanchor: y ? "top" : "bottom", font: { color: "#5b6876", size: 12 } });
    draw("chart-tasks", drafted.flatMap((r) => [task(r.config, `${esc(r.config)} (n=${r.tasks[0].n})`, r.tasks.slice(0, 1), 14, true),
      { ...task(r.config, "", r.tasks.slice(1), 9, false), showlegend: false }]),
      "Guesses rarely, or guesses wrong?", `${where}, ${load}; point estimates; filled: whole mix, open: a kind of task`,
      { title: "coverage: share of output tokens from drafted steps (%)", range: [-3, 108] }, { title: "acceptance A/D (%)", range: [-3, 108] },
      drafted.length ? { annotations: [corner(0, 1, "right, but rarely guesses"), corner(1, 1, "guesses often and right"), corner(0, 0, "rarely guesses, and wrong"), corner(1, 0, "guesses often, often wrong")] } : {});
  }
  for (const name of ["mix", "sampling", "metric", "load", "ratio"]) pick(name).addEventListener("change", redraw);
  redraw();
  document.body.dataset.charts = "drawn";
})();
