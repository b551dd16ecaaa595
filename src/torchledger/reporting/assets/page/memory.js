// What fills the device in a step: the live set by purpose over the step's entries, and what is alive at the peak.
const MEMORY = DATA.memory || null;

function drawMemory(section) {
  const place = element("div", { class: "plot", id: "memory-plot" });
  const x = MEMORY.entries.map((_, number) => number);
  const total = x.map((number) => MEMORY.levels.reduce((sum, level) => sum + level[number], 0));
  const draw = () => {
    const traces = MEMORY.categories.map(([, name], slot) => ({ type: "scatter", mode: "lines", stackgroup: "alive", name, hoverinfo: "none", x, y: MEMORY.levels[slot],
      line: { width: 0.5, color: styleOf(`--category-${slot % 9}`) } }));
    if (MEMORY.counted.length) traces.push({ type: "scatter", mode: "lines", name: "counted", hoverinfo: "none", x, y: MEMORY.counted, connectgaps: true, line: { width: 1, dash: "dot", color: styleOf("--text") } });
    Plotly.react(place, traces, { ...plotTheme(), hovermode: "x", xaxis: linearAxis("entries of the step, in order"), yaxis: { ...linearAxis("alive"), tickformat: "~s", ticksuffix: "B", exponentformat: "SI" } }, PLOT_OPTIONS);
  };
  const facts = [`Peak: ${formatBytes(MEMORY.peak_bytes)} on ${MEMORY.device}, made by ${MEMORY.peak_at}.`,
    MEMORY.measured_bytes === null ? "" : ` Counted beside it: ${formatBytes(MEMORY.measured_bytes)}.`,
    MEMORY.reserved_bytes === null ? "" : ` Reserved: ${formatBytes(MEMORY.reserved_bytes)}.`].join("");
  append(section, [
    element("p", { class: "hint" }, facts),
    howToRead("The height is what is alive at an entry of the step: a call, or a launch inside a compiled graph. It is added up from the storages that the ledger saw appear and end, each rounded as the device's allocator does.",
      "Activations were made before a backward and are alive when it begins. Point at the chart to see the entry and what is alive there."),
    place,
    MEMORY.left_out ? element("p", { class: "quiet" }, `Of ${formatCount(MEMORY.left_out + x.length)} entries the highest of each few neighbours is drawn.`) : null,
    MEMORY.advice.length ? element("div", {}, element("h3", {}, "What recomputing would free"), element("ul", {}, MEMORY.advice.map((each) => element("li", {}, each)))) : null,
    element("h3", {}, "Heaviest tensors at the peak"),
    smallTable([{ label: "tensor", align: "left" }, { label: "what it is for", align: "left" }, { label: "alive" }, { label: "of peak" }, { label: "type and shape", align: "left" }, { label: "module", align: "left" }, { label: "source line", align: "left" }],
      MEMORY.tensors.slice(0, 30).map(([name, use, bytes, shape, module, source]) => [name, use, formatBytes(bytes), formatShare(bytes / MEMORY.peak_bytes), shape, module, source])),
    MEMORY.notes.length ? element("ul", {}, MEMORY.notes.map((note) => element("li", {}, note))) : null,
  ]);
  draw();
  restOutOfSight(place);
  place.on("plotly_hover", (event) => {
    const number = event.points[0].pointNumber;
    tooltip.show([`${MEMORY.entries[number]}: ${formatBytes(total[number])}`, ...MEMORY.categories.map(([, name], slot) => MEMORY.levels[slot][number] ? `${name}: ${formatBytes(MEMORY.levels[slot][number])}` : "")],
      event.event.clientX, event.event.clientY);
  });
  place.on("plotly_unhover", () => tooltip.hide());
  redrawOnTheme.push(draw);
}
