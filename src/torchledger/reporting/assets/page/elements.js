// Making elements. Text from the ledger only ever becomes a text node: nothing here, or anywhere, parses it as HTML.
const element = (tag, properties = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "onclick" || name === "oninput" || name === "onchange" || name === "onkeydown") made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  append(made, children);
  return made;
};

const append = (parent, children) => {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    parent.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return parent;
};

const drawing = (tag, properties = {}, ...children) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) made.setAttribute(name, value);
  return append(made, children);
};

const byId = (id) => document.getElementById(id);

const fill = (parent, ...children) => {
  parent.replaceChildren();
  return append(parent, children);
};

// A table of a few rows. Columns: {label, align, title}; cells are text, numbers already formatted, or elements.
const smallTable = (columns, rows, options = {}) =>
  element("div", { class: "scroll-x" },
    element("table", { class: "small-table " + (options.class || "") },
      options.caption && element("caption", {}, options.caption),
      element("thead", {}, element("tr", {}, columns.map((column) =>
        element("th", { scope: "col", class: column.align === "left" ? "left" : "", title: column.title }, column.label)))),
      element("tbody", {}, rows.map((cells) =>
        element("tr", {}, cells.map((cell, place) =>
          element("td", { class: columns[place].align === "left" ? "left" : "" }, cell)))))));

// Text in which `commands` stand between backticks.
const withCode = (text) => text.split("`").map((part, place) => (place % 2 ? element("code", {}, part) : part));

// What a section's words and picture mean, folded away for those who know.
const howToRead = (...paragraphs) =>
  element("details", { class: "how" }, element("summary", {}, "How to read this"), paragraphs.map((text) => element("p", {}, withCode(text))));

const factList = (pairs) =>
  element("dl", { class: "facts" }, pairs.map(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));

// One tooltip for the whole page.
const tooltip = (() => {
  let box = null;
  return {
    show(lines, x, y) {
      if (!box) document.body.append((box = element("div", { class: "tooltip", role: "status" })));
      fill(box, lines.filter(Boolean).map((line, place) => element("div", { class: place ? "" : "tooltip-title" }, line)));
      box.style.display = "block";
      const width = box.offsetWidth, height = box.offsetHeight;
      box.style.left = Math.max(4, Math.min(x + 14, window.innerWidth - width - 8)) + "px";
      box.style.top = Math.max(4, y + 18 + height > window.innerHeight ? y - height - 10 : y + 18) + "px";
    },
    hide() { if (box) box.style.display = "none"; },
  };
})();
