// A recorded step: its phases in a bar, and every call of it in a table.
const RECORDED = DATA.recorded || null;
const CALL = { kind: 0, name: 1, phase: 2, category: 3, source: 4, module: 5, us: 6, flops: 7, bytes: 8, launches: 9, thread: 10, start: 11, host: 12, reason: 13 };

function phaseBar() {
  const total = RECORDED.total.us;
  if (!total) return element("p", { class: "quiet" }, "No call of the step took measurable time.");
  return element("div", { class: "phase-bar", role: "img", "aria-label": "Time of a step by phase; the table below has the numbers" },
    RECORDED.phases.filter((each) => each.us > 0).map((each) => element("span", { class: `category-${phaseSlot(each.phase)}`, style: `flex-grow:${each.us / total}`,
      title: `${each.name}: ${formatUs(each.us)}, ${formatShare(each.us / total)}` }, each.us / total > 0.08 ? each.name : "")));
}

function phaseTable() {
  const total = RECORDED.total;
  const line = (name, each) => [name, formatCount(each.calls), formatCount(each.launches), total.us ? formatUs(each.us) : UNKNOWN, total.us ? formatShare(each.us / total.us) : UNKNOWN,
    formatFlops(each.flops), formatBytes(each.bytes), each.us ? formatShare(each.unknown_us / each.us) : ""];
  return smallTable([{ label: "phase", align: "left" }, { label: "calls" }, { label: "launches" }, { label: "time" }, { label: "share" }, { label: "FLOPs" }, { label: "bytes" },
    { label: "unknown", title: "share of the time whose FLOPs and bytes are not known" }],
  [...RECORDED.phases.map((each) => line([phaseSwatch(each.phase), each.name], each)), line("one step", total)]);
}

function drawStep(section) {
  const calls = RECORDED.calls, total = RECORDED.total.us, read = (key) => (place) => calls[place][CALL[key]];
  const words = (key) => (place) => textAt(calls[place][CALL[key]]);
  const worker = RECORDED.on_cpu ? "in operators" : "on the device";
  const found = element("span", { class: "quiet", id: "found-calls", role: "status" });
  const search = element("input", { type: "search", id: "search-calls", placeholder: "search calls, lines, modules…", "aria-label": "search the calls of the step", oninput: () => table.search(search.value) });
  const phases = [...new Set(calls.map((call) => textAt(call[CALL.phase])))];
  const byPhase = element("select", { id: "filter-phase", "aria-label": "phase", onchange: (event) => { const value = event.target.value; table.filter("phase", value && ((place) => words("phase")(place) === value)); } },
    element("option", { value: "" }, "all phases"), phases.map((phase) => element("option", { value: phase }, phaseText(phase))));
  const box = element("div", {});
  append(section, [
    element("p", { class: "hint" }, `${formatCount(calls.length + RECORDED.left_out)} calls of one step${RECORDED.left_out ? `, the first ${formatCount(calls.length)} of them here` : ""}, with their time ${worker}; found by: ${RECORDED.found_by}. A compiled graph is one call; its kernels are in their own table.`),
    howToRead("A call is what the program did in one step: a compiled graph, an operator that ran outside of them (eager), a collective, a copy between host and device. Its line and module are those that asked for it; a backward operator has those of its forward.",
      "A question mark is what is not known: no kernel of the call was seen, or its operator has no formula."),
    element("div", { class: "tools" }, search, byPhase, found), box,
    RECORDED.stale.length ? element("p", { class: "quiet" }, `Compiled, not called in the step, and in none of its sums: ${RECORDED.stale.join(", ")}.`) : null,
    RECORDED.notes.length ? element("ul", {}, RECORDED.notes.map((note) => element("li", {}, note))) : null]);
  const text = (key, label, title, width) => ({ key, label, title, width, align: "left", value: words(key), text: words(key), hint: words(key) });
  const number = (key, label, title, width, value, format) => ({ key, label, title, width, value, text: (place) => format(value(place)) });
  const isSaid = (key) => calls.some((call) => textAt(call[CALL[key]]));
  const table = new LongTable({
    parent: box, label: "calls of the step", rows: calls.map((_, place) => place), sort: { key: "us" },
    haystack: (place) => ["kind", "name", "phase", "category", "source", "module"].map((key) => words(key)(place)).join(" "),
    open: (place) => { if (words("kind")(place) === "graph") { showInTable({}); tableParts.search.value = words("name")(place); kernelTable.search(words("name")(place)); } },
    columns: [
      { ...text("name", "call", "compiled graph, eager operator, collective or copy", 236), cell: (place) => [phaseSwatch(words("phase")(place)), words("name")(place)] },
      text("kind", "kind", "graph, operator, collective or copy", 84),
      { ...text("phase", "phase", "what it is for", 118), text: (place) => phaseText(words("phase")(place)) },
      ...(isSaid("source") ? [text("source", "source line", "line of the program that asked for it", 190)] : []),
      number("us", "time", `time ${worker}, median over the recorded steps`, 84, read("us"), formatUs),
      number("share", "of step", "share of the time of the step's calls", 78, (place) => total && read("us")(place) !== null ? read("us")(place) / total : null, formatShare),
      number("flops", "FLOPs", "tensor FLOPs; one multiply-add is 2", 78, read("flops"), formatFlops),
      number("bytes", "bytes", "minimum traffic", 84, read("bytes"), formatBytes),
      number("launches", "launches", "kernels that it launched", 88, read("launches"), formatCount),
      number("start", "start", "from the beginning of the step, on the host", 84, read("start"), formatUs),
      ...(isSaid("module") ? [text("module", "module", "nn.Module that it ran in", 180)] : []),
    ],
  });
  table.onChange = (shown) => {
    const us = table.shown.reduce((sum, place) => sum + (read("us")(place) || 0), 0);
    fill(found, shown === calls.length ? "" : `${formatCount(shown)} found, ${formatUs(us)}${total ? ` (${formatShare(us / total)})` : ""}`);
  };
}
