// Predicted beside measured: points with their intervals, errors by category, and a table.
const PREDICTION = { subject: 0, us: 1, low: 2, high: 3, coverage: 4, range: 5, device: 6, model: 7, measured: 8, roofline: 9, note: 10 };

function drawPredictions(section) {
  const rows = DATA.predictions.rows, P = PREDICTION;
  append(section, [predictedSteps()]);
  if (!rows.length) return;
  const both = rows.filter((row) => row[P.measured]);
  const error = (row) => row[P.us] / row[P.measured] - 1;
  const absolute = both.map((row) => Math.abs(error(row))).sort((a, b) => a - b);
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const inside = both.filter((row) => row[P.low] <= row[P.measured] && row[P.measured] <= row[P.high]).length;
  const models = [...new Set(rows.map((row) => textAt(row[P.model])))], devices = [...new Set(rows.map((row) => textAt(row[P.device])))];
  const beyond = rows.filter((row) => textAt(row[P.range]) === "extrapolated").length;
  append(section, [
    element("p", {}, `${formatCount(rows.length)} predictions for ${devices.join(", ")} by ${models.join(", ")}: ${formatUs(rows.reduce((sum, row) => sum + row[P.us], 0))} in all.`,
      beyond ? ` ${formatCount(beyond)} of them lie beyond what the model was trained on.` : "",
      DATA.predictions.left_out ? ` ${formatCount(DATA.predictions.left_out)} further ones are left out${DATA.predictions.families ? ", evenly; the table by operator counts all" : ""}.` : ""),
    DATA.samples ? element("p", { class: "quiet" }, withCode("A model that was trained on these very samples looks better here than it is; `torchledger evaluate` measures its error on rows that it did not see.")) : null,
    (DATA.predictions.refused || []).length ? element("p", { class: "quiet" }, "Not predicted: ", DATA.predictions.refused.join(" ")) : null,
    both.length ? factList([
      ["compared", `${formatCount(both.length)} with a measurement: ${formatUs(both.reduce((sum, row) => sum + row[P.us], 0))} predicted, ${formatUs(both.reduce((sum, row) => sum + row[P.measured], 0))} measured`],
      ["mean error", formatShare(mean(absolute))], ["median error", formatShare(absolute[Math.floor(absolute.length / 2)])],
      ["p90", `${formatShare(absolute[Math.min(absolute.length - 1, Math.floor(absolute.length * 0.9))])} (nine of ten err by less)`],
      ["bias", `${formatShare(mean(both.map(error)))} (mean signed error; below zero is too short)`],
      ["in interval", `${formatShare(inside / both.length)} (intervals claim ${formatShare(mean(both.map((row) => row[P.coverage])))})`],
    ]) : element("p", { class: "quiet" }, DATA.predictions.elsewhere
      ? `${formatCount(DATA.predictions.elsewhere)} of them were measured on another kind of device, with which they cannot be compared.` : "None of them has a measurement beside it."),
    howToRead("Each point is one prediction; on the dashed line it would be right. The vertical bar is the interval in which the model expects the time.",
      "Inside, edge and extrapolated say how the work lies to what the model was trained on: within it, at its border, beyond it. Beyond it, trust neither the time nor the interval."),
  ]);
  if (both.length) {
    const plot = element("div", { class: "plot", id: "prediction-plot" });
    append(section, [plot, errorByCategory(both, error)]);
    const draw = () => drawPredictionPlot(plot, both);
    draw();
    restOutOfSight(plot);
    redrawOnTheme.push(draw);
  }
  const box = element("div", {});
  append(section, [box]);
  new LongTable({
    parent: box, label: "predictions", rows: rows.map((_, place) => place), haystack: (place) => textAt(rows[place][P.subject]),
    open: (place) => { const row = rowOfLaunch(textAt(rows[place][P.subject])); if (row !== undefined) location.hash = launchAddress(row); },
    sort: { key: "us" },
    columns: [
      { key: "subject", label: "subject", align: "left", width: 260, value: (place) => textAt(rows[place][P.subject]), text: (place) => textAt(rows[place][P.subject]) },
      { key: "us", label: "predicted", width: 100, value: (place) => rows[place][P.us], text: (place) => formatUs(rows[place][P.us]) },
      { key: "low", label: "from", width: 90, value: (place) => rows[place][P.low], text: (place) => formatUs(rows[place][P.low]) },
      { key: "high", label: "to", width: 90, value: (place) => rows[place][P.high], text: (place) => formatUs(rows[place][P.high]) },
      { key: "measured", label: "measured", width: 100, value: (place) => rows[place][P.measured], text: (place) => formatUs(rows[place][P.measured]) },
      { key: "error", label: "error", width: 90, value: (place) => rows[place][P.measured] ? Math.abs(error(rows[place])) : null, text: (place) => rows[place][P.measured] ? formatShare(error(rows[place])) : "" },
      { key: "range", label: "range", align: "left", width: 110, value: (place) => textAt(rows[place][P.range]), text: (place) => textAt(rows[place][P.range]) },
    ],
  });
}

