// Two ledgers side by side, launches aligned by what they compute.
const CHANGE = { kind: 0, name: 1, category: 2, launchesA: 3, launchesB: 4, a: 5, b: 6, bytes: 7, flops: 8, ops: 9, source: 10, module: 11 };

function drawComparison(section) {
  const C = DATA.comparison, rows = C.rows, G = CHANGE;
  const compared = [{ label: "A" }, { label: "B" }, { label: "B − A" }, { label: "B / A" }];
  append(section, [
    C.sentences.map((text, place) => element("p", { class: place ? "" : "lead" }, text)),
    (C.settings || []).length ? smallTable([{ label: "changed setting", align: "left" }, { label: "A", align: "left" }, { label: "B", align: "left" }], C.settings, { class: "settings" }) : null,
    smallTable([{ label: "", align: "left" }, ...compared], C.totals.map(([name, unit, a, b]) => [name, ...differenceCells(unit, a, b)])),
    C.changes.length ? [element("h3", {}, "What changed"), element("ul", {}, C.changes.map((text) => element("li", {}, text))),
      C.more_changes ? element("p", { class: "quiet" }, `${formatCount(C.more_changes)} more changes; the table has all.`) : null]
      : C.is_aligned ? element("p", {}, "Both runs launch the same kernels' work: no launch split, merged, came or went.") : null,
    element("h3", {}, "By category"), smallTable([{ label: "category", align: "left" }, ...compared],
      C.categories.map(([name, a, b]) => [[swatch(name), categoryText(name)], ...differenceCells(C.unit, a, b)])),
    element("h3", {}, C.is_aligned ? "Launches by what they compute" : "Kernels by name"),
    element("p", { class: "hint" }, C.is_aligned
      ? "A row is the smallest group of launches that computes the same part of the model in both runs: same, changed, split, merged or regrouped; kernels' names play no part. Sorted by how much changed; click a head to sort otherwise."
      : "Kernels are aligned by name without its running number, within the same category. Sorted by how much changed; click a head to sort otherwise."),
  ]);
  const search = element("input", { type: "search", id: "search", placeholder: "search kernels, ops, lines…", "aria-label": "search the table", oninput: () => table.search(search.value) });
  const kinds = [...new Set(rows.map((row) => textAt(row[G.kind])))];
  const byKind = kinds.length < 2 ? null : element("select", { id: "filter-change", "aria-label": "all changes", onchange: (event) => { const value = event.target.value; table.filter("kind", value && ((place) => textAt(rows[place][G.kind]) === value)); } },
    element("option", { value: "" }, "all changes"), kinds.map((kind) => element("option", { value: kind }, changeText(kind))));
  const box = element("div", {});
  append(section, [element("div", { class: "tools" }, search, byKind), box]);
  const format = unitFormat(C.unit), amount = (count, value) => (count ? format(value) : "");
  const change = (place) => { const { [G.a]: a, [G.b]: b } = rows[place]; return a === null || b === null ? null : b - a; };
  const words = (key, label, width, place) => ({ key, label, align: "left", width, value: (row) => textAt(rows[row][place]), text: (row) => textAt(rows[row][place]), hint: (row) => textAt(rows[row][place]) });
  const number = (key, label, width, value, text, title) => ({ key, label, title, width, value, text });
  const more = (key, label, place, show, title) => rows.some((row) => row[place]) ? [number(key, label, 110, (row) => rows[row][place] === null ? null : Math.abs(rows[row][place]), (row) => rows[row][place] === null ? UNKNOWN : rows[row][place] ? signed(rows[row][place], show) : "", title)] : [];
  const table = new LongTable({
    parent: box, label: "what both runs launch", rows: rows.map((_, place) => place), open: () => {}, sort: { key: "size" },
    haystack: (place) => [G.kind, G.name, G.category, G.ops, G.source, G.module].map((each) => textAt(rows[place][each])).join(" "),
    columns: [
      { ...words("name", "kernels", 340, G.name), cell: (place) => [swatch(textAt(rows[place][G.category])), textAt(rows[place][G.name])] },
      { ...words("kind", "change", 104, G.kind), text: (place) => changeText(textAt(rows[place][G.kind])), hint: undefined },
      number("a", "A", 92, (place) => rows[place][G.a], (place) => amount(rows[place][G.launchesA], rows[place][G.a])),
      number("b", "B", 92, (place) => rows[place][G.b], (place) => amount(rows[place][G.launchesB], rows[place][G.b])),
      number("size", "B − A", 96, (place) => change(place) === null ? null : Math.abs(change(place)), (place) => change(place) === null ? UNKNOWN : signed(change(place), format), "sorted by size, whatever the sign"),
      number("ratio", "B / A", 90, (place) => rows[place][G.a] ? rows[place][G.b] / rows[place][G.a] : null,
        (place) => !rows[place][G.launchesA] ? "only in B" : !rows[place][G.launchesB] ? "only in A" : rows[place][G.a] ? `×${threeDigits(rows[place][G.b] / rows[place][G.a])}` : ""),
      ...(C.unit === "B" ? [] : more("bytes", "bytes", G.bytes, formatBytes, "minimum traffic of B less that of A")),
      ...more("flops", "FLOPs", G.flops, formatFlops, "tensor FLOPs of B less those of A"),
      number("na", "launches A", 116, (place) => rows[place][G.launchesA], (place) => formatCount(rows[place][G.launchesA])),
      number("nb", "launches B", 116, (place) => rows[place][G.launchesB], (place) => formatCount(rows[place][G.launchesB])),
      ...(C.is_aligned ? [words("ops", "ATen ops", 220, G.ops), words("source", "source line", 220, G.source), words("module", "module", 170, G.module)] : []),
    ],
  });
  append(section, [
    C.unexplained.length ? [element("h3", {}, "Not explained"), element("ul", {}, C.unexplained.map((text) => element("li", {}, text)))] : null,
    element("h3", {}, "The runs"), smallTable([{ label: "", align: "left" }, { label: "A", align: "left" }, { label: "B", align: "left" }], C.runs),
  ]);
}

const changeText = (kind) => ({ "only first": "only in A", "only second": "only in B" })[kind] || kind;
const unitFormat = (unit) => ({ us: formatUs, B: formatBytes, FLOP: formatFlops })[unit] || formatCount;
const signed = (value, format) => (value > 0 ? "+" : value < 0 ? "−" : "") + format(Math.abs(value));
const differenceCells = (unit, a, b) => {
  const format = unitFormat(unit), both = a !== null && b !== null;
  return [format(a), format(b), both ? signed(b - a, format) : "", both && a ? `×${threeDigits(b / a)}` : ""];
};
