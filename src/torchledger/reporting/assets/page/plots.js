// The roofline and the bandwidth plot: one point per kernel and amount of work, its area the time it takes in a step.
const plainText = (text) => text.replace(/[<>&]/g, " ");  // Plotly reads a little HTML in names

function plotPoints() {
  const points = new Map();
  for (let row = 0; row < N; row++) {
    const time = duration(row);
    if (!time) continue;
    const key = [LAUNCHES.kernel[row], operations(row), at("bytes_moved", row), LAUNCHES.dtype[row]].join("|");
    const point = points.get(key);
    if (point) { point.rows.push(row); point.weight += weightOf(row); } else points.set(key, { rows: [row], weight: weightOf(row) });
  }
  return [...points.values()].map((point) => {
    const row = point.rows[0];
    const us = point.rows.reduce((sum, each) => sum + duration(each), 0) / point.rows.length;
    return { ...point, row, us, category: category(row), operations: operations(row), bytes: at("bytes_moved", row) };
  });
}

const plainName = (text) => text.replaceAll("`", "'");  // withCode reads backticks

const PLOT_OPTIONS = { displaylogo: false, responsive: true, modeBarButtons: [["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] };
const plotTheme = () => ({
  paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
  font: { color: styleOf("--text"), family: styleOf("--sans"), size: 12 },
  margin: { l: 62, r: 18, t: 12, b: 50 }, showlegend: true, hovermode: "closest",
  modebar: { bgcolor: "rgba(0,0,0,0)", color: styleOf("--muted"), activecolor: styleOf("--accent") },
  legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, itemsizing: "constant", font: { size: 11 } },
});
// A tick a decade; where all points lie within one or two, as many as are readable, or there would be no number at all.
const plotAxis = (title, values = []) => ({
  type: "log", title: { text: title }, gridcolor: styleOf("--line"), zeroline: false, linecolor: styleOf("--line"),
  exponentformat: "power", minor: { ticks: "" },
  ...(values.length && Math.max(...values) < 30 * Math.min(...values) ? { nticks: 6 } : { dtick: 1 }),
});

// A plot of thousands of points costs every frame of the page, also when it is out of sight; then it is not rendered.
const restOutOfSight = (place) => new IntersectionObserver((entries) => {
  for (const entry of entries) place.style.contentVisibility = entry.isIntersecting ? "visible" : "hidden";
}, { rootMargin: "150px" }).observe(place);

function drawRoofline(section) {
  const points = plotPoints();
  const ceilings = DATA.ceilings;
  const place = element("div", { class: "plot", id: "roofline-plot" });
  const note = element("p", { class: "quiet" });
  let mode = points.some((point) => point.operations && point.bytes) ? "roofline" : "bandwidth";
  const draw = () => {
    const drawn = mode === "roofline" ? points.filter((point) => point.operations && point.bytes) : points.filter((point) => point.bytes);
    const most = Math.max(...drawn.map((point) => point.weight), 1e-9);
    const x = mode === "roofline" ? (point) => point.operations / point.bytes : (point) => point.bytes;
    const y = mode === "roofline" ? (point) => point.operations / point.us / 1e6 : (point) => point.bytes / point.us / 1e3;
    const traces = groupedByCategory(drawn).map(([name, group]) => ({
      type: "scatter", mode: "markers", name: plainText(categoryText(name)), hoverinfo: "none",
      x: group.map(x), y: group.map(y), customdata: group.map((point) => point.row),
      marker: { color: colorOf(name), symbol: CATEGORY_MARK[name] || "star", opacity: 0.78, line: { color: styleOf("--surface"), width: 0.7 },
        size: group.map((point) => 6 + 30 * Math.sqrt(point.weight / most)) },
    }));
    traces.push(...ceilingLines(mode, drawn.map(x), ceilings));
    const layout = { ...plotTheme(),
      xaxis: plotAxis(mode === "roofline" ? "operations per byte of minimum traffic" : "minimum bytes of one launch", ceilings.copy_gb_per_s ? [] : drawn.map(x)),
      yaxis: plotAxis(mode === "roofline" ? "TFLOP/s (1e12 operations per second)" : "GB/s (1e9 bytes per second)", ceilings.copy_gb_per_s ? [] : drawn.map(y)) };
    Plotly.react(place, traces, layout, PLOT_OPTIONS);
    const left = points.length - drawn.length;
    fill(note, left ? `${formatCount(left)} of ${formatCount(points.length)} points are not drawn: ${mode === "roofline" ? "they do no arithmetic, or their work or bytes are unknown; see bandwidth" : "their bytes are unknown"}. ` : "",
      ceilings.copy_gb_per_s ? `Ceilings of ${ceilings.device} were measured${ceilings.measured_utc ? " " + ceilings.measured_utc.slice(0, 10) : ""}: ${formatRatio(ceilings.copy_gb_per_s)} GB/s copying.`
        : withCode(`No ceilings are drawn: nobody measured those of ${plainName(ceilings.device || "this device")}. Measure them with \`torchledger doctor\`; data sheets are not used.`));
  };
  append(section, [
    element("p", { class: "hint" }, "A point is a kernel at one amount of work, its area its time in a step. Operations are tensor FLOPs plus those of loop bodies. Click a point to open the kernel."),
    howToRead("To the left stand kernels that move much memory for little arithmetic, to the right those that compute much on what they load; the higher, the faster.",
      "The sloped line is the device's copy bandwidth, flat lines its best matrix product of an element type, both measured. A kernel near a line cannot get much faster without doing less; one far below it can.",
      "Points above a line: minimum traffic counts each address once, and what a cache still holds is read faster than memory."),
    choice("plot-mode", [["roofline", "roofline"], ["bandwidth", "bandwidth"]], mode, (value) => { mode = value; draw(); }),
    place, note,
  ]);
  draw();
  restOutOfSight(place);
  place.on("plotly_hover", (event) => {
    const point = event.points[0], row = point.customdata;
    if (row === undefined) { tooltip.show([point.data.name], event.event.clientX, event.event.clientY); return; }
    tooltip.show(launchLines(row), event.event.clientX, event.event.clientY);
  });
  place.on("plotly_unhover", () => tooltip.hide());
  place.on("plotly_click", (event) => {
    const row = event.points[0].customdata;
    if (row !== undefined) { tooltip.hide(); location.hash = launchAddress(row); }
  });
  redrawOnTheme.push(draw);
}

function groupedByCategory(points) {
  const groups = new Map();
  for (const point of points) {
    if (!groups.has(point.category)) groups.set(point.category, []);
    groups.get(point.category).push(point);
  }
  const rank = (name) => (CATEGORY_ORDER.indexOf(name) + 1) || 99;
  return [...groups].sort((a, b) => rank(a[0]) - rank(b[0]));
}

function ceilingLines(mode, values, ceilings) {
  if (!ceilings.copy_gb_per_s || !values.length) return [];
  const low = Math.min(...values) / 3, high = Math.max(...values) * 3;
  const line = (x, y, name, dash) => ({ type: "scatter", mode: "lines", x, y, name: plainText(name), hoverinfo: "none", line: { color: styleOf("--muted"), width: 1.5, dash } });
  if (mode === "bandwidth") return [line([low, high], [ceilings.copy_gb_per_s, ceilings.copy_gb_per_s], `copy ${formatRatio(ceilings.copy_gb_per_s)} GB/s`, "solid")];
  const used = new Set(LAUNCHES.dtype.map(textAt));
  if (used.has("float32")) used.add("tf32");
  const rates = Object.entries(ceilings.tflops_per_s || {}).filter(([name]) => used.has(name));
  const top = Math.max(...rates.map(([, value]) => value), 1e-3);
  const ridge = top * 1e3 / ceilings.copy_gb_per_s;
  const dashes = ["solid", "dash", "dot", "dashdot", "longdash"];
  return [
    line([low, Math.max(ridge, low)], [low * ceilings.copy_gb_per_s / 1e3, Math.max(ridge, low) * ceilings.copy_gb_per_s / 1e3], `copy ${formatRatio(ceilings.copy_gb_per_s)} GB/s`, "solid"),
    ...rates.map(([name, value], place) => {
      const start = value * 1e3 / ceilings.copy_gb_per_s;
      return line([start, Math.max(high, start * 2)], [value, value], `${name} ${formatRatio(value)} TFLOP/s`, dashes[place % dashes.length]);
    }),
  ];
}

const launchLines = (row) => [
  shownName(row),
  `${launchId(row)}  ${categoryText(category(row))}`,
  duration(row) !== null ? `${formatUs(duration(row))} a launch${at("step_us", row) !== null ? `, ${formatUs(at("step_us", row))} a step` : ""}` : "not timed",
  `${formatFlops(at("flops", row))} FLOPs, ${formatBytes(at("bytes_moved", row))} minimum`,
  duration(row) ? `${at("flops", row) ? `${tflopsText(row)} TFLOP/s, ` : ""}${formatRatio(gbPerS(row))} GB/s` : null,
  rooflineFraction(row) !== null ? `${formatShare(rooflineFraction(row))} of roofline, bound by ${textAt(at("bound", row)) || UNKNOWN}` : null,
  textAt(at("source", row)) || null,
];

// Buttons of which one is pressed.
function choice(id, options, value, change) {
  const buttons = options.map(([key, label]) => element("button", { type: "button", "data-value": key, "aria-pressed": String(key === value),
    onclick: () => { for (const each of buttons) each.setAttribute("aria-pressed", String(each.dataset.value === key)); change(key); } }, label));
  return element("div", { class: "choice", id, role: "group" }, buttons);
}
