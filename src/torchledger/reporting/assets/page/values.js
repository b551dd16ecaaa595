// What buffers held, where somebody watched: NaN and Inf first.
const VALUE = { subject: 0, call: 1, buffer: 2, moment: 3, dtype: 4, shape: 5, nan: 6, inf: 7, minimum: 8, maximum: 9, mean: 10, std: 11, note: 12 };
const isBad = (row) => Boolean(row[VALUE.nan] || row[VALUE.inf]);

function drawValues(section) {
  const rows = DATA.values.rows, bad = rows.filter(isBad);
  append(section, [
    !rows.length ? null : element("p", {}, bad.length ? [element("strong", { class: "bad" }, `${formatCount(bad.length)} of ${formatCount(rows.length)} watched tensors hold NaN or Inf.`), " The first: ", launchLink(textAt(bad[0][VALUE.subject])), `, ${textAt(bad[0][VALUE.buffer])} (${textAt(bad[0][VALUE.moment])}).`]
      : `${formatCount(rows.length)} tensors were watched; none holds NaN or Inf.`, DATA.values.left_out ? ` ${formatCount(DATA.values.left_out)} further ones without either are left out.` : ""),
  ]);
  append(section, [findingsTable(), comparisonsTable(),
    DATA.values.findings_left_out ? element("p", { class: "quiet" }, `${formatCount(DATA.values.findings_left_out)} further findings are left out; \`torchledger values\` lists them.`) : null]);
  append(section, [howToRead("Where values were watched, each row is one tensor before or after one launch: how many elements are NaN or Inf, and the range, mean and spread of the others. Rows that hold NaN or Inf stand first; the first of them in the order of the step is where to look.",
    "\"Compiled against eager\" runs the same operators in float64 and says how far each of the two is from that.")]);
  if (!rows.length) return;
  const V = VALUE, text = (key) => (place) => textAt(rows[place][key]), number = (key) => (place) => rows[place][key];
  const column = (key, label, width, value, format, align) => ({ key, label, width, align, value, text: format ? (place) => format(value(place)) : value });
  const box = element("div", {});
  append(section, [box]);
  new LongTable({
    parent: box, label: "watched values", rows: rows.map((_, place) => place), haystack: (place) => `${textAt(rows[place][V.subject])} ${textAt(rows[place][V.buffer])}`,
    open: (place) => { const row = rowOfLaunch(textAt(rows[place][V.subject])); if (row !== undefined) location.hash = launchAddress(row); },
    sort: { key: "bad" },
    columns: [
      column("subject", "launch", 170, text(V.subject), null, "left"), column("buffer", "buffer", 130, text(V.buffer), null, "left"),
      column("moment", "moment", 80, text(V.moment), null, "left"), column("dtype", "dtype", 90, text(V.dtype), null, "left"),
      { key: "bad", label: "NaN + Inf", width: 100, value: (place) => (rows[place][V.nan] || 0) + (rows[place][V.inf] || 0), text: (place) => formatCount((rows[place][V.nan] || 0) + (rows[place][V.inf] || 0)) },
      column("min", "min", 110, number(V.minimum), formatValue), column("max", "max", 110, number(V.maximum), formatValue),
      column("mean", "mean", 110, number(V.mean), formatValue), column("std", "std", 110, number(V.std), formatValue),
    ],
  });
}

function findingsTable() {
  const rows = DATA.values.findings || [];
  if (!rows.length) return null;
  return element("div", { class: "panel" }, element("h3", {}, "Where it began"), smallTable(
    [{ label: "question", align: "left" }, { label: "verdict", align: "left" }, { label: "launch", align: "left" }, { label: "call" }, { label: "buffer", align: "left" }, { label: "dtype", align: "left" }, { label: "elements" }, { label: "", align: "left" }],
    rows.slice(0, 50).map(([question, verdict, subject, call, buffer, dtype, count, note]) =>
      [textAt(question), textAt(verdict), launchLink(textAt(subject)), formatCount(call), textAt(buffer), textAt(dtype), formatCount(count), textAt(note)])));
}

function comparisonsTable() {
  const rows = DATA.values.comparisons || [];
  if (!rows.length) return null;
  return element("div", { class: "panel" }, element("h3", {}, "Compiled against eager, both judged in float64"), smallTable(
    [{ label: "launch", align: "left" }, { label: "buffer", align: "left" }, { label: "dtype", align: "left" }, { label: "compiled error" }, { label: "eager error" }, { label: "further off", align: "left" }, { label: "within", align: "left" }, { label: "", align: "left" }],
    rows.slice(0, 50).map(([subject, buffer, dtype, compiled, eager, further, within, note]) =>
      [launchLink(textAt(subject)), textAt(buffer), textAt(dtype), formatValue(compiled), formatValue(eager), textAt(further),
        within === null ? UNKNOWN : element("span", { class: within ? "" : "bad" }, within ? "yes" : "no"), textAt(note)])));
}

function launchLink(id) {
  const row = rowOfLaunch(id);
  return row === undefined ? id : element("a", { href: launchAddress(row) }, id);
}

function valuesOf(id) {
  if (!DATA.values || !id) return null;
  const V = VALUE, rows = DATA.values.rows.filter((row) => textAt(row[V.subject]) === id).slice(0, 100);
  if (!rows.length) return null;
  return element("section", { class: "panel" }, element("h3", {}, "Values"), smallTable(
    [{ label: "buffer", align: "left" }, { label: "moment", align: "left" }, { label: "call" }, { label: "shape", align: "left" }, { label: "NaN" }, { label: "Inf" }, { label: "min" }, { label: "max" }, { label: "mean" }, { label: "std" }, { label: "", align: "left" }],
    rows.map((row) => [element("span", { class: isBad(row) ? "bad" : "" }, textAt(row[V.buffer])), textAt(row[V.moment]), formatCount(row[V.call]), `(${textAt(row[V.shape])})`, formatCount(row[V.nan]), formatCount(row[V.inf]),
      formatValue(row[V.minimum]), formatValue(row[V.maximum]), formatValue(row[V.mean]), formatValue(row[V.std]), textAt(row[V.note])])));
}
