// The page: sections, the kernel table, addresses, theme, printing.
const redrawOnTheme = [];
let kernelTable = null;
let tableParts = null;
const PRINTED_ROWS = 100;

function tableColumns() {
  const number = (key, label, title, width, value, format) => ({ key, label, title, width, value, text: (row) => format(value(row)) });
  const words = (key, label, title, width, text) => ({ key, label, title, width, align: "left", value: text, text, hint: text });
  const columns = [
    { key: "name", label: "kernel", title: "name in the generated code", width: 270, align: "left", value: kernelName, text: shownName, hint: kernelName,
      cell: (row) => element("a", { href: launchAddress(row), tabindex: "-1" }, swatch(category(row)), shownName(row)) },
    isImported ? number("calls", "calls", "times that it ran", 78, (row) => at("calls", row), formatCount) : words("launch", "launch", "graph and place in it", 150, launchId),
    words("category", "category", "what it computes", 140, (row) => categoryText(category(row))),
  ];
  if (RECORDED) columns.push(number("calls", "calls", "times that a step calls it; 0 did not run in the step", 70, (row) => at("calls", row), formatCount));
  if (hasTime) columns.push(
    number("time", "time", "device time of one launch, median", 84, duration, formatUs),
    number("share", "of step", "share of the time that launches and eager operators take in a step", 88, (row) => TOTAL_WEIGHT ? weightOf(row) / TOTAL_WEIGHT : null, formatShare));
  columns.push(
    number("flops", "FLOPs", "tensor FLOPs; one multiply-add is 2", 78, (row) => at("flops", row), formatFlops),
    number("bytes", "bytes", "minimum traffic: each address once", 84, (row) => at("bytes_moved", row), formatBytes));
  if (hasTime) columns.push(
    { key: "tflops", label: "TFLOP/s", title: "tensor FLOPs over time", width: 90, value: tflopsPerS, text: tflopsText },
    number("gbs", "GB/s", "minimum traffic over time", 70, gbPerS, formatRatio));
  if (LAUNCHES.roofline_us?.some((each) => each !== null)) columns.push(
    number("roofline", "of roofline", "lower-bound time at the measured ceilings over measured time", 104, rooflineFraction, formatShare),
    words("bound", "bound", "what limits it", 84, (row) => textAt(at("bound", row))));
  columns.push(words("ops", "ATen ops", "operators it computes", 220, (row) => textAt(at("ops", row))));
  if (has("source")) columns.push(words("source", "source line", "line of the model it was made for", 230, (row) => textAt(at("source", row))));
  if (has("module")) columns.push(words("module", "module", "nn.Module it was made for", 180, (row) => textAt(at("module", row))));
  return columns;
}

