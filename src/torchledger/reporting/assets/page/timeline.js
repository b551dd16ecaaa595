// One step as the device ran it; without a clock of single events, the launches in their order.
function drawTimeline(section) {
  const { events, lanes, isReal, clock, step, leftOut } = timelineEvents();
  const phases = [...new Set(events.map((event) => event.phase).filter(Boolean))];
  let byPhase = false;
  const end = events.reduce((most, event) => Math.max(most, event.start + event.us), 0);
  const graphs = graphSpans(events);
  const height = 56 + lanes.length * 40 + 4;
  const canvas = element("canvas", { class: "timeline", tabindex: "0", role: "img", style: `height:${height}px`,
    "aria-label": `Timeline of ${formatCount(events.length)} events in ${formatUs(end)}. Plus and minus zoom, arrow keys move, 0 shows all.` });
  let from = 0, to = end;
  const scale = () => canvas.clientWidth / (to - from);
  const draw = () => paintTimeline(canvas, { events, lanes, graphs, from, to, height, byPhase });
  const zoom = (factor, center) => {
    const width = Math.min(end, Math.max(end / 1e5, (to - from) * factor));
    from = Math.max(0, Math.min(end - width, center - (center - from) * width / (to - from)));
    to = from + width;
    draw();
  };
  const move = (share) => { const width = to - from; from = Math.max(0, Math.min(end - width, from + share * width)); to = from + width; draw(); };
  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    return hitTimeline({ events, graphs, lanes }, from + (event.clientX - box.left) / scale(), event.clientY - box.top, 2 / scale());
  };
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) return;
    event.preventDefault();
    const box = canvas.getBoundingClientRect();
    if (event.shiftKey) move(Math.sign(event.deltaY || event.deltaX) * 0.1); else zoom(event.deltaY > 0 ? 1.25 : 0.8, from + (event.clientX - box.left) / scale());
  }, { passive: false });
  let dragged = null;
  canvas.addEventListener("pointerdown", (event) => { dragged = { x: event.clientX, from, moved: false }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (dragged) {
      if (Math.abs(event.clientX - dragged.x) > 3) dragged.moved = true;
      const width = to - from;
      from = Math.max(0, Math.min(end - width, dragged.from - (event.clientX - dragged.x) / scale()));
      to = from + width;
      if (dragged.moved) { tooltip.hide(); draw(); }
      return;
    }
    const hit = under(event);
    canvas.style.cursor = hit ? "pointer" : "grab";
    if (hit) tooltip.show(hit.lines, event.clientX, event.clientY); else tooltip.hide();
  });
  canvas.addEventListener("pointerup", (event) => {
    const was = dragged;
    dragged = null;
    if (!was || was.moved) return;
    const hit = under(event);
    if (!hit) return;
    tooltip.hide();
    if (hit.row !== undefined) location.hash = launchAddress(hit.row);
    else { from = hit.from; to = Math.max(hit.to, hit.from + end / 1e5); draw(); }
  });
  canvas.addEventListener("pointerleave", () => { if (!dragged) tooltip.hide(); });
  canvas.onkeydown = (event) => {
    const acts = { "+": () => zoom(0.6, (from + to) / 2), "=": () => zoom(0.6, (from + to) / 2), "-": () => zoom(1.6, (from + to) / 2),
      ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), 0: () => { from = 0; to = end; draw(); } };
    if (acts[event.key]) { event.preventDefault(); acts[event.key](); }
  };
  const legend = element("p", { class: "quiet", id: "timeline-legend" });
  const showLegend = () => fill(legend, byPhase ? phases.map((phase) => [phaseSwatch(phase), `${phaseText(phase)}  `])
    : [...new Set(events.map((event) => event.category))].map((name) => [swatch(name), `${categoryText(name)}  `]));
  const colorChoice = () => {
    const made = [["category", false], ["phase", true]].map(([name, value]) => element("button", { type: "button", "aria-pressed": String(byPhase === value), "data-color": name, onclick: () => {
      byPhase = value;
      for (const each of made) each.setAttribute("aria-pressed", String((each.dataset.color === "phase") === byPhase));
      showLegend();
      draw();
    } }, `colour by ${name}`));
    return element("div", { class: "choice", id: "timeline-colour" }, made);
  };
  showLegend();
  const button = (label, title, act) => element("button", { type: "button", title, "aria-label": title, onclick: act }, label);
  append(section, [
    element("p", { class: "hint" }, isReal
      ? `${formatCount(events.length)} device events${step === null ? "" : ` of recorded step ${step + 1}`} on one clock (${clock}); white is idle.${leftOut ? ` ${formatCount(leftOut)} later events are left out.` : ""} Drag to move, Ctrl and wheel or the buttons to zoom; click to open.`
      : "This ledger holds no clock of single events: launches are drawn in their order, each as long as its median, without the gaps between them. A profile taken with this version keeps the events of one step."),
    howToRead("Left to right is one step on the device's clock: above, which compiled graph the events belong to; below, one row per stream (queue) of the device. A gap is time in which it had nothing to run; the tables name the cause.",
      "Many thin stripes mean many short launches: there the time to launch matters more than the kernels."),
    element("div", { class: "choice" }, button("+", "zoom in", () => zoom(0.5, (from + to) / 2)), button("−", "zoom out", () => zoom(2, (from + to) / 2)),
      button("◀", "earlier", () => move(-0.4)), button("▶", "later", () => move(0.4)), button("all", "show the whole step", () => { from = 0; to = end; draw(); })),
    phases.length ? colorChoice() : null, canvas, legend, idleTables(),
  ]);
  new ResizeObserver(draw).observe(canvas);
  redrawOnTheme.push(draw);
  draw();
}