function predictedSteps() {
  const steps = DATA.predictions.steps || [];
  if (!steps.length) return null;
  const devices = new Set(steps.map((step) => step.device)), isOne = devices.size === 1;
  return element("div", { class: "panel" }, element("h3", {}, isOne ? `A whole step on ${[...devices][0]}` : "A whole step"), smallTable(
    [...(isOne ? [] : [{ label: "device", align: "left" }]), { label: "launched", align: "left" }, { label: "predicted" }, { label: "interval" }, { label: "measured" }, { label: "error" }, { label: "kernels" }, { label: "eager" }, { label: "optimizer" }, { label: "gaps" }, { label: "host" }, { label: "bound by", align: "left" }, { label: "beyond training" }],
    steps.map((step) => [...(isOne ? [] : [step.device]), step.mode === "graphs" ? "as CUDA graphs" : "one by one", element("strong", {}, formatUs(step.us)), `${formatUs(step.low_us)} to ${formatUs(step.high_us)}`,
      step.measured_us ? formatUs(step.measured_us) : "", step.measured_us && step.is_comparable ? formatShare(step.us / step.measured_us - 1) : "", formatUs(step.kernels_us), formatUs(step.eager_us + step.collectives_us), formatUs(step.optimizer_us),
      formatUs(step.gaps_us), formatUs(step.host_us), step.is_host_bound ? "host" : "device", `${formatCount(step.extrapolated)} of ${formatCount(step.priced)}`])),
    [...new Set(steps.flatMap((step) => step.notes))].map((note) => element("p", { class: "quiet" }, `${capital(note)}.`)),
    new Set(steps.map((step) => step.mode)).size > 1 ? element("p", { class: "quiet" }, "The ledger does not say how the measured step was launched: compare it with the row that applies.") : null);
}

function drawPredictionPlot(plot, rows) {
  const P = PREDICTION, ranges = [...new Set(rows.map((row) => textAt(row[P.range])))].sort();
  const all = rows.flatMap((row) => [row[P.measured], row[P.us]]).filter((us) => us > 0);
  const low = Math.min(...all) / 1.5, high = Math.max(...all) * 1.5;
  const marks = { inside: ["circle", "--category-1"], edge: ["diamond", "--category-2"], extrapolated: ["x", "--category-6"] };
  const traces = ranges.map((range) => {
    const members = rows.filter((row) => textAt(row[P.range]) === range), [symbol, color] = marks[range] || ["star", "--category-0"];
    return { type: "scatter", mode: "markers", name: plainText(range), hoverinfo: "none", x: members.map((row) => row[P.measured]), y: members.map((row) => row[P.us]),
      customdata: members, marker: { symbol, color: styleOf(color), size: 8, opacity: 0.8 },
      error_y: { type: "data", symmetric: false, array: members.map((row) => Math.max(0, row[P.high] - row[P.us])), arrayminus: members.map((row) => Math.max(0, row[P.us] - row[P.low])), thickness: 0.8, width: 2, color: styleOf(color) } };
  });
  traces.push({ type: "scatter", mode: "lines", x: [low, high], y: [low, high], name: "equal", hoverinfo: "none", line: { color: styleOf("--muted"), dash: "dash", width: 1 } });
  Plotly.react(plot, traces, { ...plotTheme(), xaxis: plotAxis("measured, µs"), yaxis: plotAxis("predicted, µs") }, PLOT_OPTIONS);
  if (plot.dataset.listens) return;
  plot.dataset.listens = "yes";
  plot.on("plotly_hover", (event) => {
    const row = event.points[0].customdata;
    if (row) tooltip.show([textAt(row[P.subject]), `predicted ${formatUs(row[P.us])} (${formatUs(row[P.low])} to ${formatUs(row[P.high])})`, `measured ${formatUs(row[P.measured])}: ${formatShare(row[P.us] / row[P.measured] - 1)}`, textAt(row[P.range])], event.event.clientX, event.event.clientY);
  });
  plot.on("plotly_unhover", tooltip.hide);
}

function errorByCategory(rows, error) {
  const groups = new Map();
  for (const row of rows) {
    const launch = rowOfLaunch(textAt(row[PREDICTION.subject]));
    const name = launch === undefined ? textAt(row[PREDICTION.subject]).split(/[ (]/)[0] : category(launch);
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(row);
  }
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  if (DATA.predictions.families) return element("div", {}, element("h3", {}, "Error by operator"), smallTable(
    [{ label: "operator", align: "left" }, { label: "labels" }, { label: "measured" }, { label: "predicted" }, { label: "mean error" }, { label: "bias" }],
    DATA.predictions.families.map(([name, count, measured, predicted, size, bias]) => [name, formatCount(count), formatUs(measured), formatUs(predicted), formatShare(size), formatShare(bias)])));
  return element("div", {}, element("h3", {}, "Error by operator family"), smallTable(
    [{ label: "family", align: "left" }, { label: "launches" }, { label: "measured" }, { label: "predicted" }, { label: "mean error" }, { label: "bias" }],
    [...groups].map(([name, members]) => [categoryText(name), formatCount(members.length), formatUs(members.reduce((sum, row) => sum + row[PREDICTION.measured], 0)),
      formatUs(members.reduce((sum, row) => sum + row[PREDICTION.us], 0)), formatShare(mean(members.map((row) => Math.abs(error(row))))), formatShare(mean(members.map(error)))])));
}

const offBy = (error) => `${formatShare(Math.abs(error))} too ${error < 0 ? "short" : "long"}`;

function predictionPart(id, row) {
  if (!DATA.predictions || !id) return null;
  const P = PREDICTION, found = DATA.predictions.rows.filter((each) => textAt(each[P.subject]) === id);
  if (!found.length) return null;
  return element("section", { class: "panel" }, element("h3", {}, "Prediction beside measurement"), found.map((each) => element("p", {},
    element("strong", {}, `predicted ${formatUs(each[P.us])}`), ` (${formatUs(each[P.low])} to ${formatUs(each[P.high])}, ${formatShare(each[P.coverage])} interval, ${textAt(each[P.range])}) by ${textAt(each[P.model])}`,
    each[P.measured] ? `; measured ${formatUs(each[P.measured])}: ${offBy(each[P.us] / each[P.measured] - 1)}.` : "; not measured.", each[P.note] ? ` ${textAt(each[P.note])}` : "")));
}
