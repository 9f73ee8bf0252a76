"use strict";
// Charts: a legend's button hides its lines; a pointer shows the values; a drag zooms; a double click shows the whole.
// Tables: a heading's button sorts. Texts are set as text only.
const all = (root, what) => Array.from(root.querySelectorAll(what));
const tip = document.getElementById("tip");
const NS = "http://www.w3.org/2000/svg";
const make = (name, parent, attributes) => {
  const made = parent.appendChild(document.createElementNS(NS, name));
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  return made;
};
const pairs = (d) => (d.match(/[ML]-?[\d.]+ -?[\d.]+/g) || []).map((each) => each.slice(1).split(" ").map(Number));
const path = (points) => points.map(([x, y], i) => (i ? "L" : "M") + x.toFixed(1) + " " + y.toFixed(2)).join("");
const ticks = (low, high, whole) => {
  const length = high - low, power = 10 ** Math.floor(Math.log10(length / 6));
  let step = [1, 2, 5, 10, 20].map((each) => each * power).find((each) => length / each <= 6);
  if (whole) step = Math.max(1, Math.ceil(step));
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) found.push(i * step);
  return found;
};
const shown = (value, digits = 4) => {
  const size = Math.abs(value), more = size >= 1000 ? 2 : 0;
  const word = size !== 0 && (size >= 1e6 || size < 1e-3) ? value.toExponential(digits - 2) : String(+value.toPrecision(digits + more));
  return word.replace(/^-/, "\u2212");
};
const labels = (values, digits = 4) => {
  const found = values.map((value) => shown(value, digits));
  return digits > 12 || new Set(found).size === found.length ? found : labels(values, digits + 1);
};
const finer = (value) => (Math.abs(value) >= 0.1 && Math.abs(value) < 1e4 ? value.toFixed(2) : shown(value)).replace(/^-/, "\u2212");

for (const figure of all(document, "figure.chart")) {
  const names = all(figure, ".legend button");
  for (const button of names) {
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", String(on));
      for (const line of all(figure, '.s[data-s="' + button.dataset.s + '"]')) line.classList.toggle("off", !on);
    });
  }
  for (const panel of all(figure, "svg.panel")) enliven(panel, names);
}

