"use strict";
// Draws the GPUs of a node with their links, and a trend. GPUs are on a circle, the switch is in the middle.
// Without links they are in rows.

const STATES = { f: "free", c: "closed", u: "allocated", h: "held", s: "shared", d: "drifting", x: "unhealthy" };
const stateOf = (letter) => (letter >= "1" && letter <= "9" ? "s" : letter);

function draw(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Corners of the states that are neither a circle nor a square, for a radius of 1.
const CORNERS = {
  h: [[0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]],
  s: [[-1.15, -.85], [1.15, -.85], [.6, .9], [-.6, .9]],
  d: [[0, -1.2], [1.2, .9], [-1.2, .9]],
};

// A GPU. Each state has a shape, so that nobody needs the colours: free is a circle, allocated a square.
function dot(kind, [x, y], radius, title) {
  const about = draw("title", {}, title), state = kind.split(" ")[1];
  if (CORNERS[state]) {
    const points = CORNERS[state].map(([dx, dy]) => `${x + radius * dx},${y + radius * dy}`).join(" ");
    return draw("polygon", { points, class: kind }, about);
  }
  if (state !== "u") return draw("circle", { cx: x, cy: y, r: radius, class: kind }, about);
  const side = 1.8 * radius, corner = { x: x - side / 2, y: y - side / 2 };
  return draw("rect", { ...corner, width: side, height: side, rx: radius / 4, class: kind }, about);
}

// The bar of a closed GPU, as of a no-entry sign.
const noEntry = (x, y, radius) => draw("path", { d: `M${x - radius / 2} ${y}h${radius}`, class: "cross" });

// The legend: what a graph shows besides the states.
function signs() {
  const at = (x, kind) => dot(`dot ${kind}`, [x, 12], 7, "");
  const wire = (x1, x2) => draw("line", { x1, y1: 12, x2, y2: 12, class: "wire", "stroke-width": 1 });
  const hub = () => draw("rect", { x: 24, y: 5, width: 14, height: 14, rx: 4, class: "hub" });
  const rows = [
    [[at(30, "f")], "a free GPU"],
    [[at(30, "c"), noEntry(30, 12, 7)], "closed: nothing uses the GPU, but it is tainted, or its node takes no pods"],
    [[at(30, "u")], "an allocated GPU"],
    [[wire(9, 51), at(9, "f"), at(51, "f")], "links between two GPUs; more links draw a wider line"],
    [[at(9, "f"), at(51, "f")], "no link works between these two"],
    [[wire(9, 30), hub(), at(9, "f")], "links into a switch, which joins all GPUs on it"],
    [[at(30, "h")], "held: Berth has promised the GPU to a pod that is not bound yet"],
    [[at(30, "s")], "shared: pods have parts of the memory"],
    [[at(30, "d")], "drifting: something uses the GPU without a claim"],
    [[at(30, "x"), draw("path", { d: "M26 8l8 8m0-8l-8 8", class: "cross" })], "unhealthy"],
  ];
  const sign = (drawn) => draw("svg", { viewBox: "0 0 60 24", "aria-hidden": "true" }, ...drawn);
  return rows.map(([drawn, text]) => el("p", {}, sign(drawn), text));
}

function places(count, isLinked) {
  if (count === 1) return [[50, 50]];
  if (isLinked) {
    return Array.from({ length: count }, (_, i) => {
      const angle = (2 * Math.PI * i) / count - Math.PI / 2 + Math.PI / count;
      return [50 + 38 * Math.cos(angle), 50 + 38 * Math.sin(angle)];
    });
  }
  const columns = count <= 4 ? 2 : 4, rows = Math.ceil(count / columns), step = 80 / Math.max(columns, rows);
  return Array.from({ length: count }, (_, i) => [
    50 + step * ((i % columns) - (columns - 1) / 2), 50 + step * (Math.floor(i / columns) - (rows - 1) / 2),
  ]);
}

// `node` has gpus (letters), and links and switch (base-36 digits) as in its row. `lit` are indexes of GPUs to show
// as one set. `label` is the text for screen readers.
function nodeGraph(node, { lit = [], numbered = false, rate = 0, label = "" } = {}) {
  const link = node.fabric?.link || node.link || "link";
  const count = node.gpus.length, set = new Set(lit), links = node.links || "", hub = node.switch || "";
  const at = places(count, links || hub), radius = count > 8 ? 6 : 8.5, wires = [], told = [];
  const svg = draw("svg", { viewBox: "0 0 100 100", role: "img", class: set.size ? "graph chosen" : "graph" });
  const wire = (from, to, number, isLit, about) => {
    const ends = { x1: from[0], y1: from[1], x2: to[0], y2: to[1] };
    const width = .6 + Math.min(number, 6) / 4;
    const line = draw("line", { ...ends, class: isLit ? "wire lit" : "wire", "stroke-width": width });
    const speed = rate ? `, ${gbps(number * rate)}` : "";
    told.push(`${about}: ${counted(number, link)}${speed}`);
    line.append(draw("title", {}, told[told.length - 1]));
    wires.push(line);
  };
  let digit = 0;
  for (let i = 0; i < count; i++) {
    for (let j = i + 1; j < count; j++) {
      const number = parseInt(links[digit++] || "0", 36);
      if (number) wire(at[i], at[j], number, set.has(i) && set.has(j), `${i} to ${j}`);
    }
    const number = parseInt(hub[i] || "0", 36);
    if (number) wire(at[i], [50, 50], number, set.has(i) && set.size > 1, `${i} to the switch`);
  }
  wires.sort((a, b) => a.classList.contains("lit") - b.classList.contains("lit"));
  svg.append(...wires);
  if (hub) svg.append(draw("rect", { x: 42, y: 42, width: 16, height: 16, rx: 4, class: "hub" }));
  for (let i = 0; i < count; i++) {
    const [cx, cy] = at[i], state = stateOf(node.gpus[i]), kind = `dot ${state}${set.has(i) ? " lit" : ""}`;
    svg.append(dot(kind, at[i], radius, `GPU ${i}: ${STATES[state]}`));
    if (state === "c") svg.append(noEntry(cx, numbered ? cy + 5.5 : cy, radius)); // below the number
    if (state === "x") svg.append(draw("path", { d: `M${cx - 4} ${cy - 4}l8 8m0-8l-8 8`, class: "cross" }));
    if (numbered) svg.append(draw("text", { x: cx, y: cy + 3, "text-anchor": "middle" }, String(i)));
  }
  const spoken = told.length ? `${link}s: ${told.join("; ")}` : `No ${link}s between these GPUs`;
  svg.setAttribute("aria-label", label || spoken);
  return svg;
}

// A node of a comparison: what others had is allocated, the chosen set is lit.
function setGraph(sets, which) {
  const chosen = sets[which].gpus, busy = new Set(sets.busy);
  const gpus = sets.names.map((_, i) => (busy.has(i) ? "u" : "f")).join("");
  const names = chosen.map((i) => sets.names[i]).join(", ");
  const node = { gpus, links: sets.links, switch: sets.switch, link: sets.link };
  return nodeGraph(node, { lit: chosen, label: names || "no GPUs" });
}

// How a set is joined: 'NVLink', 'no xGMI link ring'.
const joinedBy = (sets, which) => (sets[which].is_joined ? sets.link : sets.link ? `no ${sets.link} ring` : "no links");

// `points` are at least two [milliseconds, value], the oldest first.
function trendLine(points, about) {
  const svg = draw("svg", { viewBox: "0 0 100 30", preserveAspectRatio: "none", role: "img", class: "trend" });
  svg.setAttribute("aria-label", about);
  const first = points[0][0], span = Math.max(points[points.length - 1][0] - first, 1);
  const values = points.map(([, value]) => value), least = Math.min(...values), most = Math.max(...values);
  const x = (at) => (100 * (at - first)) / span, y = (value) => 26 - (22 * (value - least)) / Math.max(most - least, 1);
  let path = `M0 ${y(values[0])}`;
  for (const [at, value] of points) path += `H${x(at).toFixed(2)}V${y(value).toFixed(2)}`;
  svg.append(draw("path", { d: `${path}V30H0Z`, class: "area" }), draw("path", { d: path, class: "line" }));
  svg.append(draw("title", {}, about));
  return svg;
}
