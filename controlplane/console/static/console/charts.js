// Each <figure data-chart="/live/….json"> redraws on the tick; only this file knows Plotly.
"use strict";
(() => {
  const SERIES = {
    p50: "blue", p95: "amber", p99: "red", max: "amber", "hit rate": "green", preempted: "red", mean: "blue", answered: "blue", requests: "blue",
    failed: "red", errors: "red", limited: "amber", "client left": "purple", "client error": "grey",
    running: "blue", waiting: "red", prompt: "blue", cached: "green", output: "amber", mark: "purple",
  };
  const MISSED = 3;
  const probe = document.body.appendChild(Object.assign(document.createElement("span"), { hidden: true }));
  function token(name) {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  }

  function themed({ data, layout }) {
    const line = token("line"), quiet = token("quiet"), text = token("text");
    for (const trace of data) {
      const colour = token(`series-${SERIES[trace.meta?.style] || "blue"}`);
      if (trace.line) trace.line.color = colour;
      if (trace.marker) trace.marker.color = colour;
    }
    const axis = { gridcolor: line, linecolor: line, zerolinecolor: line, tickfont: { color: quiet, size: 11 } };
    Object.assign(layout.xaxis, axis, { showgrid: false });
    Object.assign(layout.yaxis, axis);
    for (const shape of layout.shapes || []) shape.line.color = token(shape.name === "target" ? "quiet" : "series-purple");
    Object.assign(layout, {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true,
      font: { color: text, size: 12, family: "system-ui, sans-serif" },
      hoverlabel: { bgcolor: token("panel"), bordercolor: line, font: { color: text } },
    });
    return { data, layout };
  }

  async function show(el, payload) {
    el.dataset.missed = 0;
    el.querySelector(".stale-note").textContent = "";
    if (payload.state === "none") {
      el.dataset.state = "none";
      el.querySelector(".why-empty").textContent = `— ${payload.reason}`;
      el.querySelector(".now").textContent = "";
      el.querySelector(".from").textContent = "";
      return;
    }
    el.payload = payload;
    el.dataset.state = "live";
    el.querySelector(".now").textContent = payload.now;
    el.querySelector(".from").textContent = [payload.source, payload.note].filter(Boolean).join(" · ");
    const draw = el.querySelector(".draw");
    draw.setAttribute("aria-label", payload.summary);
    const { data, layout } = themed(structuredClone(payload.figure));
    await Plotly.react(draw, data, layout, { displaylogo: false, responsive: true, displayModeBar: false });
    if (el.querySelector("details[open]")) table(el);
  }

  async function redraw(el) {
    if (el.busy) return;
    el.busy = true;
    try {
      const res = await fetch(el.dataset.chart, { headers: el.etag ? { "If-None-Match": el.etag } : {} });
      if (res.status === 304) { el.dataset.missed = 0; return; }
      if (!res.ok || res.redirected) return missed(el);
      el.etag = res.headers.get("ETag");
      await show(el, await res.json());
    } catch {
      missed(el);
    } finally {
      el.busy = false;
    }
  }

  function missed(el) {
    el.dataset.missed = Number(el.dataset.missed || 0) + 1;
    if (el.dataset.missed < MISSED || el.dataset.state === "none") return;
    el.dataset.state = "stale";
    const at = el.payload ? new Date(el.payload.as_of * 1000).toLocaleTimeString() : "the page's loading";
    el.querySelector(".stale-note").textContent = `As of ${at}: no newer figures arrive.`;
  }

  // The same figures as numbers, newest first, for those who cannot or will not read a curve.
  function table(el) {
    const traces = (el.payload?.figure.data || []).filter((t) => t.meta?.style !== "mark");
    const box = el.querySelector("details > div");
    if (!traces.length) return box.replaceChildren();
    const made = document.createElement("table"), unit = el.payload.unit;
    const row = (cells, kind) => {
      const tr = document.createElement("tr");
      for (const cell of cells) tr.appendChild(document.createElement(kind)).textContent = cell;
      return tr;
    };
    const plain = (name) => new DOMParser().parseFromString(name, "text/html").body.textContent;
    const when = (at) => (el.payload.days ? `${at.slice(5, 10)} ${at.slice(11, 16)}` : at.slice(11, 19));
    made.createTHead().append(row(["UTC", ...traces.map((t) => `${t.meta?.name || plain(t.name)}${unit ? `, ${unit}` : ""}`)], "th"));
    const body = made.createTBody();
    for (let i = traces[0].x.length - 1; i >= 0 && body.rows.length < 60; i--)
      body.append(row([when(traces[0].x[i]), ...traces.map((t) => (t.y[i] === null ? "—" : Number(t.y[i].toPrecision(3))))], "td"));
    box.replaceChildren(made);
  }

  const figures = [...document.querySelectorAll("figure[data-chart]")];
  for (const el of figures) {
    const first = document.getElementById(el.dataset.first);
    if (first) show(el, JSON.parse(first.textContent)); else redraw(el);
    el.querySelector("details")?.addEventListener("toggle", () => table(el));
  }
  document.body.addEventListener("tick", () => figures.forEach(redraw));
  const again = () => figures.forEach((el) => el.payload && el.dataset.state !== "none" && show(el, el.payload));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
})();