function drawTable(section) {
  const found = element("span", { class: "quiet", id: "found", role: "status" });
  const search = element("input", { type: "search", id: "search", placeholder: "search kernels, ops, lines, modules…  ( / )", "aria-label": "search the table", oninput: () => kernelTable.search(search.value) });
  const categories = [...new Set(LAUNCHES.category)].map((place) => textAt(place) || "other").sort((a, b) => ((CATEGORY_ORDER.indexOf(a) + 1) || 99) - ((CATEGORY_ORDER.indexOf(b) + 1) || 99));
  const select = (id, label, options, change) => element("select", { id, "aria-label": label, onchange: (event) => change(event.target.value) },
    element("option", { value: "" }, label), options.map((option) => element("option", { value: option }, categoryText(option))));
  const byCategory = select("filter-category", "all categories", categories, (value) => kernelTable.filter("category", value && ((row) => category(row) === value)));
  const byGraph = DATA.graphs.length > 1 ? select("filter-graph", "all graphs", DATA.graphs.map((graph) => graph.name), (value) => kernelTable.filter("graph", value && ((row) => graphName(row) === value))) : null;
  const bounds = [...new Set(LAUNCHES.bound)].filter(Boolean).map(textAt);
  const byBound = bounds.length > 1 ? select("filter-bound", "any bound", bounds, (value) => kernelTable.filter("bound", value && ((row) => textAt(at("bound", row)) === value))) : null;
  const box = element("div", {});
  append(section, [
    element("p", { class: "hint" }, `${formatCount(N)} ${isImported ? "kernels; a row stands for all calls of one" : "launches"}${DATA.silent > 0 ? ` (${formatCount(DATA.silent)} ${DATA.silent === 1 ? "entry that launches nothing is" : "entries that launch nothing are"} left out)` : ""}. Click a head to sort, a row to open it; in the table, arrow keys move and Enter opens.`),
    howToRead("FLOPs are tensor arithmetic: matrix products, convolutions, attention; one multiply-add is 2. Bytes are minimum traffic: each address that the kernel must touch, once. TFLOP/s and GB/s are these over the time.",
      "\"Of roofline\" is the time that the measured ceilings allow over the time it took; \"bound\" says which ceiling that is: compute, memory, or overhead where launching costs more than either."),
    element("div", { class: "tools" }, search, byCategory, byGraph, byBound, found), box,
    N > PRINTED_ROWS ? element("p", { class: "printed" }, `On paper: the first ${PRINTED_ROWS} of ${formatCount(N)} rows.`) : null]);
  const rows = Array.from({ length: N }, (_, row) => row);
  kernelTable = new LongTable({
    parent: box, label: "launches", rows, columns: tableColumns(), sort: { key: hasTime ? "share" : DATA.weight },
    haystack: (row) => [kernelName(row), launchId(row), category(row), textAt(at("ops", row)), textAt(at("source", row)), textAt(at("code", row)), textAt(at("module", row)), textAt(at("dtype", row))].join(" "),
    open: (row) => { location.hash = launchAddress(row); },
  });
  const count = (shown) => {
    const weight = kernelTable.shown.reduce((sum, row) => sum + weightOf(row), 0);
    fill(found, shown === N ? "" : `${formatCount(shown)} found, ${WEIGHT.format(weight)}${TOTAL_WEIGHT ? ` (${formatShare(weight / TOTAL_WEIGHT)})` : ""}`);
  };
  kernelTable.onChange = count;
  tableParts = { search, byCategory };
}

function showInTable({ category: name, kernel }) {
  if (!kernelTableReady()) return;
  tableParts.search.value = kernel || "";
  tableParts.byCategory.value = name || "";
  kernelTable.filter("category", name && ((row) => category(row) === name));
  kernelTable.search(kernel || "");
  location.hash = "#kernels";
}

// What the ledger has nothing of has no section: the overview says what was not recorded.
const has = (column) => Boolean(LAUNCHES[column]?.some(Boolean));

// Sections are drawn when they come near the window, so that a large ledger opens at once.
const SECTIONS = [
  ["samples", "Samples", (section) => drawSamples(section), () => Boolean(DATA.samples)],
  ["overview", "Overview", drawOverview, () => DATA.kind === "run"],
  ["step", "Step", drawStep, () => DATA.kind === "run" && Boolean(RECORDED) && RECORDED.calls.length > 0],
  ["memory", "Memory", drawMemory, () => DATA.kind === "run" && Boolean(MEMORY)],
  ["roofline", "Roofline", drawRoofline, () => DATA.kind === "run" && has("duration_us") && (has("bytes_moved") || has("flops"))],
  ["flame", "Modules and lines", drawFlame, () => DATA.kind === "run" && (has("module") || has("source"))],
  ["timeline", "Timeline", drawTimeline, () => DATA.kind === "run" && (DATA.timeline ? DATA.timeline.start_ns.length > 0 : RECORDED?.on_cpu && RECORDED.calls.length || hasTime && DATA.graphs.length > 0)],
  ["kernels", "Kernels", drawTable, () => DATA.kind === "run" && N > 0],
  ["predictions", "Predictions", drawPredictions, () => Boolean(DATA.predictions)],
  ["values", "Values", drawValues, () => Boolean(DATA.values)],
  ["comparison", "Comparison", (section) => drawComparison(section), () => DATA.kind === "diff"],
  ["balance", "Balance and run", drawBalance, () => DATA.kind === "run"],
];