function enliven(panel, names) {
  const plot = panel.querySelector("svg.plot"), axes = panel.querySelector("g.axes");
  const reset = panel.parentNode.querySelector(".reset"), ticked = Array.from(axes.childNodes);
  const room = plot.viewBox.baseVal, edge = -room.x; // markers at the ends reach beyond the axes
  const wide = room.width - 2 * edge, tall = room.height - 2 * edge;
  const left = +plot.getAttribute("x") + edge, top = +plot.getAttribute("y") + edge;
  const data = panel.dataset, log = data.log === "1";
  const scale = (each) => (log ? Math.log10(each) : each), back = (each) => (log ? 10 ** each : each);
  const whole = { x0: scale(+data.loX), x1: scale(+data.hiX), y0: +data.loY, y1: +data.hiY };
  const lines = all(plot, "path.line, path.band").map((each) => ({ each, points: pairs(each.getAttribute("d")) }));
  for (const { each, points } of lines) { // the values of points that are drawn nearer
    for (const [i, value] of Object.entries(JSON.parse(each.dataset.far || "{}"))) points[i].push(value);
  }
  const marks = all(plot, "path.mark").map((each) => ({ each, d: each.getAttribute("d") }));
  let box = null; // what is shown, in pixels of the whole picture
  const view = () => box || { x: 0, y: 0, w: wide, h: tall };
  const moved = ([x, y]) => [(x - view().x) * wide / view().w, (y - view().y) * tall / view().h];
  const xOf = (pixel) => back(whole.x0 + (whole.x1 - whole.x0) * pixel / wide);
  const yOf = (pixel) => whole.y1 - (whole.y1 - whole.y0) * pixel / tall;
  const local = (event) => {
    const at = panel.getBoundingClientRect(), f = panel.viewBox.baseVal.width / at.width;
    return [(event.clientX - at.left) * f - left, (event.clientY - at.top) * f - top];
  };

  function show(next) {
    box = next;
    reset.hidden = !box;
    for (const { each, points } of lines) each.setAttribute("d", path(points.map(moved)));
    for (const { each, d } of marks) each.setAttribute("d", d.replace(/M(-?[\d.]+) (-?[\d.]+)/g, (_, x, y) => path([moved([+x, +y])])));
    axes.replaceChildren(...(box ? [] : ticked));
    if (!box) return;
    const line = (x1, y1, x2, y2) => make("line", axes, { x1, y1, x2, y2, stroke: "currentColor", "stroke-opacity": 0.16 });
    const word = (x, y, anchor, label) => {
      make("text", axes, { x, y, "text-anchor": anchor, "font-size": 11 }).textContent = label;
    };
    const across = ticks(xOf(box.x), xOf(box.x + box.w), data.whole === "1"), named = labels(across);
    for (const [i, tick] of across.entries()) {
      const x = left + moved([wide * (scale(tick) - whole.x0) / (whole.x1 - whole.x0), 0])[0];
      line(x, top, x, top + tall);
      word(x, top + tall + 16, "middle", named[i]);
    }
    const up = ticks(yOf(box.y + box.h), yOf(box.y), false), words = labels(up);
    for (const [i, tick] of up.entries()) {
      const y = top + moved([0, tall * (whole.y1 - tick) / (whole.y1 - whole.y0)])[1];
      line(left, y, left + wide, y);
      word(left - 8, y + 4, "end", words[i]);
    }
  }

  let start = null, frame = null, guide = null;
  const clear = () => { for (const each of [frame, guide]) if (each) each.remove(); frame = guide = null; tip.style.display = "none"; };
  plot.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch") return;
    start = local(event);
    plot.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  plot.addEventListener("pointerup", (event) => {
    const end = local(event), from = start;
    start = null;
    clear();
    if (!from) return;
    const clip = (p, most) => Math.min(most, Math.max(0, p)), v = view();
    const x = [from[0], end[0]].map((p) => clip(p, wide)).sort((a, b) => a - b);
    const y = [from[1], end[1]].map((p) => clip(p, tall)).sort((a, b) => a - b);
    if (x[1] - x[0] < 6 || y[1] - y[0] < 6) return;
    show({ x: v.x + x[0] * v.w / wide, y: v.y + y[0] * v.h / tall, w: (x[1] - x[0]) * v.w / wide, h: (y[1] - y[0]) * v.h / tall });
  });
  plot.addEventListener("dblclick", () => show(null));
  reset.addEventListener("click", () => show(null));
  plot.addEventListener("pointerleave", () => { if (!start) clear(); });
  plot.addEventListener("pointermove", (event) => {
    const at = local(event);
    if (start) {
      if (!frame) frame = make("rect", plot, { class: "zoom" });
      for (const [key, value] of Object.entries({ x: Math.min(at[0], start[0]), y: Math.min(at[1], start[1]),
        width: Math.abs(at[0] - start[0]), height: Math.abs(at[1] - start[1]) })) frame.setAttribute(key, value);
      return;
    }
    const v = view(), pixel = v.x + at[0] * v.w / wide, found = [];
    for (const { each, points } of lines) {
      const series = each.parentNode;
      if (!points.length || !each.classList.contains("line") || series.classList.contains("off")) continue;
      const near = points.reduce((a, b) => (Math.abs(b[0] - pixel) < Math.abs(a[0] - pixel) ? b : a));
      if (Math.abs(near[0] - pixel) * wide / v.w < 30) found.push({ near, name: names[+series.dataset.s] });
    }
    if (!found.length) return clear();
    found.sort((a, b) => a.near[1] - b.near[1]);
    const x = found.reduce((a, b) => (Math.abs(b.near[0] - pixel) < Math.abs(a.near[0] - pixel) ? b : a)).near[0];
    if (!guide) guide = make("line", plot, { class: "guide", y1: 0, y2: tall });
    for (const key of ["x1", "x2"]) guide.setAttribute(key, moved([x, 0])[0]);
    const title = document.createElement("b");
    const xNear = xOf(x);
    title.textContent = all(panel, "text").find((each) => each.parentNode === panel && each.getAttribute("text-anchor") === "end").textContent
      + ": " + (data.whole === "1" ? Math.round(xNear) : shown(xNear));
    tip.replaceChildren(title, ...found.map(({ near, name }) => {
      const row = document.createElement("div");
      for (const words of [name ? name.textContent : "", finer(near[2] ?? yOf(near[1]))]) {
        row.appendChild(document.createElement("span")).textContent = words;
      }
      return row;
    }));
    tip.style.display = "block";
    const size = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(event.clientX + 14, innerWidth - size.width - 8)) + "px";
    tip.style.top = Math.max(4, Math.min(event.clientY + 14, innerHeight - size.height - 8)) + "px";
  });
}

for (const table of all(document, "table")) {
  const body = table.tBodies[0], heads = all(table, "thead tr:last-child th");
  const parts = (text) => text.toLowerCase().split(/(\d+(?:\.\d+)?)/);
  const compare = (a, b) => {
    for (let i = 0; i < Math.min(a.length, b.length); i++) {
      const order = i % 2 ? a[i] - b[i] : a[i].localeCompare(b[i]);
      if (order) return order;
    }
    return a.length - b.length;
  };
  heads.forEach((head, column) => {
    const button = head.querySelector("button.sort");
    if (!button) return;
    button.addEventListener("click", () => {
      const rows = Array.from(body.rows), numbers = rows.some((row) => row.cells[column].dataset.sort !== undefined);
      const down = head.getAttribute("aria-sort") ? head.getAttribute("aria-sort") === "ascending" : numbers;
      const key = (row) => (numbers ? parseFloat(row.cells[column].dataset.sort) : parts(row.cells[column].textContent));
      for (const each of heads) each.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const keyed = rows.map((row) => [key(row), row]);
      keyed.sort(([a], [b]) => {
        if (!numbers) return (down ? -1 : 1) * compare(a, b);
        if (isNaN(a) || isNaN(b)) return isNaN(a) - isNaN(b); // what is missing comes last
        return (down ? -1 : 1) * (a - b);
      });
      body.append(...keyed.map(([, row]) => row));
    });
  });
}
