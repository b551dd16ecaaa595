// Two ledgers side by side, kernels aligned by what they compute.
function drawComparison(section) {
  const C = DATA.comparison;
  append(section, [
    C.sentences.map((text, place) => element("p", { class: place ? "" : "lead" }, text)),
    smallTable([{ label: "", align: "left" }, { label: "A" }, { label: "B" }, { label: "B − A" }, { label: "B / A" }],
      C.totals.map(([name, unit, a, b]) => [name, ...differenceCells(unit, a, b)])),
    element("h3", {}, "By category"), smallTable([{ label: "category", align: "left" }, { label: "A" }, { label: "B" }, { label: "B − A" }, { label: "B / A" }],
      C.categories.map(([name, a, b]) => [[swatch(name), categoryText(name)], ...differenceCells(C.unit, a, b)])),
    element("h3", {}, "By kernel"),
    element("p", { class: "hint" }, "Kernels are aligned by name without its running number, within the same category. Sorted by how much changed; click a head to sort otherwise."),
  ]);
  const rows = C.kernels;  // [name, category, launches A, launches B, amount A, amount B]
  const search = element("input", { type: "search", id: "search", placeholder: "search kernels…", "aria-label": "search the table", oninput: () => table.search(search.value) });
  const box = element("div", {});
  append(section, [element("div", { class: "tools" }, search), box]);
  const format = unitFormat(C.unit), amount = (count, value) => (count ? format(value) : ""), change = (place) => (rows[place][5] || 0) - (rows[place][4] || 0);
  const table = new LongTable({
    parent: box, label: "kernels of both", rows: rows.map((_, place) => place), haystack: (place) => `${rows[place][0]} ${rows[place][1]}`, open: () => {}, sort: { key: "size" },
    columns: [
      { key: "name", label: "kernel", align: "left", width: 380, value: (place) => rows[place][0], text: (place) => rows[place][0], hint: (place) => rows[place][0] },
      { key: "category", label: "category", align: "left", width: 140, value: (place) => rows[place][1], text: (place) => categoryText(rows[place][1]), cell: (place) => [swatch(rows[place][1]), categoryText(rows[place][1])] },
      { key: "na", label: "launches A", width: 116, value: (place) => rows[place][2], text: (place) => formatCount(rows[place][2]) },
      { key: "nb", label: "launches B", width: 116, value: (place) => rows[place][3], text: (place) => formatCount(rows[place][3]) },
      { key: "a", label: "A", width: 100, value: (place) => rows[place][4], text: (place) => amount(rows[place][2], rows[place][4]) },
      { key: "b", label: "B", width: 100, value: (place) => rows[place][5], text: (place) => amount(rows[place][3], rows[place][5]) },
      { key: "size", label: "B − A", width: 110, value: (place) => Math.abs(change(place)), text: (place) => signed(change(place), format) },
      { key: "ratio", label: "B / A", width: 90, value: (place) => rows[place][4] ? rows[place][5] / rows[place][4] : null, text: (place) => !rows[place][2] ? "only in B" : !rows[place][3] ? "only in A" : rows[place][4] ? `×${threeDigits(rows[place][5] / rows[place][4])}` : "" },
    ],
  });
  append(section, [element("h3", {}, "The runs"), smallTable([{ label: "", align: "left" }, { label: "A", align: "left" }, { label: "B", align: "left" }], C.runs)]);
}

const unitFormat = (unit) => ({ us: formatUs, B: formatBytes, FLOP: formatFlops })[unit] || formatCount;
const signed = (value, format) => (value > 0 ? "+" : value < 0 ? "−" : "") + format(Math.abs(value));
const differenceCells = (unit, a, b) => {
  const format = unitFormat(unit), both = a !== null && b !== null;
  return [format(a), format(b), both ? signed(b - a, format) : "", both && a ? `×${threeDigits(b / a)}` : ""];
};