const undrawn = new Map();

function drawSection(id) {
  const draw = undrawn.get(id);
  if (!draw) return;
  undrawn.delete(id);
  const section = byId(id);
  section.classList.remove("waiting");
  try { draw(section); } catch (error) {
    append(section, [element("p", { class: "bad" }, `This part could not be drawn: ${error.message}`)]);
    console.error(error);
  }
}

function start() {
  const nav = byId("nav"), sections = byId("sections");
  const watcher = new IntersectionObserver((entries) => { for (const entry of entries) if (entry.isIntersecting) { drawSection(entry.target.id); watcher.unobserve(entry.target); } }, { rootMargin: "300px" });
  for (const [id, title, draw, isThere] of SECTIONS) {
    if (!isThere()) continue;
    nav.append(element("a", { href: `#${id}` }, title));
    sections.append(element("section", { id, class: "waiting", "aria-label": title }, element("h2", {}, title)));
    undrawn.set(id, draw);
  }
  drawSection(SECTIONS.find(([, , , isThere]) => isThere())[0]);
  for (const id of undrawn.keys()) watcher.observe(byId(id));
  window.addEventListener("hashchange", route);
  window.addEventListener("beforeprint", () => { for (const id of [...undrawn.keys()]) drawSection(id); kernelTable?.paint(true, PRINTED_ROWS); });
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "/" && !typing && kernelTableReady()) { event.preventDefault(); location.hash = "#kernels"; tableParts.search.focus(); }
    if (event.key === "Escape" && location.hash.startsWith("#/")) location.hash = "#kernels";
  });
  byId("theme").onclick = switchTheme;
  applyTheme(storedTheme());
  route();
  document.documentElement.dataset.ready = "yes";
  requestAnimationFrame(() => requestAnimationFrame(() => performance.mark("first-screen")));
}

function kernelTableReady() { if (byId("kernels")) drawSection("kernels"); return Boolean(tableParts); }

function route() {
  const hash = location.hash;
  const match = hash.match(/^#\/(kernel|launch)\/(.+)$/);
  const page = byId("page"), sections = byId("sections");
  tooltip.hide();
  if (!match) {
    page.hidden = true;
    sections.hidden = false;
    const id = hash.slice(1);
    if (SECTIONS.some(([each]) => each === id) && byId(id)) {
      for (const [each] of SECTIONS) { if (byId(each)) drawSection(each); if (each === id) break; }  // what stands above takes its height first
      byId(id).scrollIntoView();
      kernelTable?.paint(true);
    }
    return;
  }
  sections.hidden = true;
  page.hidden = false;
  let target;
  try { target = decodeURIComponent(match[2]); } catch { target = match[2]; }
  const row = match[1] === "launch" ? rowOfLaunch(target) : undefined;
  const kernel = match[1] === "launch" ? (row === undefined ? undefined : LAUNCHES.kernel[row]) : Number(target);
  if (kernel === undefined || !(kernel in KERNEL_NAMES)) {
    fill(page, backLink(), element("p", {}, `This ledger has no ${match[1]} "${target}".`));
    return;
  }
  drawKernelPage(page, kernel, row);
}

// --- theme ---

const THEMES = ["auto", "light", "dark"];
function storedTheme() { try { return localStorage.getItem("torchledger-theme") || "auto"; } catch { return "auto"; } }
function applyTheme(theme) {
  const known = THEMES.includes(theme) ? theme : "auto";
  document.documentElement.dataset.theme = known;
  byId("theme").textContent = `theme: ${known}`;
  for (const redraw of redrawOnTheme) redraw();
}
function switchTheme() {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  try { localStorage.setItem("torchledger-theme", next); } catch { /* a file opened without storage keeps it for this visit */ }
  applyTheme(next);
}
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { for (const redraw of redrawOnTheme) redraw(); });

start();
