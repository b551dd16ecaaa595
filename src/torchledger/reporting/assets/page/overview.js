// The first screen: the step in one sentence, whether the books balance, time by category, the heaviest kernels.
function drawOverview(section) {
  append(section, [
    element("p", { class: "lead" }, DATA.sentences[0]),
    DATA.sentences.slice(1).map((text) => element("p", {}, withCode(text))),
    element("div", { class: "badges" }, balanceBadge(), stepBadges()),
    RECORDED ? element("div", { class: "panel", id: "phases" }, element("h3", {}, "One step by phase"), phaseBar(), phaseTable()) : null,
    element("div", { class: "columns" },
      element("div", { class: "panel" }, element("h3", {}, hasTime ? "Time by category" : `${capital(WEIGHT.label)} by category`), categoryBars()),
      element("div", { class: "panel" }, element("h3", {}, "Heaviest kernels"), heaviestKernels())),
    DATA.verdict.length ? element("div", { class: "panel verdict" },
      element("h3", {}, DATA.step?.steps > 1 ? `In short, over all ${formatCount(DATA.step.steps)} profiled steps` : "In short"),
      element("ul", {}, DATA.verdict.map((text) => element("li", {}, text)))) : null,
    howToRead("A kernel is one function that the compiler wrote or a library brings; a launch is one call of it. Device time is the time of all launches of a step, added up.",
      "The books balance when each sum of the ledger equals a count made by another route: launches in the generated code, FLOPs of the model's graph, kernel time that the profiler saw. Where they differ, the badge says what is missing and leads to the sheet.",
      "Point at a category to read what it is. Two names that look alike: a reduction adds up along a dimension in several rounds, a persistent reduction holds its whole row at once."),
  ]);
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function balanceBadge() {
  const balance = DATA.balance;
  const wrong = balance.accounts.filter((account) => account.tone === "bad");
  if (!balance.accounts.length || balance.is_imported)
    return element("a", { class: "badge", href: "#balance", id: "balance-badge" }, balance.is_imported ? "an imported trace: nothing to balance" : "nothing to balance");
  const text = wrong.length
    ? "not balanced: " + wrong.map((account) => `${categoryText(account.name)}, ${account.short}`).join("; ")
    : RECORDED || !DATA.step ? "the books balance" : "the books balance, of compiled graphs alone";
  return element("a", { class: `badge ${wrong.length ? "bad" : "good"}`, href: "#balance", id: "balance-badge" },
    element("span", { "aria-hidden": "true" }, wrong.length ? "✗ " : "✓ "), text);
}

function stepBadges() {
  const step = DATA.step;
  if (!step) return [];
  const made = [];
  const badge = (text, title) => made.push(element("span", { class: "badge", title }, text));
  const busy = step.busy_share !== undefined && step.busy_share !== null && step.wall_us ? step.busy_share * step.wall_us : null;
  if (busy !== null && step.plain_us && busy <= step.plain_us) {
    badge(`device busy ${formatShare(busy / step.plain_us)}`, "busy time on the device's clock over the step's without the profiler, on the host's");
    badge(`idle ${formatUs(step.plain_us - busy)} a step`, "without the profiler");
  } else {
    if (busy !== null) badge(`device busy ${formatShare(step.busy_share)} under the profiler`, "union of the device's intervals over wall time, on the device's clock");
    if (step.idle_us) badge(`idle ${formatUs(step.idle_us)}${step.steps ? " a step" : ""} under the profiler`, "wall time without the device's intervals");
  }
  if (step.profiled_us && step.plain_us)
    badge(`profiler cost ×${(step.profiled_us / step.plain_us).toFixed(2)}`, "step time under the profiler over step time without it, host clock");
  if (step.clock) badge(`clock: ${step.clock}`, "who timed the kernels");
  return made;
}

function categoryBars() {
  const rows = DATA.categories;
  const amount = { time: "us", bytes: "bytes", flops: "flops" }[DATA.weight];
  const total = rows.reduce((sum, row) => sum + (row[amount] || 0), 0);
  if (!rows.length) return element("p", { class: "quiet" }, "No launches.");
  const most = Math.max(...rows.map((row) => row[amount] || 0)) || 1;
  return element("div", {},
    element("div", { class: "bars", role: "list" }, rows.map((row) =>
      element("button", { class: "bar-row", role: "listitem", type: "button", title: `${row.meaning ? capital(row.meaning) + ": " : ""}${formatCount(Math.round(row.launches))} launches; click to list them`,
        onclick: () => showInTable({ category: row.name }) },
      element("span", { class: "bar-name" }, swatch(row.name), categoryText(row.name)),
      element("span", { class: "bar-track" }, element("span", { class: `bar category-${colorSlot(row.name)}`, style: `width:${100 * (row[amount] || 0) / most}%` })),
      element("span", { class: "bar-value" }, WEIGHT.format(row[amount])),
      element("span", { class: "bar-share" }, total ? formatShare((row[amount] || 0) / total) : "")))),
    outsideNote(total));
}

// Device time that no entry explains: eager code between compiled graphs, copies, helper kernels.
function outsideNote(total) {
  if (RECORDED) {
    const eager = RECORDED.calls.filter((call) => textAt(call[CALL.kind]) !== "graph").reduce((sum, call) => sum + (call[CALL.us] || 0), 0);
    return element("p", { class: "quiet" }, eager && hasTime ? `${DATA.step?.device_us === undefined ? "Kernels of compiled graphs; another" : "All of a step:"} ${formatUs(eager)} ran outside compiled graphs, ` : null,
      eager && hasTime ? element("a", { href: "#step" }, "call by call") : null, eager && hasTime ? "." : null,
      RECORDED.stale.length ? ` Compiled, not called in the step: ${RECORDED.stale.join(", ")}.` : null);
  }
  if (!DATA.step || !N || isImported || DATA.step.entries_us === undefined || !hasTime) return null;
  const outside = total - DATA.step.entries_us;
  if (outside <= total * 0.0005) return element("p", { class: "quiet" }, `All of ${formatUs(total)} of device time${DATA.step.steps ? " in a step" : ""} belongs to entries of the ledger.`);
  return element("p", { class: "quiet" },
    `${formatUs(DATA.step.entries_us)} of ${formatUs(total)} in a step belongs to entries of the ledger; ${formatUs(outside)} (${formatShare(outside / total)}) ran outside of compiled graphs.`);
}

function kernelTotals() {
  return KERNEL_NAMES.map((name, kernel) => {
    const rows = rowsOfKernel(kernel);
    return { kernel, name, rows, weight: rows.reduce((sum, row) => sum + weightOf(row), 0), category: rows.length ? category(rows[0]) : "other" };
  }).sort((a, b) => b.weight - a.weight);
}

function heaviestKernels() {
  const top = kernelTotals().slice(0, 8);
  if (!top.length) return element("p", { class: "quiet" }, "No kernels.");
  return smallTable(
    [{ label: "kernel", align: "left" }, { label: isImported ? "calls" : "launches" }, { label: WEIGHT.short }, { label: "share" }],
    top.map((each) => [
      element("a", { href: kernelAddress(each.kernel), title: each.name }, swatch(each.category), shortName(each.name)),
      formatCount(Math.round(each.rows.reduce((sum, row) => sum + at("calls", row), 0))), WEIGHT.format(each.weight), TOTAL_WEIGHT ? formatShare(each.weight / TOTAL_WEIGHT) : "",
    ]), { class: "heaviest" });
}

// Sums as they are, not rounded: the sheet is about their last digit.
const exactAmount = (value, unit) => known((each) => each.toLocaleString("en-US", { maximumFractionDigits: 1 }) + (unit === "us" ? " µs" : ""))(value);

function drawBalance(section) {
  const accounts = DATA.balance.accounts;
  append(section, DATA.balance.is_imported ? [
    element("p", { class: "hint" }, "An imported trace holds no launches of a ledger, so that there are no sums to compare."),
  ] : [
    element("p", { class: "hint" }, "Each sum of the ledger stands beside an independent count; what differs is named, what is missing says why."),
    smallTable([{ label: "account", align: "left" }, { label: "ledger" }, { label: "reference" }, { label: "differences" }, { label: "missing" }, { label: "", align: "left" }],
      accounts.map((account) => [categoryText(account.name), exactAmount(account.ledger, account.unit), account.reference === null ? "" : exactAmount(account.reference, account.unit),
        account.differences || "", account.missing || "", element("span", { class: `state ${account.tone || ""}` }, account.state)])),
    element("ul", { class: "balance-lines" }, accounts.flatMap((account) => account.lines.slice(0, 50).map(([text, tone]) =>
      element("li", { class: tone || "" }, text))))]);
  append(section, [
    element("h3", {}, "The run"), factList(DATA.facts),
    DATA.remarks.length ? [element("h3", {}, "What to look at"), element("ul", {}, DATA.remarks.map((text) => element("li", {}, withCode(text))))] : null,
    DATA.step && (DATA.step.notes || []).length ? [element("h3", {}, "About the times"), element("ul", {}, DATA.step.notes.map((text) => element("li", {}, text)))] : null,
  ]);
}
