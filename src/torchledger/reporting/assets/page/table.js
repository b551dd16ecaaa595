// A table of any number of rows: only those in sight are in the document. Sorts, filters and searches.
class LongTable {
  // columns: {key, label, title, width, align, value(row), text(row), cell(row)}; rows: indices; haystack(row): text
  constructor({ parent, columns, rows, haystack, open, sort, label }) {
    Object.assign(this, { columns, all: rows, haystack, open, label });
    this.sortKey = sort.key;
    this.ascending = Boolean(sort.ascending);
    this.words = [];
    this.filters = new Map();
    this.lowered = null;
    this.selected = 0;
    this.rowHeight = 28;
    this.head = element("tr", {});
    this.body = element("tbody", {});
    this.table = element("table", { class: "long-table", role: "grid", "aria-label": label },
      element("colgroup", {}, columns.map((column) => element("col", { style: `width:${column.width}px` }))),
      element("thead", {}, this.head), this.body);
    this.table.style.minWidth = columns.reduce((sum, column) => sum + column.width, 0) + "px";
    this.box = element("div", { class: "long-table-box", tabindex: "0", "aria-label": `${label}; arrow keys move, Enter opens` }, this.table);
    this.box.addEventListener("scroll", () => this.paint(), { passive: true });
    this.box.onkeydown = (event) => this.onKey(event);
    this.body.onclick = (event) => {
      const line = event.target.closest("tr[data-place]");
      if (line && !event.target.closest("a")) { this.selected = Number(line.dataset.place); this.open(this.shown[this.selected]); }
    };
    parent.append(this.box);
    this.order();
    this.refresh();
    (window.requestIdleCallback || setTimeout)(() => this.prepare());
  }

  // What a search looks through, made while the browser has nothing else to do, so that no key press waits for it.
  prepare() {
    if (this.lowered) return;
    const lowered = [];
    for (const row of this.all) lowered[row] = this.haystack(row).toLowerCase();
    this.lowered = lowered;
  }

  search(text) {
    this.words = text.toLowerCase().split(/\s+/).filter(Boolean);
    this.refresh();
  }

  filter(name, accepts) {
    if (accepts) this.filters.set(name, accepts); else this.filters.delete(name);
    this.refresh();
  }

  sortBy(key) {
    const column = this.columns.find((each) => each.key === key);
    this.ascending = this.sortKey === key ? !this.ascending : column.align === "left";
    this.sortKey = key;
    this.order();
    this.refresh();
  }

  // All rows in the chosen order, so that a key press in the search only filters.
  order() {
    const column = this.columns.find((each) => each.key === this.sortKey), sign = this.ascending ? 1 : -1;
    const keyed = this.all.map((row) => { const value = column.value(row); return [value === undefined || value === "" ? null : value, row]; });
    keyed.sort(([x], [y]) => {
      if (x === null || y === null) return x === y ? 0 : x === null ? 1 : -1;  // unknown last, either way
      return x < y ? -sign : x > y ? sign : 0;
    });
    this.ordered = keyed.map(([, row]) => row);
    this.drawHead();
  }

  refresh() {
    if (this.words.length) this.prepare();
    const accepts = [...this.filters.values()], words = this.words, lowered = this.lowered;
    this.shown = accepts.length || words.length
      ? this.ordered.filter((row) => accepts.every((accept) => accept(row)) && words.every((word) => lowered[row].includes(word))) : this.ordered;
    this.selected = 0;
    this.box.scrollTop = 0;
    this.paint(true);
    if (this.onChange) this.onChange(this.shown.length);
  }

  drawHead() {
    fill(this.head, this.columns.map((column) => {
      const isSorted = column.key === this.sortKey;
      return element("th", { scope: "col", class: column.align === "left" ? "left" : "",
        "aria-sort": isSorted ? (this.ascending ? "ascending" : "descending") : "none" },
      element("button", { type: "button", title: column.title, "data-key": column.key,
        onclick: () => { this.sortBy(column.key); this.head.querySelector(`[data-key="${column.key}"]`).focus(); } },
      column.label, element("span", { class: "arrow", "aria-hidden": "true" }, isSorted ? (this.ascending ? "▲" : "▼") : "")));
    }));
  }

  paint(always = false, count = 0) {
    const height = Math.max(this.box.clientHeight, Math.min(0.7 * window.innerHeight, 720));  // as tall as it may get: an empty one is small
    const first = Math.max(0, Math.floor(this.box.scrollTop / this.rowHeight) - 6);
    const last = count || Math.min(this.shown.length, first + Math.ceil(height / this.rowHeight) + 12);
    if (!always && first === this.first && last === this.last) return;
    this.first = first;
    this.last = Math.min(last, this.shown.length);
    const lines = [];
    if (first) lines.push(this.spacer(first));
    for (let place = first; place < this.last; place++) lines.push(this.line(place));
    if (this.last < this.shown.length) lines.push(this.spacer(this.shown.length - this.last));
    if (!this.shown.length) lines.push(element("tr", {}, element("td", { class: "left quiet", colspan: this.columns.length }, "Nothing matches.")));
    this.body.replaceChildren(...lines);
    this.table.setAttribute("aria-rowcount", this.shown.length + 1);
  }

  spacer(rows) {
    return element("tr", { "aria-hidden": "true", class: "spacer", style: `height:${rows * this.rowHeight}px` },
      element("td", { colspan: this.columns.length }));
  }

  line(place) {
    const row = this.shown[place];
    return element("tr", { "data-place": place, "aria-rowindex": place + 2, class: place === this.selected ? "selected" : "" },
      this.columns.map((column) => element("td", { class: column.align === "left" ? "left" : "", title: column.hint ? column.hint(row) : undefined },
        column.cell ? column.cell(row) : column.text(row))));
  }

  onKey(event) {
    const page = Math.max(1, Math.floor(this.box.clientHeight / this.rowHeight) - 2);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.target.tagName === "BUTTON") return;
    if (event.key === "Enter" && this.shown.length) { event.preventDefault(); this.open(this.shown[this.selected]); return; }
    if (!(event.key in moves) || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.selected = Math.max(0, Math.min(this.shown.length - 1, this.selected + moves[event.key]));
    const top = this.selected * this.rowHeight, bottom = top + this.rowHeight, room = this.box.clientHeight - this.head.offsetHeight;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (bottom > this.box.scrollTop + room) this.box.scrollTop = bottom - room;
    this.paint(true);
  }
}
