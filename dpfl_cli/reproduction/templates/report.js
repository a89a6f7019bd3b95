// Tables that sort and filter, and a plot of what the page embeds. Without it all is still there.
"use strict";

const make = (tag, attributes = {}, ...children) => {
  const node = ["svg", "path", "text", "line", "circle"].includes(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
};

// --- tables ---------------------------------------------------------------------------------

// "105.0 ± 9.1" sorts as 105; words sort as words, after the numbers.
const sortKey = (row, column) => {
  const cell = row.cells[column];
  const text = cell ? cell.textContent.trim() : "";
  const number = parseFloat(text.replace("−", "-"));
  return [Number.isNaN(number) ? Infinity : number, text];
};

const sortable = (table) => {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.tabIndex = 0;
    const sort = () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows].map((row) => [sortKey(row, column), row]);
      rows.sort(([[a, x]], [[b, y]]) => (a === b ? x.localeCompare(y) : a - b));
      if (down) rows.reverse();
      table.tBodies[0].append(...rows.map(([, row]) => row));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
};

const filterable = (table, scroller) => {
  const field = make("input", { class: "filter", type: "search", placeholder: "filter …",
    "aria-label": "filter the table" });
  const said = make("span", { class: "filtered" });
  const rows = [...table.tBodies[0].rows];
  const filter = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    rows.forEach((row) => {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    });
    said.textContent = words.length ? `${rows.filter((row) => !row.hidden).length} of ${rows.length}` : "";
  };
  field.addEventListener("input", filter);
  const follow = () => {
    const word = decodeURIComponent(location.hash.slice(1));
    if (word && !document.getElementById(word)) { field.value = word; filter(); }
  };
  window.addEventListener("hashchange", follow);
  scroller.before(field, said);
  follow();
};

document.querySelectorAll("table").forEach((table) => {
  let scroller = table.closest(".scroll");
  if (!scroller) {
    scroller = make("div", { class: "scroll" });
    table.replaceWith(scroller);
    scroller.append(table);
  }
  if (table.closest(".page")) {
    table.classList.add("sortable");
    table.querySelectorAll("td").forEach((cell) => cell.classList.toggle("long", cell.textContent.length > 40));
  }
  if (table.matches(".sortable") && table.tBodies[0]) sortable(table);
  if (table.matches(".filterable") && table.tBodies[0].rows.length > 5) filterable(table, scroller);
});

window.addEventListener("beforeprint", () =>
  document.querySelectorAll("details").forEach((one) => { one.open = true; }));

// --- the plot -------------------------------------------------------------------------------

const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9", "#000000"];
const W = 760, H = 400, LEFT = 70, RIGHT = 12, TOP = 10, BOTTOM = 44;

