// A kernel's page, and on it one launch of it.
async function drawKernelPage(page, kernel, row) {
  fill(page, element("p", { class: "quiet" }, "Opening…"));
  let packed;
  try { packed = await details(); } catch (error) { fill(page, backLink(), element("p", { class: "bad" }, error.message)); return; }
  const rows = rowsOfKernel(kernel), facts = packed.kernels[kernel] || { name: KERNEL_NAMES[kernel] };
  const launch = row ?? rows.reduce((best, each) => (best === undefined || weightOf(each) > weightOf(best) ? each : best), undefined);
  const weight = rows.reduce((sum, each) => sum + weightOf(each), 0);
  const share = TOTAL_WEIGHT ? `, ${formatShare(weight / TOTAL_WEIGHT)} of the step` : "";
  fill(page,
    backLink(),
    element("h2", { class: "kernel-title", tabindex: "-1" }, swatch(launch === undefined ? "other" : category(launch)), element("span", {}, facts.name)),
    element("p", { class: "lead" }, `${formatCount(rows.length)} launch${rows.length === 1 ? "" : "es"}, ${WEIGHT.format(weight)}${hasTime ? " in a step" : ""}${share}.`),
    factList(kernelFacts(facts)),
    rows.length > 1 ? launchesOfKernel(rows, launch) : null,
    launch === undefined ? null : launchPart(launch, packed.launches[launch] || {}),
    sourcePart(facts));
  page.querySelector("h2").focus({ preventScroll: true });
  window.scrollTo(0, 0);
}

const backLink = () => element("p", {}, element("a", { href: "#kernels", class: "back" }, "← all kernels"));

function kernelFacts(kernel) {
  return [["category", kernel.category], ["backend", kernel.backend], ["key", kernel.key], ["file", kernel.path],
    ["made of", (kernel.sub_kernels || []).join(", ")], ...(kernel.metadata || [])].filter(([, value]) => value);
}

function launchesOfKernel(rows, launch) {
  const sorted = [...rows].sort((a, b) => weightOf(b) - weightOf(a)), shown = sorted.slice(0, 12);
  if (!shown.includes(launch)) shown.push(launch);
  return element("section", { class: "panel", "aria-label": "launches" }, element("h3", {}, "Its launches"),
    smallTable([{ label: "launch", align: "left" }, { label: WEIGHT.label }, { label: "FLOPs" }, { label: "bytes" }, { label: "source line", align: "left" }, { label: "module", align: "left" }],
      shown.map((row) => [
        row === launch ? element("strong", { "aria-current": "true" }, launchId(row)) : element("a", { href: launchAddress(row) }, launchId(row)),
        WEIGHT.format(weightOf(row)), formatFlops(at("flops", row)), formatBytes(at("bytes_moved", row)),
        element("span", { class: "clip", title: textAt(at("source", row)) }, textAt(at("source", row))), textAt(at("module", row))])),
    rows.length > shown.length ? element("p", {}, element("button", { type: "button", class: "link", onclick: () => showInTable({ kernel: KERNEL_NAMES[LAUNCHES.kernel[launch]] }) },
      `all ${formatCount(rows.length)} launches in the table`)) : null);
}

function launchPart(row, detail) {
  const id = launchId(row);
  const text = (place) => textAt(place);
  const part = (title, ...content) => content.flat().some(Boolean) ? element("section", { class: "panel" }, element("h3", {}, title), content) : null;
  return element("article", { class: "launch", "aria-label": `launch ${id}` },
    id ? element("h2", { id: "launch-title" }, `Launch ${id}`) : null,
    element("div", { class: "columns" },
      part("What it costs", factList(costFacts(row, detail))),
      part("Where the model calls it", (detail.sources || []).length || (detail.modules || []).length ? [
        element("ul", { class: "origins" }, (detail.sources || []).map(([place, name, code]) => element("li", {},
          element("div", { class: "place" }, text(place), name ? element("span", { class: "quiet" }, ` in ${text(name)}`) : null),
          code ? element("pre", { class: "one-line" }, text(code)) : null))),
        (detail.modules || []).length ? element("p", {}, "modules: ", detail.modules.map((place, index) => [index ? ", " : "", element("code", {}, text(place))])) : null]
        : [element("p", { class: "quiet" }, detail.reason ? text(detail.reason) : graphName(row) ? "No line or module of the model is known for it." : "An imported trace knows no lines of the model.")])),
    part("What it computes",
      (detail.ops || []).length ? element("p", { class: "ops" }, detail.ops.map(([place, again]) => element("code", { class: again ? "recomputed" : "", title: again ? "recomputed in the backward" : undefined }, text(place) + (again ? " (recomputed)" : "")))) : null,
      factList([
        ...(detail.loops || []).map((place) => ["loop nest", text(place)]),
        ["FX nodes", (detail.nodes || []).map(text).join(", ")],
        ["called as", detail.call ? `${detail.line ? `wrapper line ${detail.line}: ` : ""}${text(detail.call)}` : ""],
        ["grid", text(detail.grid)], ["arguments", (detail.kwargs || []).map(([name, value]) => `${text(name)}=${text(value)}`).join(", ")],
        ["device", text(detail.device)], ...(detail.facts || []).map(([name, value]) => [text(name), text(value)]),
      ].filter(([, value]) => value))),
    part("Measurements", (detail.measured || []).map((measurement) => measurementPart(measurement, row))),
    predictionPart(id, row),
    (detail.buffers || []).length ? part("Buffers", smallTable(
      [{ label: "name", align: "left" }, { label: "role", align: "left" }, { label: "dtype", align: "left" }, { label: "shape", align: "left" }, { label: "stride", align: "left" }, { label: "read" }, { label: "written" }, { label: "", align: "left" }, { label: "FX node", align: "left" }],
      detail.buffers.map(([name, role, dtype, shape, stride, read, written, quality, node]) =>
        [text(name), text(role), text(dtype), `(${text(shape)})`, `(${text(stride)})`, formatBytes(read), formatBytes(written), text(quality), text(node)]))) : null,
    valuesOf(id));
}