function timelineEvents() {
  const timeline = DATA.timeline;
  if (timeline) {
    const events = timeline.start_ns.map((start, place) => {
      const id = textAt(timeline.launch[place]);
      const row = id ? rowOfLaunch(id) : undefined;
      return { start: start / 1e3, us: timeline.duration_ns[place] / 1e3, name: textAt(timeline.name[place]), category: textAt(timeline.category[place]),
        phase: timeline.phase?.length ? textAt(timeline.phase[place]) : "", lane: timeline.lane[place], row, graph: row === undefined ? null : graphName(row) };
    });
    return { events, lanes: timeline.lanes, isReal: true, clock: timeline.clock, step: timeline.step, leftOut: timeline.left_out };
  }
  const calls = RECORDED ? RECORDED.calls.filter((call) => call[CALL.start] !== null && call[CALL.host] !== null) : [];
  if (RECORDED?.on_cpu && calls.length) {
    const threads = [...new Set(calls.map((call) => call[CALL.thread]))].sort((a, b) => a - b);
    const events = calls.map((call) => ({ start: call[CALL.start], us: call[CALL.host], name: textAt(call[CALL.name]), category: textAt(call[CALL.category]),
      phase: textAt(call[CALL.phase]), lane: threads.indexOf(call[CALL.thread]), row: undefined, graph: textAt(call[CALL.kind]) === "graph" ? textAt(call[CALL.name]) : null }));
    return { events, lanes: threads.map((thread) => `thread ${thread}`), isReal: true, clock: "host", step: null, leftOut: RECORDED.left_out };
  }
  const events = [];
  if (hasTime && DATA.graphs.length) {
    let start = 0;
    for (let row = 0; row < N; row++) {
      const us = duration(row);
      if (!us) continue;
      events.push({ start, us, name: shownName(row), category: category(row), lane: 0, row, graph: graphName(row) });
      start += us;
    }
  }
  return { events, lanes: ["launch order"], isReal: false };
}

function graphSpans(events) {
  const spans = [];
  for (const event of events) {
    const last = spans[spans.length - 1];
    if (!event.graph) continue;
    if (last && last.name === event.graph) { last.to = Math.max(last.to, event.start + event.us); last.busy += event.us; last.count++; }
    else spans.push({ name: event.graph, from: event.start, to: event.start + event.us, busy: event.us, count: 1 });
  }
  return spans;
}

function hitTimeline({ events, graphs, lanes }, moment, y, slack) {
  if (y >= 24 && y < 46) {
    const graph = graphs.find((each) => moment >= each.from - slack && moment <= each.to + slack);
    return graph && { lines: [graph.name, `${formatUs(graph.to - graph.from)} from first to last event, ${formatUs(graph.busy)} of kernels`, `${formatCount(graph.count)} events; click to zoom`], from: graph.from, to: graph.to };
  }
  const lane = Math.floor((y - 56) / 40);
  if (lane < 0 || lane >= lanes.length) return null;
  let best = null, least = slack;
  for (const event of events) {
    if (event.lane !== lane) continue;
    const away = moment < event.start ? event.start - moment : moment > event.start + event.us ? moment - event.start - event.us : 0;
    if (away <= least) { best = event; least = away; if (!away) break; }
  }
  if (!best) return null;
  const lines = [shortName(best.name), `${formatUs(best.us)} at ${formatUs(best.start)}`, best.row === undefined ? `${categoryText(best.category)}${best.graph ? "" : "; outside of compiled graphs"}` : `${launchId(best.row)}  ${categoryText(best.category)}`];
  if (best.phase) lines.push(phaseText(best.phase));
  return best.row === undefined ? { lines, from: best.start, to: best.start + best.us } : { lines, row: best.row };
}