const plot = (root, data) => {
  const { labels, rows, titles, log } = data;
  const names = [...labels, "measure", "round"];
  const points = rows.map((row) => ({
    at: Object.fromEntries(names.map((name, i) => [name, row[i]])),
    mean: row[names.length], std: row[names.length + 1] ?? 0, paper: row[names.length + 3],
  }));
  const title = (word) => titles[String(word)] ?? String(word);
  const values = (name, among) => [...new Set(among.map((p) => p.at[name]))]
    .filter((v) => v !== null && v !== "");
  const measures = values("measure", points);
  const choices = make("div", { class: "choices" });
  const drawing = make("div");
  root.append(choices, drawing);

  const choose = (words, options, texts = options.map(title)) => {
    const field = make("select", {}, ...options.map((value, i) => make("option", { value: i }, texts[i])));
    choices.append(make("label", {}, `${words} `, field));
    return { field, get: () => options[Number(field.value)] };
  };

  const measure = choose("metric", measures);
  const first = measures.findIndex((m) => points.some((p) => p.at.measure === m && p.at.round !== null));
  measure.field.value = Math.max(first, 0);

  const build = () => {
    while (choices.children.length > 1) choices.lastChild.remove();
    const mine = points.filter((p) => p.at.measure === measure.get());
    const varied = names.filter((name) => name !== "measure" && values(name, mine).length > 1);
    const numeric = varied.filter((name) => values(name, mine).every((v) => typeof v === "number"));
    if (!varied.length) {
      drawing.replaceChildren(make("p", { class: "faint" }, "Nothing varies here; the tables say it all."));
      return;
    }
    const x = choose("against", [...numeric, ...varied.filter((name) => !numeric.includes(name))]);
    x.field.value = Math.max(numeric.indexOf("round"), 0);
    const within = (along) => mine.filter((p) => (numeric.includes(along) ? typeof p.at[along] === "number"
      : p.at[along] !== null));
    const line = (p, along) => names.filter((name) => !["measure", along].includes(name)
      && values(name, mine).length > 1).map((name) =>
      typeof p.at[name] === "number" ? `${title(name)} ${p.at[name]}` : title(p.at[name] ?? "–")).join(", ");
    const more = [];
    const refresh = () => {
      const along = x.get();
      more.forEach((one) => one.field.parentNode.remove());
      more.length = 0;
      let kept = within(along);
      for (const name of names.filter((one) => !["measure", along].includes(one))) {
        const found = values(name, mine);
        if (found.length < 2) continue;
        const one = choose(title(name), [null, ...found], ["all", ...found.map(title)]);
        if (new Set(kept.map((p) => line(p, along))).size > COLOURS.length) {  // too many lines
          one.field.value = 1;
          kept = kept.filter((p) => p.at[name] === found[0]);
        }
        more.push({ ...one, name });
        one.field.addEventListener("change", draw);
      }
      const lines = [...new Set(mine.map((p) => line(p, along)))];
      if (lines.length > 1) {
        const one = choose("relative to", [null, ...lines], ["nothing", ...lines]);
        more.push({ ...one, name: null });
        one.field.addEventListener("change", draw);
      }
      const scale = choose("y axis", ["linear", "log"]);
      scale.field.value = Number(log.includes(measure.get()));  // as in the figure
      more.push({ ...scale, name: "scale" });
      scale.field.addEventListener("change", draw);
      draw();
    };
    const draw = () => {
      const along = x.get();
      const scale = more.find((one) => one.name === "scale").get();
      const base = more.find((one) => one.name === null)?.get() ?? null;
      let kept = within(along);
      const reference = new Map(kept.filter((p) => line(p, along) === base).map((p) => [p.at[along], p]));
      for (const one of more) {
        if (one.name && one.name !== "scale" && one.get() !== null) kept = kept.filter((p) => p.at[one.name] === one.get());
      }
      const groups = new Map(), words = numeric.includes(along) ? null : values(along, kept);
      for (const p of kept) {
        const by = base === null ? { mean: 1, paper: 1 } : reference.get(p.at[along]);
        if (!by?.mean) continue;
        const key = line(p, along);
        if (!groups.has(key)) groups.set(key, []);
        const paper = p.paper === null || !by.paper ? null : p.paper / by.paper;
        const place = words === null ? p.at[along] : words.indexOf(p.at[along]);
        groups.get(key).push({ x: place, y: p.mean / by.mean, e: p.std / Math.abs(by.mean), paper });
      }
      groups.forEach((list) => list.sort((a, b) => a.x - b.x));
      drawing.replaceChildren(...chart(groups, {
        x: title(along), y: title(measure.get()) + (base === null ? "" : ", relative"), log: scale === "log",
        names: words && words.map(title),
      }));
    };
    x.field.addEventListener("change", refresh);
    refresh();
  };
  measure.field.addEventListener("change", build);
  build();
};

const axis = (low, high, log) => {
  if (log) { low = Math.log10(low); high = Math.log10(high); }
  if (!(high > low)) { low -= 0.5; high += 0.5; }
  let step = 10 ** Math.floor(Math.log10((high - low) / 4));
  if ((high - low) / step > 10) step *= 5; else if ((high - low) / step > 5) step *= 2;
  const ticks = [];
  for (let t = Math.ceil(low / step) * step; t <= high + step / 1e6; t += step) ticks.push(t);
  return {
    place: (value) => ((log ? Math.log10(value) : value) - low) / (high - low),
    ticks: ticks.map((t) => [(t - low) / (high - low), Number((log ? 10 ** t : t).toPrecision(3))]),
  };
};

