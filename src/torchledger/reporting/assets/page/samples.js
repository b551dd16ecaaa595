// A set of samples: how far it is, what it cost, what failed.
function drawSamples(section) {
  const S = DATA.samples, seconds = known((value) => formatUs(value * 1e6));
  append(section, [
    element("p", { class: "lead" }, DATA.sentences[0]),
    DATA.sentences.slice(1).map((text) => element("p", {}, text)),
    S.planned ? element("div", { class: "progress", role: "img", "aria-label": `${formatCount(S.finished)} of ${formatCount(S.planned)} planned shapes are finished` },
      element("span", { style: `width:${Math.min(100, 100 * S.finished / S.planned)}%` })) : null,
    factList(S.facts),
    howToRead("A shape is one question: an operator with its sizes and element type. A label is one answer: forward and backward of a shape are two. Each label holds several timed iterations; the median is what a model learns from.",
      "Cost is the time between one finished group of shapes and the next: making inputs, warm-up, compiling and profiling included. The timed iterations are the part of it in which the device computed what was asked.",
      "Spread is the interquartile range over the median, the middle one over all labels: how well a time repeats from one iteration to the next."),
    S.rounds.length || S.curve.length > 2 ? element("div", { class: "columns" },
      S.curve.length > 2 ? element("div", { class: "panel" }, element("h3", {}, "Shapes finished over time"), element("div", { class: "plot small", id: "progress-plot" })) : null,
      S.rounds.length ? element("div", { class: "panel" }, element("h3", {}, "Error on new shapes over device time"), element("div", { class: "plot small", id: "rounds-plot" })) : null) : null,
    costBars(S.operators, seconds),
    element("h3", {}, "By operator"),
  ]);
  const draw = () => {
    if (byId("progress-plot")) drawCurve(byId("progress-plot"), S.curve, S.planned);
    if (byId("rounds-plot")) drawRounds(byId("rounds-plot"), S.rounds);
  };
  draw();
  redrawOnTheme.push(draw);
  const box = element("div", {});
  append(section, [box]);
  samplesTable(box, S.operators, seconds);
  if (S.failures.length) append(section, [element("h3", {}, "Why labels failed"),
    smallTable([{ label: "labels" }, { label: "reason", align: "left" }], S.failures.map(([reason, count]) => [formatCount(count), reason])),
    S.failures_left_out ? element("p", { class: "quiet" }, `${formatCount(S.failures_left_out)} further reasons are left out.`) : null]);
}

function samplesTable(parent, rows, seconds) {
  const words = (key, label, width) => ({ key, label, width, align: "left", value: (place) => rows[place][key], text: (place) => rows[place][key] });
  const number = (key, label, width, format, title) => ({ key, label, width, title, value: (place) => rows[place][key], text: (place) => format(rows[place][key]) });
  const bad = (place) => rows[place].bad.reduce((sum, [, count]) => sum + count, 0);
  const hasCost = rows.some((row) => row.wall_s !== null);
  return new LongTable({
    parent, label: "operators", rows: rows.map((_, place) => place), open: () => {}, sort: { key: hasCost ? "wall_s" : "labels" },
    haystack: (place) => `${rows[place].operator} ${rows[place].dtype}`,
    columns: [
      words("operator", "operator", 190), words("dtype", "dtype", 90),
      { ...number("finished", "shapes", 120, formatCount, "finished, of those that were planned"), text: (place) => rows[place].planned === null ? formatCount(rows[place].finished) : `${formatCount(rows[place].finished)} of ${formatCount(rows[place].planned)}` },
      number("labels", "labels", 80, formatCount),
      { key: "bad", label: "failed", width: 130, value: bad, text: (place) => rows[place].bad.map(([status, count]) => `${formatCount(count)} ${status}`).join(", ") },
      ...(hasCost ? [number("wall_s", "cost", 84, seconds, "time from one finished group to the next, shared among its shapes"),
        { key: "each", label: "a shape", width: 84, title: "cost of one shape, mean", value: (place) => rows[place].wall_s === null ? null : rows[place].wall_s / rows[place].finished, text: (place) => rows[place].wall_s === null ? UNKNOWN : seconds(rows[place].wall_s / rows[place].finished) }] : []),
      number("device_s", "timed", 84, seconds, "sum of the timed iterations"),
      number("shortest_us", "shortest", 90, formatUs), number("longest_us", "longest", 90, formatUs),
      number("spread", "spread", 80, formatShare, "interquartile range over median, middle of all labels"),
    ],
  });
}

function costBars(operators, seconds) {
  const sums = new Map();
  for (const row of operators) if (row.wall_s) sums.set(row.operator, (sums.get(row.operator) || 0) + row.wall_s);
  if (!sums.size) return null;
  const sorted = [...sums].sort((a, b) => b[1] - a[1]), total = sorted.reduce((sum, [, value]) => sum + value, 0);
  const shown = sorted.slice(0, 12), rest = sorted.slice(12);
  if (rest.length) shown.push([`${rest.length} others`, rest.reduce((sum, [, value]) => sum + value, 0)]);
  const most = Math.max(...shown.map(([, value]) => value));
  return element("div", { class: "panel" }, element("h3", {}, "Cost by operator"),
    element("div", { class: "bars" }, shown.map(([name, value]) => element("div", { class: "bar-row still" },
      element("span", { class: "bar-name" }, name),
      element("span", { class: "bar-track" }, element("span", { class: "bar category-1", style: `width:${100 * value / most}%` })),
      element("span", { class: "bar-value" }, seconds(value)), element("span", { class: "bar-share" }, formatShare(value / total))))));
}

const linearAxis = (title) => ({ title: { text: title }, gridcolor: styleOf("--line"), linecolor: styleOf("--line"), rangemode: "tozero", zeroline: false });

function drawCurve(place, curve, planned) {
  const end = curve[curve.length - 1][0], minutes = end > 300, x = curve.map(([seconds]) => (minutes ? seconds / 60 : seconds));
  const traces = [{ type: "scatter", mode: "lines", x, y: curve.map(([, count]) => count), name: "finished", line: { color: styleOf("--category-1"), width: 2 } }];
  if (planned) traces.push({ type: "scatter", mode: "lines", x: [x[0], x[x.length - 1]], y: [planned, planned], name: "planned", line: { color: styleOf("--muted"), dash: "dash", width: 1 } });
  Plotly.react(place, traces, { ...plotTheme(), showlegend: Boolean(planned), xaxis: linearAxis(minutes ? "minutes, without pauses" : "seconds, without pauses"), yaxis: linearAxis("shapes") }, { ...PLOT_OPTIONS, displayModeBar: false });
}

function drawRounds(place, rounds) {
  Plotly.react(place, [{ type: "scatter", mode: "lines+markers", x: rounds.map((each) => each.device_minutes), y: rounds.map((each) => each.error_pct), name: "error", line: { color: styleOf("--category-2"), width: 2 } }],
    { ...plotTheme(), showlegend: false, xaxis: linearAxis("minutes of the device"), yaxis: linearAxis("mean error, %") }, { ...PLOT_OPTIONS, displayModeBar: false });
}