function paintTimeline(canvas, { events, lanes, graphs, from, to, height, byPhase }) {
  const width = canvas.clientWidth;
  if (!width) return;
  const ratio = window.devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const scale = width / (to - from), x = (moment) => (moment - from) * scale;
  const text = styleOf("--text"), muted = styleOf("--muted"), line = styleOf("--line"), sans = styleOf("--sans");
  pen.font = `11px ${sans}`;
  pen.textBaseline = "middle";
  paintRuler(pen, { from, to, width, height, x, muted, line });
  const label = (name, left, right, y, color) => {
    const room = Math.min(right, width) - Math.max(left, 0) - 8;
    if (room < 30) return;
    pen.fillStyle = color;
    pen.fillText(fitText(pen, name, room), Math.max(left, 0) + 4, y);
  };
  for (const graph of graphs) {
    if (graph.to < from || graph.from > to) continue;
    pen.fillStyle = styleOf(graph.name.startsWith("backward") ? "--graph-backward" : "--graph-forward");
    pen.fillRect(x(graph.from), 24, Math.max(1, x(graph.to) - x(graph.from) - 1), 20);
    label(graph.name, x(graph.from), x(graph.to), 34, text);
  }
  const colors = new Map();
  let lastEdge = lanes.map(() => -1);
  for (const event of events) {
    if (event.start + event.us < from || event.start > to) continue;
    const left = x(event.start), wide = event.us * scale, top = 56 + event.lane * 40;
    if (wide < 0.4 && left - lastEdge[event.lane] < 0.4) continue;
    const kind = byPhase ? event.phase : event.category;
    if (!colors.has(kind)) colors.set(kind, byPhase ? styleOf(`--category-${phaseSlot(kind)}`) : colorOf(kind));
    pen.fillStyle = colors.get(kind);
    pen.fillRect(left, top, Math.max(0.6, wide > 3 ? wide - 0.6 : wide), 26);
    lastEdge[event.lane] = left + wide;
    if (wide > 40) label(shortName(event.name), left, left + wide, top + 13, styleOf("--on-category"));
  }
  pen.fillStyle = muted;
  lanes.forEach((name, lane) => pen.fillText(name, 4, 56 + lane * 40 + 34));
}

// As much of a name as there is room for, in pixels; a piece of three letters or fewer says nothing.
function fitText(pen, name, room) {
  if (pen.measureText(name).width <= room) return name;
  let letters = Math.floor(name.length * room / pen.measureText(name).width);
  while (letters > 3 && pen.measureText(name.slice(0, letters) + "…").width > room) letters--;
  return letters > 3 ? name.slice(0, letters) + "…" : "";
}

function paintRuler(pen, { from, to, width, height, x, muted, line }) {
  const rough = (to - from) / Math.max(2, width / 110), power = 10 ** Math.floor(Math.log10(rough));
  const tick = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  pen.strokeStyle = line;
  pen.fillStyle = muted;
  for (let moment = Math.ceil(from / tick) * tick; moment <= to; moment += tick) {
    pen.beginPath(); pen.moveTo(x(moment), 16); pen.lineTo(x(moment), height); pen.stroke();
    const unit = to > 1500 ? [1e3, "ms"] : [1, "µs"];
    if (x(moment) + 34 < width) pen.fillText(`${Number((moment / unit[0]).toPrecision(6))} ${unit[1]}`, x(moment) + 3, 9);
  }
}

function idleTables() {
  const step = DATA.step;
  if (!step || !step.idle_us) return null;
  const total = step.idle_us;
  const causes = (step.idle_causes || []).filter(([, us]) => us > 0);
  const gaps = (step.gaps || []).slice(0, 8);
  const hosts = gaps.some(([, , host]) => host);
  const clip = (name) => element("span", { class: "clip", title: name }, name);
  return element("div", { class: "columns idle" },
    causes.length ? element("div", { class: "panel" }, element("h3", {}, `Idle ${formatUs(total)}${step.steps ? " a step" : ""}, by cause`),
      smallTable([{ label: "cause", align: "left" }, { label: "time" }, { label: "share" }], causes.map(([cause, us]) => [cause, formatUs(us), formatShare(us / total)]))) : null,
    gaps.length ? element("div", { class: "panel" }, element("h3", {}, "Longest pauses of the profile"),
      smallTable([{ label: "pause" }, { label: "cause", align: "left" }, hosts && { label: "host was in", align: "left" }, { label: "until", align: "left" }].filter(Boolean),
        gaps.map(([us, cause, host, after]) => [formatUs(us), cause, ...(hosts ? [clip(host)] : []), clip(after)]))) : null);
}
