// Time by module or by source line, as an icicle: a box is as wide as its share of the step.
function drawFlame(section) {
  const hasModules = has("module");
  const place = element("div", { class: "flame", role: "tree", "aria-label": "time by module and source line" });
  const trail = element("div", { class: "trail" });
  let mode = hasModules ? "module" : "source", root = null, focus = null;
  const build = () => { root = focus = flameTree(mode); draw(); };
  const zoom = (node) => { focus = node; draw(); place.querySelector("button")?.focus({ preventScroll: true }); };
  const draw = () => {
    const path = [];
    for (let node = focus; node; node = node.parent) path.unshift(node);
    fill(trail, path.map((node, index) => [index ? " › " : "", element("button", { type: "button", class: "link", onclick: () => zoom(node) }, node.name)]),
      element("span", { class: "quiet" }, `  ${WEIGHT.format(focus.weight)}, ${formatShare(root.weight ? focus.weight / root.weight : 0)}`));
    const boxes = [];
    let deepest = 0;
    const visit = (node, left, depth) => {
      const width = focus.weight ? node.weight / focus.weight : 0;
      if (width < 0.0015) return;
      deepest = Math.max(deepest, depth);
      boxes.push(flameBox(node, left, width, depth, zoom, root));
      let start = left;
      for (const child of node.sorted) { visit(child, start, depth + 1); start += child.weight / focus.weight; }
    };
    visit(focus, 0, 0);
    fill(place, boxes);
    place.style.height = (deepest + 1) * 22 + "px";
  };
  place.onkeydown = (event) => moveInFlame(event, place, () => focus.parent && zoom(focus.parent));
  append(section, [
    element("p", { class: "hint" }, `Width is ${hasTime ? "time in a step" : WEIGHT.label}. Click a box to zoom in, a kernel to open it; arrow keys move, Escape zooms out. A launch counts at the last of its modules and lines, the one it was made for.`),
    howToRead("From the top: the step, the modules inside one another, the source line, the kernels that were made for it. What is wide took long.",
      "A fused kernel often computes operators of several modules; all its time stands at the last of them."),
    choice("flame-mode", [["module", "by module"], ["source", "by source line"], ["graph", "by graph and category"]], mode, (value) => { mode = value; build(); }),
    trail, place,
  ]);
  build();
}

function flameTree(mode) {
  const make = (name, parent) => ({ name, parent, weight: 0, launches: 0, children: new Map(), sorted: [], row: null });
  const root = make("step", null);
  for (let row = 0; row < N; row++) {
    const weight = weightOf(row);
    let node = root;
    node.weight += weight; node.launches++;
    for (const part of flamePath(mode, row)) {
      if (!node.children.has(part)) node.children.set(part, make(part, node));
      node = node.children.get(part);
      node.weight += weight; node.launches++;
    }
    const leaf = "\u0000" + LAUNCHES.kernel[row];
    if (!node.children.has(leaf)) node.children.set(leaf, Object.assign(make(shownName(row), node), { row, category: category(row) }));
    const kernel = node.children.get(leaf);
    kernel.weight += weight; kernel.launches++;
  }
  const sort = (node) => { node.sorted = [...node.children.values()].sort(isNumbered(node) ? (a, b) => a.name - b.name : (a, b) => b.weight - a.weight); node.sorted.forEach(sort); };
  sort(root);
  return root;
}

// Layers 0, 1, 2 … in their order; everything else heaviest first.
const isNumbered = (node) => [...node.children.values()].every((child) => child.row === null && /^\d+$/.test(child.name));

function flamePath(mode, row) {
  if (mode === "graph") return [graphName(row) || "(no graph)", categoryText(category(row))];
  if (mode === "module") {
    const module = textAt(at("module", row)), source = textAt(at("source", row));
    return [...(module ? module.split(".") : ["(no module)"]), ...(source ? [source.split("/").pop()] : [])];
  }
  const source = textAt(at("source", row));
  if (!source) return ["(no line of the model)"];
  const colon = source.lastIndexOf(":"), code = textAt(at("code", row));
  return [source.slice(0, colon), `${source.slice(colon + 1)}${code ? ": " + code : ""}`];
}

function flameBox(node, left, width, depth, zoom, root) {
  const isLeaf = node.row !== null;
  const lines = () => [node.name, `${WEIGHT.format(node.weight)}, ${formatShare(root.weight ? node.weight / root.weight : 0)} of the step`,
    `${formatCount(node.launches)} launch${node.launches === 1 ? "" : "es"}`, isLeaf ? `${categoryText(node.category)}; click to open` : null];
  const box = element("button", {
    type: "button", role: "treeitem", "aria-level": depth + 1, tabindex: depth ? "-1" : "0",
    class: isLeaf ? `category-${colorSlot(node.category)} leaf` : `inner depth-${depth % 4}`,
    style: `left:${left * 100}%;width:calc(${width * 100}% - 1px);top:${depth * 22}px`,
    "aria-label": `${node.name}, ${WEIGHT.format(node.weight)}`,
    onclick: () => { tooltip.hide(); if (isLeaf) location.hash = node.launches === 1 ? launchAddress(node.row) : kernelAddress(LAUNCHES.kernel[node.row]); else zoom(node); },
  }, width > 0.02 ? node.name : "");
  box.addEventListener("mousemove", (event) => tooltip.show(lines(), event.clientX, event.clientY));
  box.addEventListener("mouseleave", tooltip.hide);
  box.addEventListener("focus", () => { if (box.matches(":focus-visible")) { const at = box.getBoundingClientRect(); tooltip.show(lines(), at.left, at.bottom - 12); } });
  box.addEventListener("blur", tooltip.hide);
  return box;
}

function moveInFlame(event, place, zoomOut) {
  if (event.key === "Escape") { zoomOut(); event.preventDefault(); return; }
  const now = event.target.closest("button");
  if (!now || !event.key.startsWith("Arrow")) return;
  event.preventDefault();
  const here = now.getBoundingClientRect();
  const wanted = { ArrowDown: [0, 1], ArrowUp: [0, -1], ArrowRight: [1, 0], ArrowLeft: [-1, 0] }[event.key];
  let best = null, least = Infinity;
  for (const other of place.children) {
    const there = other.getBoundingClientRect();
    const down = Math.round((there.top - here.top) / 22), right = there.left - here.left;
    const fits = wanted[1] ? down === wanted[1] && there.left <= here.right && there.right >= here.left : down === 0 && Math.sign(right) === wanted[0];
    if (fits && other !== now && Math.abs(right) < least) { best = other; least = Math.abs(right); }
  }
  best?.focus();
}
