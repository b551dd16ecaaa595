// Numbers as the terminal writes them: three digits, a decimal prefix, and "?" for what is unknown.
const UNKNOWN = "?";

const threeDigits = (value) => {
  const size = Math.abs(value);
  if (size >= 99.95) return value.toFixed(0);
  if (size >= 9.995) return value.toFixed(1);
  if (size >= 0.9995 || value === 0) return value.toFixed(2);
  return String(Number(value.toPrecision(3)));
};

const known = (format) => (value) => (value === null || value === undefined ? UNKNOWN : format(value));

const formatSi = (unit) => known((value) => {
  if (Math.abs(value) < 999.5) return `${Number(value.toPrecision(6))} ${unit}`.trim();
  let scaled = value;
  for (const prefix of ["k", "M", "G", "T", "P", "E"]) {
    scaled /= 1000;
    if (Math.abs(scaled) < 999.5 || prefix === "E") return `${threeDigits(scaled)} ${prefix}${unit}`;
  }
});
const formatBytes = formatSi("B");
const formatFlops = formatSi("");
const formatUs = known((value) => {
  if (Math.abs(value) < 999.5) return `${threeDigits(value)} µs`;
  return Math.abs(value) < 999500 ? `${threeDigits(value / 1e3)} ms` : `${threeDigits(value / 1e6)} s`;
});
const formatShare = known((value) => `${(value * 100).toFixed(1)} %`);
const formatRatio = known(threeDigits);
const formatCount = known((value) => Number.isInteger(value) ? value.toLocaleString("en-US") : threeDigits(value));
const formatValue = known((value) => typeof value === "number" ? String(Number(value.toPrecision(5))) : String(value));

const rate = (amount, us, factor) => (amount === null || amount === undefined || !us ? null : amount / us / factor);

// The colours of Okabe and Ito, told apart by people with any kind of colour vision; see report.css for the two themes.
const CATEGORY_ORDER = ["gemm", "attention", "convolution", "pointwise", "reduction", "persistent_reduction", "template",
  "normalization", "foreach", "combo", "split_scan", "user_triton", "cpp", "collective", "memory", "other"];
const CATEGORY_SLOT = { gemm: 1, attention: 2, convolution: 3, pointwise: 4, reduction: 5, persistent_reduction: 6,
  template: 7, normalization: 6, foreach: 7, combo: 7, split_scan: 5, user_triton: 3, cpp: 6, collective: 2, memory: 8 };
const CATEGORY_MARK = { gemm: "square", attention: "diamond", convolution: "pentagon", pointwise: "circle",
  reduction: "triangle-up", persistent_reduction: "triangle-down", template: "cross", memory: "x" };
const PHASE_SLOT = { input: 8, forward: 1, loss: 7, backward: 2, clipping: 6, optimizer: 3, communication: 5 };
const phaseSlot = (phase) => Object.hasOwn(PHASE_SLOT, phase) ? PHASE_SLOT[phase] : 0;
const phaseText = (phase) => (phase === "clipping" ? "gradient clipping" : phase || "no phase");
const phaseSwatch = (phase) => element("span", { class: `swatch category-${phaseSlot(phase)}`, "aria-hidden": "true" });
const colorSlot = (category) => Object.hasOwn(CATEGORY_SLOT, category) ? CATEGORY_SLOT[category] : 0;
const styleOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colorOf = (category) => styleOf(`--category-${colorSlot(category)}`);
const categoryText = (category) => category.replaceAll("_", " ");
const swatch = (category) => element("span", { class: `swatch category-${colorSlot(category)}`, "aria-hidden": "true" });