const chart = (groups, words) => {
  const shown = [...groups].slice(0, COLOURS.length);
  const all = shown.flatMap(([, list]) => list).filter((p) => !words.log || p.y > 0);
  if (!all.length) return [make("p", { class: "faint" }, "No numbers with these choices.")];
  const xs = all.map((p) => p.x);
  const spread = all.flatMap((p) => [p.y - p.e, p.y + p.e, p.paper ?? p.y]).filter((y) => !words.log || y > 0);
  const wide = Math.min(...xs) > 0 && Math.max(...xs) / Math.min(...xs) > 50;
  const room = (W - LEFT - RIGHT) / (words.names ?? [0]).length;  // of a word below the axis
  const ax = words.names === null ? axis(Math.min(...xs), Math.max(...xs), wide) : {
    place: (value) => (value + 0.5) / words.names.length,
    ticks: words.names.map((name, i) => [(i + 0.5) / words.names.length,
      name.length > room / 7 ? `${name.slice(0, room / 7 - 1)}…` : name]),
  };
  const ay = axis(Math.min(...spread), Math.max(...spread), words.log);
  const py = (y) => H - BOTTOM - ay.place(y) * (H - TOP - BOTTOM);
  const svg = make("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${words.y} against ${words.x}`, "font-size": 13 });
  const text = (x, y, content, more = {}) => svg.append(make("text", { x, y, fill: "#333", ...more }, content));
  for (const [share, value] of ay.ticks) {
    const y = H - BOTTOM - share * (H - TOP - BOTTOM);
    svg.append(make("line", { x1: LEFT, x2: W - RIGHT, y1: y, y2: y, stroke: "#ddd" }));
    text(LEFT - 6, y + 4, value, { "text-anchor": "end" });
  }
  for (const [share, value] of ax.ticks) {
    text(LEFT + share * (W - LEFT - RIGHT), H - BOTTOM + 18, value, { "text-anchor": "middle" });
  }
  text((LEFT + W) / 2, H - 6, words.x, { "text-anchor": "middle" });
  text(14, (H - BOTTOM) / 2, words.y, { "text-anchor": "middle", transform: `rotate(-90 14 ${(H - BOTTOM) / 2})` });
  const key = make("div", { class: "key" });
  shown.forEach(([name, whole], number) => {
    const list = whole.filter((p) => !words.log || p.y > 0);
    const stroke = COLOURS[number];
    const aside = words.names === null ? 0 : (number - (shown.length - 1) / 2) * Math.min(16, room / (shown.length + 1));
    const px = (x) => LEFT + aside + ax.place(x) * (W - LEFT - RIGHT);
    const low = (p) => (words.log && p.y - p.e <= 0 ? p.y : p.y - p.e);
    const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
    const band = [...list.map((p) => [px(p.x), py(p.y + p.e)]), ...[...list].reverse().map((p) => [px(p.x), py(low(p))])];
    if (words.names === null) {
      svg.append(make("path", { d: `${path(band)}Z`, fill: stroke, opacity: 0.15 }));
      svg.append(make("path", { d: path(list.map((p) => [px(p.x), py(p.y)])), fill: "none", stroke, "stroke-width": 2 }));
    } else list.forEach((p) => svg.append(make("line", { x1: px(p.x), x2: px(p.x), y1: py(p.y + p.e), y2: py(low(p)), stroke, "stroke-width": 2 })));
    if (list.length <= 16) list.forEach((p) => svg.append(make("circle", { cx: px(p.x), cy: py(p.y), r: 3, fill: stroke })));
    for (const p of list) {  // the paper's number, a diamond
      if (p.paper === null || (words.log && p.paper <= 0)) continue;
      const [x, y] = [px(p.x), py(p.paper)];
      svg.append(make("path", { d: `M${x - 6} ${y}L${x} ${y - 6}L${x + 6} ${y}L${x} ${y + 6}Z`, fill: "#fff", stroke, "stroke-width": 2 }));
    }
    key.append(make("span", {}, make("i", { style: `border-color:${stroke}` }), name || words.y));
  });
  const left = groups.size - shown.length;
  const said = left > 0 ? [make("p", { class: "faint" }, `${left} more lines are left out: choose.`)] : [];
  const papers = all.some((p) => p.paper !== null) ? " Diamonds are the paper's numbers, for its full setup." : "";
  return [svg, key, ...said, make("p", { class: "faint" }, `${words.names === null ? "Lines are means over seeds; bands" : "Dots are means over seeds; bars"} are one standard deviation.${papers}`)];
};

const embedded = document.getElementById("points");
if (embedded) plot(document.getElementById("plot"), JSON.parse(embedded.textContent));
