// The ledger, as the page holds it: columns by name, texts by place, details read when a kernel is first opened.
const readJson = (id) => JSON.parse(byId(id).textContent);
const DATA = readJson("data");
const TEXTS = DATA.texts || [];
const textAt = (place) => (place ? TEXTS[place] : "");

// Sources and buffers are deflated: they are most of a large ledger, and most pages are never opened.
let readingDetails = null;
const details = () => (readingDetails ??= inflate(byId("details").textContent));

async function inflate(text) {
  if (typeof DecompressionStream === "undefined") throw new Error("This browser is too old to unpack a kernel's page; one of 2023 or later can.");
  const packed = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

const LAUNCHES = DATA.launches || {};
const N = (LAUNCHES.order || []).length;
const KERNEL_NAMES = DATA.kernel_names || [];
const graphName = (row) => (LAUNCHES.graph[row] < 0 ? "" : DATA.graphs[LAUNCHES.graph[row]].name);
const launchId = (row) => (LAUNCHES.graph[row] < 0 ? "" : `${graphName(row)}#${LAUNCHES.order[row]}`);
const kernelName = (row) => KERNEL_NAMES[LAUNCHES.kernel[row]];
const shownName = (row) => shortName(kernelName(row));
const shortName = (name) => name.replace(/^torch\.ops\./, "");
const category = (row) => textAt(LAUNCHES.category[row]) || "other";
const at = (column, row) => LAUNCHES[column][row];
const duration = (row) => at("duration_us", row);
const gbPerS = (row) => rate(at("bytes_moved", row), duration(row), 1e3);
const tflopsPerS = (row) => rate(at("flops", row), duration(row), 1e6);
const tflopsText = (row) => (at("flops", row) === 0 ? "" : formatRatio(tflopsPerS(row)));  // no rate of no work
const operations = (row) => {
  const tensor = at("flops", row), vector = at("vector_flops", row);
  return tensor === null && vector === null ? null : (tensor || 0) + (vector || 0);
};
const rooflineFraction = (row) => {
  const limit = at("roofline_us", row), time = duration(row);
  return limit === null || !time ? null : limit / time;
};

const WEIGHTS = {
  time: { label: "time", short: "time", value: (row) => at("step_us", row) ?? at("duration_us", row) ?? 0, format: formatUs },
  bytes: { label: "minimum bytes", short: "bytes", value: (row) => at("bytes_moved", row) || 0, format: formatBytes },
  flops: { label: "FLOPs", short: "FLOPs", value: (row) => at("flops", row) || 0, format: formatFlops },
};
const WEIGHT = WEIGHTS[DATA.weight] || WEIGHTS.time;
const weightOf = (row) => WEIGHT.value(row);
const LAUNCHES_WEIGHT = Array.from({ length: N }, (_, row) => weightOf(row)).reduce((a, b) => a + b, 0);
// A step has eager operators beside its launches: shares of time are of all of it.
const TOTAL_WEIGHT = DATA.weight === "time" ? Math.max(LAUNCHES_WEIGHT, DATA.recorded?.total.us || 0) : LAUNCHES_WEIGHT;
const isImported = N > 0 && LAUNCHES.graph.every((graph) => graph < 0);  // a trace: kernels, no launches of a ledger
const hasTime = DATA.weight === "time";

let rowById = null;
const rowOfLaunch = (id) => {
  if (!rowById) {
    rowById = new Map();
    for (let row = 0; row < N; row++) rowById.set(launchId(row), row);
  }
  return rowById.get(id);
};

let rowsByKernel = null;
const rowsOfKernel = (kernel) => {
  if (!rowsByKernel) {
    rowsByKernel = KERNEL_NAMES.map(() => []);
    for (let row = 0; row < N; row++) rowsByKernel[LAUNCHES.kernel[row]].push(row);
  }
  return rowsByKernel[kernel] || [];
};

const launchAddress = (row) =>
  graphName(row) ? `#/launch/${encodeURIComponent(launchId(row))}` : kernelAddress(LAUNCHES.kernel[row]);
const kernelAddress = (kernel) => `#/kernel/${kernel}`;
