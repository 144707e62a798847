"use strict";
// Tables: a click on a heading sorts by it, largest first; another click turns the order round.
document.querySelectorAll("table.sortable").forEach((table) => {
  table.querySelectorAll("thead th").forEach((th, column) => {
    th.querySelector("button")?.addEventListener("click", () => {
      const descending = th.getAttribute("aria-sort") !== "descending";
      table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
      th.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === "" || y === "") return (x === "") - (y === ""); // empty cells last
        const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : Number(x) - Number(y);
        return descending ? -order : order;
      });
      table.tBodies[0].append(...rows);
    });
  });
});

// Tables: a button shows the columns after the first ones.
document.querySelectorAll("button.columns").forEach((button) => {
  const words = button.textContent;
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", String(open));
    button.textContent = open ? "show fewer columns" : words;
    button.nextElementSibling.querySelectorAll(".other").forEach((cell) => { cell.hidden = !open; });
  });
});

// Figures: the name and the value of the nearest point of a line, or the words of a point.
const tip = document.getElementById("tip");
const show = (event, text) => {
  tip.textContent = text;
  tip.hidden = false;
  const left = Math.min(event.clientX + 14, document.documentElement.clientWidth - tip.offsetWidth - 6);
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${event.clientY + 16}px`;
};
const number = (value) => (Math.abs(value) >= 1000 ? Math.round(value).toLocaleString() : Number(value.toPrecision(4)));
const back = (pixel, [p0, p1, v0, v1, log]) => {
  const share = (pixel - p0) / (p1 - p0);
  return log ? v0 * (v1 / v0) ** share : v0 + share * (v1 - v0);
};
const lines = (svg) => [...svg.querySelectorAll("g.row")].map((g) => {
  const d = g.querySelector("path")?.getAttribute("d") ?? "";
  const points = [...d.matchAll(/[ML] (\S+) (\S+)/g)].map((m) => [Number(m[1]), Number(m[2])]);
  return { g, name: g.querySelector("title")?.textContent ?? "", points };
});
document.querySelectorAll("svg.figure").forEach((svg) => {
  const axes = JSON.parse(svg.dataset.axes);
  let rows = null;
  const leave = () => {
    tip.hidden = true;
    svg.classList.remove("chosen");
    svg.querySelectorAll(".on").forEach((part) => part.classList.remove("on"));
  };
  svg.addEventListener("pointermove", (event) => {
    const point = event.target.closest(".point");
    if (point) return show(event, point.querySelector("title").textContent);
    rows ??= lines(svg);
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    let best = { far: 18 };
    rows.forEach((row) => row.points.forEach(([x, y]) => {
      const far = Math.hypot(x - at.x, y - at.y);
      if (far < best.far) best = { far, row, x, y };
    }));
    leave();
    if (!best.row) return;
    svg.classList.add("chosen");
    svg.querySelectorAll(`[data-row="${best.row.g.dataset.row}"]`).forEach((part) => part.classList.add("on"));
    show(event, `${best.row.name}: ${number(back(best.y, axes.y))} at ${number(back(best.x, axes.x))}`);
  });
  svg.addEventListener("pointerleave", leave);
});

// Figures that differ in what they show: one of them, chosen with selects. Without the script all are shown.
document.querySelectorAll(".figures").forEach((place) => {
  const all = [...place.querySelectorAll("figure[data-switches]")].map((figure) => [figure, JSON.parse(figure.dataset.switches)]);
  if (all.length < 2) return;
  const chosen = { ...all[0][1] };
  const bar = document.createElement("p");
  bar.className = "switches";
  const draw = () => {
    bar.replaceChildren(...Object.keys(chosen).map((key) => {
      const label = document.createElement("label");
      const select = document.createElement("select");
      new Set(all.map(([, values]) => values[key])).forEach((value) => select.add(new Option(value, value, false, value === chosen[key])));
      select.addEventListener("change", () => {
        const others = all.map(([, values]) => values).filter((values) => values[key] === select.value);
        const shared = (values) => Object.keys(chosen).filter((other) => values[other] === chosen[other]).length;
        others.sort((a, b) => shared(b) - shared(a)); // keep the other choices where such a figure exists
        Object.assign(chosen, others[0]);
        draw();
        bar.querySelector(`select[aria-label="${key}"]`).focus();
      });
      select.setAttribute("aria-label", key);
      label.append(`${key} `, select);
      return label;
    }));
    all.forEach(([figure, values]) => { figure.hidden = Object.keys(chosen).some((key) => values[key] !== chosen[key]); });
  };
  place.prepend(bar);
  draw();
});

// Who gains, who loses: any two rows, client by client.
const NS = "http://www.w3.org/2000/svg";
const make = (name, attributes, parent, text) => {
  const element = document.createElementNS(NS, name);
  Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
  if (text !== undefined) element.textContent = text;
  parent?.append(element);
  return element;
};
const percent = (share) => `${(100 * share).toFixed(1)} %`;
const ticks = (low, high) => {
  const raw = (high - low) / 5, unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= raw);
  const first = Math.ceil(low / step) * step;
  return Array.from({ length: Math.floor((high - first) / step + 1e-9) + 1 }, (_, k) => first + k * step);
};
document.querySelectorAll(".pairs").forEach((place) => {
  const data = JSON.parse(place.querySelector("script").textContent);
  const [a, b] = place.querySelectorAll("select");
  const [figure, words, losers] = ["figure", ".words", "tbody"].map((name) => place.querySelector(name));
  const draw = () => {
    const [i, j] = [Number(a.value), Number(b.value)];
    const pair = data.pairs[i < j ? `${i},${j}` : `${j},${i}`];
    const sign = i < j ? 1 : -1;
    figure.replaceChildren();
    losers.replaceChildren();
    losers.closest(".wide").hidden = true;
    const kept = data.clients.map((_, k) => k).filter((k) => data.scores[i][k] !== null && data.scores[j][k] !== null);
    if (!pair || !kept.length) { words.textContent = "These two have no client and seed in common."; return; }
    const all = kept.flatMap((k) => [data.scores[i][k], data.scores[j][k]]);
    let low = Math.min(...all), high = Math.max(...all);
    if (low === high) { low -= 1; high += 1; }
    const pad = 0.04 * (high - low); low -= pad; high += pad;
    const [x0, x1, y0, y1] = [52, 392, 352, 12];
    const px = (v) => x0 + (x1 - x0) * (v - low) / (high - low), py = (v) => y0 + (y1 - y0) * (v - low) / (high - low);
    const svg = make("svg", { viewBox: "0 0 404 400", role: "img", "aria-label": "one point a client" }, figure);
    ticks(low, high).forEach((v) => {
      make("path", { d: `M${px(v)} ${y0}V${y1}M${x0} ${py(v)}H${x1}`, class: "grid" }, svg);
      make("text", { x: px(v), y: y0 + 16, "text-anchor": "middle" }, svg, number(v));
      make("text", { x: x0 - 6, y: py(v) + 4, "text-anchor": "end" }, svg, number(v));
    });
    make("path", { d: `M${px(low)} ${py(low)}L${px(high)} ${py(high)}`, class: "diagonal" }, svg);
    const cut = (name) => (name.length > 34 ? `${name.slice(0, 33)}…` : name);
    make("text", { x: (x0 + x1) / 2, y: y0 + 38, "text-anchor": "middle" }, svg, `${cut(data.rows[j])}, ${data.unit}`);
    make("text", { transform: `translate(14 ${(y0 + y1) / 2}) rotate(-90)`, "text-anchor": "middle" }, svg,
      `${cut(data.rows[i])}, ${data.unit}`);
    kept.forEach((k) => {
      const mark = pair.marks[k];
      const better = mark === "." ? 0 : (mark === "+" ? 1 : -1) * sign;
      const dot = make("circle", { cx: px(data.scores[j][k]), cy: py(data.scores[i][k]), r: better ? 3.2 : 2.4,
        class: `point ${["loses", "even", "gains"][better + 1]}` }, svg);
      make("title", {}, dot, `${data.clients[k][0]}, seed ${data.clients[k][1]}: ${number(data.scores[i][k])} and ${number(data.scores[j][k])}`);
    });
    svg.addEventListener("pointermove", (event) => {
      const point = event.target.closest(".point");
      if (point) show(event, point.querySelector("title").textContent); else tip.hidden = true;
    });
    svg.addEventListener("pointerleave", () => { tip.hidden = true; });
    let [better, worse, equal, gains, loses, chance, n] = pair.shares;
    if (sign < 0) [better, worse, gains, loses] = [worse, better, loses, gains];
    const name = data.rows[i];
    const chances = gains === null ? "No client's own test samples are known, so nothing is said about chance." :
      `Beyond chance (p < 0.05 on the client's own test samples) ${percent(gains)} gain and ${percent(loses)} lose; ` +
      `if the two models were alike, at most ${percent(chance)} each would do so by chance.`;
    words.textContent = `${name} is better for ${percent(better)} of ${n} clients (counted once for each seed), ` +
      `worse for ${percent(worse)}, equal for ${percent(equal)}. ${chances}`;
    const lower = data.unit.startsWith("accuracy") ? 1 : -1; // for a loss, more is worse
    kept.map((k) => [k, lower * (data.scores[i][k] - data.scores[j][k])]).sort((p, q) => p[1] - q[1]).slice(0, 8)
      .filter(([, gain]) => gain < 0).forEach(([k]) => {
        const row = losers.insertRow();
        [data.clients[k][0], data.clients[k][1], number(data.scores[i][k]), number(data.scores[j][k]),
          number(data.scores[i][k] - data.scores[j][k])].forEach((value) => { row.insertCell().textContent = value; });
      });
    losers.closest(".wide").hidden = !losers.rows.length; // nobody loses
  };
  [a, b].forEach((select) => select.addEventListener("change", draw));
  draw();
});

// Paper cannot be opened with a click.
window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
