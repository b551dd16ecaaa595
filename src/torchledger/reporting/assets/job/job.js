const job = JSON.parse(document.getElementById("data").textContent);
const canvas = document.getElementById("ranks"), said = document.getElementById("said");
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const KINDS = ["compute", "exposed communication", "idle"];
const ROW = 26, GAP = 8, TOP = 18, LEFT = 70;
let from = 0, to = job.length_us;
const ms = (us) => us >= 1000 ? `${(us / 1000).toFixed(2)} ms` : `${us.toFixed(1)} us`;
const bytes = (n) => n === null ? "unknown bytes" : n >= 1e6 ? `${(n / 1e6).toFixed(2)} MB` : `${n} B`;
const rowOf = new Map(job.rows.map((row, place) => [row.rank, place]));
const x = (us) => LEFT + (us - from) / (to - from) * (canvas.clientWidth - LEFT);
const us = (pixel) => from + (pixel - LEFT) / (canvas.clientWidth - LEFT) * (to - from);
const y = (place) => TOP + place * (ROW + GAP);

function firstAt(row, moment) {
  let low = 0, high = row.start.length;
  while (low < high) { const middle = (low + high) >> 1; if (row.start[middle] <= moment) low = middle + 1; else high = middle; }
  return Math.max(0, low - 1);
}

function draw() {
  const colors = ["--compute", "--exposed", "--idle"].map(style), ink = style("--ink"), red = style("--match");
  const scale = window.devicePixelRatio || 1, height = y(job.rows.length) + 4;
  canvas.style.height = `${height}px`;
  canvas.width = canvas.clientWidth * scale; canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale); pen.font = "11px system-ui"; pen.clearRect(0, 0, canvas.clientWidth, height);
  for (const [place, row] of job.rows.entries()) {
    pen.fillStyle = ink; pen.fillText(`rank ${row.rank}`, 4, y(place) + 17);
    const reached = [-1, -1, -1];
    for (let at = firstAt(row, from); at < row.start.length && row.start[at] < to; at++) {
      const left = Math.max(LEFT, x(row.start[at])), right = x(row.start[at] + row.length[at]), kind = row.kind[at];
      if (right < reached[kind] + 0.5) continue;  // less than a pixel further than what is drawn
      pen.fillStyle = colors[kind];
      pen.fillRect(left, y(place), Math.max(right - left, 0.5), ROW);
      reached[kind] = right;
    }
  }
  for (const match of job.matches) {
    const places = match.ranks.map((rank) => rowOf.get(rank)).filter((place) => place !== undefined);
    const last = Math.max(...match.arrived), end = Math.max(...match.ended);
    if (end < from || Math.min(...match.arrived) > to || !places.length) continue;
    const upper = y(Math.min(...places)), lower = y(Math.max(...places)) + ROW;
    pen.fillStyle = `rgba(${red}, ${match === chosen ? 0.35 : 0.1})`;
    pen.fillRect(Math.max(LEFT, x(last)), upper, Math.max(x(end) - Math.max(LEFT, x(last)), 0.7), lower - upper);
    if (match === chosen) match.ranks.forEach((rank, at) => {
      if (rowOf.get(rank) === undefined) return;
      pen.strokeStyle = `rgb(${red})`; pen.strokeRect(x(match.arrived[at]), y(rowOf.get(rank)), Math.max(1, x(last) - x(match.arrived[at])), ROW);
    });
  }
  pen.fillStyle = style("--quiet"); pen.fillText(`${ms(from)} to ${ms(to)}`, LEFT, 12);
}

let chosen = null;
canvas.addEventListener("click", (event) => {
  const moment = us(event.offsetX), place = Math.floor((event.offsetY - TOP) / (ROW + GAP)), row = job.rows[place];
  if (!row) return;
  chosen = job.matches.find((match) => {
    const at = match.ranks.indexOf(row.rank);
    return at >= 0 && match.arrived[at] <= moment && moment <= match.ended[at];
  }) || null;
  const at = firstAt(row, moment), lines = [];
  lines.push(`rank ${row.rank}: ${KINDS[row.kind[at]]}, ${job.texts[row.label[at]]}, ${ms(row.length[at])}`);
  if (chosen) {
    const last = Math.max(...chosen.arrived);
    lines.push(`${chosen.operation} of ${chosen.ranks.length} ranks, ${bytes(chosen.bytes)}${chosen.by ? `, asked for by ${chosen.by}` : ""}, moving ${ms(Math.max(...chosen.ended) - last)}`);
    lines.push("waited: " + chosen.ranks.map((rank, place) => [rank, Math.max(0, Math.min(last, chosen.ended[place]) - chosen.arrived[place])])
      .sort((one, other) => other[1] - one[1]).slice(0, 12).map(([rank, waited]) => `rank ${rank} ${ms(waited)}`).join(", "));
    if (chosen.cause) lines.push(`for rank ${chosen.cause_rank}: ${chosen.cause}`);
  }
  said.textContent = lines.join("\n");
  draw();
});
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  const moment = us(event.offsetX), factor = event.deltaY > 0 ? 1.25 : 0.8;
  const length = Math.min(job.length_us, (to - from) * factor);
  from = Math.min(Math.max(0, moment - (moment - from) * factor), job.length_us - length); to = from + length;
  draw();
}, { passive: false });
canvas.addEventListener("dblclick", () => { from = 0; to = job.length_us; draw(); });
window.addEventListener("resize", draw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
draw();