function costFacts(row, detail) {
  const exact = (value, format, unit) => value === null ? UNKNOWN : Math.abs(value) < 1000 ? `${value} ${unit}`.trim() : `${format(value)}${unit && !format(value).endsWith(unit) ? " " + unit : ""} (${formatCount(value)})`;
  const quality = (place) => (place ? `, ${textAt(place).replaceAll("_", " ")}` : "");
  const byOp = (detail.flops_by_op || []).map(([name, count]) => `${textAt(name)} ${formatFlops(count)}`).join(", ");
  const facts = [
    ["time", duration(row) === null ? "not timed" : `${formatUs(duration(row))} a launch${at("step_us", row) !== null ? `, ${formatUs(at("step_us", row))} in a step` : ""}`],
    ["FLOPs", exact(at("flops", row), formatFlops, "") + quality(detail.flops_quality) + (byOp ? `: ${byOp}` : "")],
    ["vector FLOPs", at("vector_flops", row) === null ? "" : exact(at("vector_flops", row), formatFlops, "")],
    ["bytes", at("bytes_moved", row) === null ? `${UNKNOWN}${detail.reason ? ` (${textAt(detail.reason)})` : ""}` : `${formatBytes(at("bytes_read", row))} read, ${formatBytes(at("bytes_written", row))} written${quality(detail.bytes_quality)}`],
  ];
  const flops = operations(row), bytes = at("bytes_moved", row);
  if (flops && bytes) facts.push(["intensity", `${formatRatio(flops / bytes)} operations per byte`]);
  if (duration(row)) facts.push(["achieved", `${at("flops", row) ? `${tflopsText(row)} TFLOP/s, ` : ""}${formatRatio(gbPerS(row))} GB/s`]);
  if (at("roofline_us", row) !== null) facts.push(["roofline", `at least ${formatUs(at("roofline_us", row))}${rooflineFraction(row) !== null ? `: ${formatShare(rooflineFraction(row))} reached` : ""}${textAt(at("bound", row)) ? `, bound by ${textAt(at("bound", row))}` : ""}`]);
  return facts.filter(([, value]) => value);
}

function measurementPart(measurement, row) {
  const kinds = { profile: "inside the step", bench: "alone, in a bench", sample: "in a sweep" };
  const kind = textAt(measurement.kind);
  const spread = measurement.iqr_us === null ? "" : `, spread ${formatUs(measurement.iqr_us)} (interquartile)`;
  const caches = { warm: "warm: its data may still be in the cache", cold: "cold: the cache was swept before each run", step: "as the step leaves it" };
  const shown = (name, value) => (name === "cache" && Object.hasOwn(caches, value) ? caches[value] : value);
  return element("div", { class: "measurement" },
    element("p", {}, element("strong", {}, `${kinds[kind] || kind}: ${formatUs(measurement.median_us)}`),
      ` median of ${formatCount(measurement.n)} sample${measurement.n === 1 ? "" : "s"}${spread}, clock ${textAt(measurement.clock)}`),
    sampleStrip(measurement.samples, measurement.median_us, at("roofline_us", row)),
    factList((measurement.facts || []).map(([name, value]) => [textAt(name), shown(textAt(name), textAt(value))])));
}

// Every sample as a tick on a line from zero, so that spread is seen at its true size.
function sampleStrip(samples, median, roofline) {
  if (samples.length < 2) return null;
  const width = 420, most = Math.max(...samples, roofline || 0) * 1.05 || 1, x = (us) => 6 + us / most * (width - 12);
  return drawing("svg", { class: "strip", viewBox: `0 0 ${width} 34`, role: "img", "aria-label": `${samples.length} samples from ${formatUs(Math.min(...samples))} to ${formatUs(Math.max(...samples))}` },
    drawing("line", { x1: 6, x2: width - 6, y1: 18, y2: 18, class: "axis" }),
    roofline ? drawing("line", { x1: x(roofline), x2: x(roofline), y1: 4, y2: 30, class: "limit" }, drawing("title", {}, `roofline ${formatUs(roofline)}`)) : null,
    samples.map((us) => drawing("line", { x1: x(us), x2: x(us), y1: 10, y2: 26, class: "sample" })),
    drawing("text", { x: 6, y: 33, class: "axis-text" }, "0"),
    drawing("text", { x: width - 6, y: 33, class: "axis-text", "text-anchor": "end" }, formatUs(most / 1.05)));
}

function sourcePart(kernel) {
  const language = kernel.backend === "cpp" ? "cpp" : "python";
  const why = kernel.category === "extern" ? "It is a library call: nothing was generated for it." : kernel.note;
  return element("section", { class: "panel", id: "source" }, element("h3", {}, "Generated source"),
    kernel.source && kernel.note ? element("p", { class: "quiet" }, `Cut to what a page bears: ${kernel.note}`) : null,
    kernel.source ? [element("div", { class: "above-code" }, element("button", { type: "button", class: "copy", onclick: (event) => copyText(kernel.source, event.currentTarget) }, "copy")), codeBlock(kernel.source, language)]
      : element("p", { class: "quiet" }, why || "None was recorded."));
}

async function copyText(text, button) {
  try { await navigator.clipboard.writeText(text); button.textContent = "copied"; } catch { button.textContent = "the browser refused"; }
}
