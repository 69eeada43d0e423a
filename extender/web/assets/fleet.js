"use strict";
// The fleet: cards of nodes, or a map of GPUs if there are too many. A click on the name of a group shows its nodes.

const MOST_CARDS = 100, RUN = 64; // nodes; RUN is the number of nodes under one heading by name
const LEVELS = ["product", "zone", "rack", "clique", "name"];
const NO_DEVICES = ["Install the DRA driver of the GPUs' vendor. It publishes the GPUs of each node as ResourceSlices.",
  "`kubectl get resourceslices` shows what it has published.", "`berth doctor` looks for mistakes in the cluster."];
const LEAST_CARD = 84, COMMON_CARD = 116, VIEW_PADDING = 3; // pixels
const LEAST_CELL = 2, COMMON_CELL = 5, LEAST_COLUMN = 300, COLUMN_GAP = 20; // pixels of the map
const HEAD = 30, TWO_LINES = 44; // pixels of the name of a group
let CELL = LEAST_CELL; // layOut sets larger ones for fewer nodes
const fleet = {
  nodes: new Map(), pending: [], waiting: 0, groups: [], decisions: [], trend: [], large_jobs: [], cursor: "",
};
const map = { places: [], cursor: -1, heads: [], isCards: true };
// The groups that contain the view, as [level, value] or ["name", first, last]; the level of its groups; lit sets.
const view = { path: [], by: "product", sets: {} };

const room = () => $("view").clientHeight - 2 * VIEW_PADDING;
const isNarrow = () => matchMedia("(max-width: 60rem)").matches;

// -- groups -------------------------------------------------------------------------------------------------------

const valueOf = (node, level) => node[level] || `no ${level}`;
const between = (name, first, last) => natural(first, name) <= 0 && natural(name, last) <= 0;
const isIn = ([level, value, last]) => (node) =>
  level === "name" ? between(node.name, value, last) : valueOf(node, level) === value;

let sorted = [], isSorted = false;
function nodesInView() {
  if (!isSorted) sorted = [...fleet.nodes.keys()].sort(natural);
  isSorted = true;
  return view.path.reduce((nodes, step) => nodes.filter(isIn(step)), sorted.map((name) => fleet.nodes.get(name)));
}

// [{step, title, nodes}] in order of their titles.
function grouped(nodes, level) {
  if (level === "name") {
    const runs = [];
    for (let i = 0; i < nodes.length; i += RUN) {
      const run = nodes.slice(i, i + RUN), first = run[0].name, last = run[run.length - 1].name;
      runs.push({ step: ["name", first, last], title: first === last ? first : `${first} … ${last}`, nodes: run });
    }
    return runs;
  }
  const groups = new Map();
  for (const node of nodes) {
    const value = valueOf(node, level);
    if (!groups.has(value)) groups.set(value, { step: [level, value], title: value, nodes: [] });
    groups.get(value).nodes.push(node);
  }
  return [...groups.values()].sort((a, b) => natural(a.title, b.title));
}

// The level after `by` that divides these nodes further.
function nextLevel(nodes, by) {
  const later = LEVELS.slice(0, -1).filter((level) => level !== by && !view.path.some(([used]) => used === level));
  return later.find((level) => new Set(nodes.map((node) => valueOf(node, level))).size > 1) || "name";
}

function enter(step) {
  view.path = [...view.path, step];
  view.by = nextLevel(nodesInView(), view.by);
  showView();
}

function leave(depth) {
  view.by = view.path[depth]?.[0] || view.by;
  view.path = view.path.slice(0, depth);
  showView();
}

const countOf = (nodes, letter) =>
  nodes.reduce((sum, node) => sum + [...node.gpus].filter((gpu) => gpu === letter).length, 0);
const gpusOf = (nodes) => nodes.reduce((sum, node) => sum + node.gpus.length, 0);

// Such as '13 of 24 free, 2 closed'.
function freeAndClosed(nodes) {
  const closed = countOf(nodes, "c");
  return `${shown(countOf(nodes, "f"))} of ${shown(gpusOf(nodes))} free${closed ? `, ${shown(closed)} closed` : ""}`;
}

// Such as '13 of 24 free · set of 2': how many GPUs are free, and the largest free set that NVLink joins.
function inShort(nodes) {
  const largest = Math.max(0, ...nodes.map((node) => node.largest || 0));
  return `${freeAndClosed(nodes)}${largest ? ` · set of ${largest}` : ""}`;
}

function describe(node) {
  const counts = {};
  for (const letter of node.gpus) { const state = STATES[stateOf(letter)]; counts[state] = (counts[state] || 0) + 1; }
  const states = Object.entries(counts).map(([state, count]) => `${count} ${state}`).join(", ");
  return `${node.name} · ${node.product} · ${states || "no GPUs"}`;
}

function showPath() {
  const step = (text, depth) => el("button", { type: "button", onclick: () => leave(depth) }, soft(text));
  const title = ([level, value, last]) => (level === "name" && last !== value ? `${value} … ${last}` : value);
  const steps = view.path.map((one, i) => (i + 1 < view.path.length
    ? step(title(one), i + 1) : el("strong", {}, soft(title(one)))));
  const all = view.path.length ? [step("all nodes", 0), ...steps] : [];
  $("path").replaceChildren(...all.flatMap((one, i) => (i ? [" / ", one] : [one])));
  $("grouping").value = view.by;
}

function showView() {
  map.cursor = -1;
  $("view").scrollTop = 0;
  showFleet();
  if (!$("detail").open) history.replaceState(null, "", viewHash());
}

function showFleet() {
  const nodes = nodesInView();
  map.isCards = nodes.length <= MOST_CARDS;
  $("cards").hidden = !map.isCards;
  $("plot").hidden = map.isCards;
  if (map.isCards) $("here").textContent = "";
  showPath();
  if (map.isCards) showCards(nodes); else paint();
}

// -- cards --------------------------------------------------------------------------------------------------------

function nodeCard(node) {
  const lit = view.sets[node.name];
  const free = node.gpus.length ? freeAndClosed([node]) : "no GPUs";
  const made = el("button", { type: "button", className: lit ? "node lit" : "node", title: describe(node) },
    nodeGraph(node, { lit: lit || [] }), soft(node.name), el("small", { textContent: free }));
  made.dataset.node = node.name;
  return made;
}

function noNode() {
  const hidden = fleet.nodes.size;
  if (!hidden) return [quiet("No node has devices yet. What to do next:"), bullets(NO_DEVICES)];
  return [quiet(`No node is in this part of the fleet. "all nodes" shows ${counted(hidden, "node")}.`)];
}

function showCards(nodes) {
  const groups = grouped(nodes, view.by), only = groups.length === 1;
  const sections = groups.map(({ step, title, nodes: own }) => {
    const head = only ? el("strong", {}, soft(title))
      : el("button", { type: "button", className: "enter", onclick: () => enter(step) }, soft(title));
    const section = el("section", { className: "group" },
      el("h3", { title: `${title}: ${inShort(own)}` }, head, " ", el("small", { textContent: inShort(own) })),
      el("div", { className: "nodes" }, ...own.map(nodeCard)));
    section.style.setProperty("--nodes", own.length);
    return section;
  });
  const focused = document.activeElement?.dataset?.node;
  $("cards").replaceChildren(...sections.length ? sections : noNode());
  map.places = [...$("cards").querySelectorAll(".node")].map((card) => ({ name: card.dataset.node, card }));
  if (focused !== undefined) map.places.find(({ name }) => name === focused)?.card.focus();
  fit();
}

// The largest cards with which all nodes fit on the screen; on a narrow screen the page scrolls instead.
let fitted = "";
function fit() {
  const cards = $("cards"), height = room();
  const key = [height, $("view").clientWidth, map.places.length, viewHash()].join();
  if (key === fitted) return;
  fitted = key;
  if (isNarrow()) { cards.style.removeProperty("--node"); return; }
  for (let width = 300; width >= LEAST_CARD; width -= 6) {
    cards.style.setProperty("--node", `${width}px`);
    if (cards.scrollHeight <= height) return;
  }
  cards.style.setProperty("--node", `${COMMON_CARD}px`); // they do not fit, so their part of the page scrolls
}

// Shows sets of GPUs by node; {} shows none.
function light(sets) {
  view.sets = sets;
  if (!map.isCards) { paint(); return; }
  for (const { name, card } of map.places) {
    const lit = sets[name], node = fleet.nodes.get(name);
    if (!node || (!lit && !card.classList.contains("lit"))) continue;
    card.classList.toggle("lit", Boolean(lit));
    card.firstChild.replaceWith(nodeGraph(node, { lit: lit || [] }));
  }
}

// -- the map ------------------------------------------------------------------------------------------------------

const colours = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of [...Object.keys(STATES), "quiet", "accent", "sheet"]) {
    colours[name] = style.getPropertyValue(`--${name}`).trim();
  }
}

// The largest cells, and the fewest columns of groups, with which the whole map fits on the screen. If it never fits,
// or on a narrow screen, it scrolls instead.
function layOut() {
  const width = $("plot").clientWidth || 600, groups = grouped(nodesInView(), view.by);
  const most = Math.max(1, Math.floor(width / LEAST_COLUMN)), tallest = isNarrow() ? 0 : room();
  for (CELL = 12; CELL >= LEAST_CELL; CELL--) {
    for (let columns = 1; columns <= Math.min(most, groups.length); columns++) {
      const height = place(groups, width, columns);
      if (height <= tallest) return [width, height];
    }
  }
  CELL = isNarrow() ? LEAST_CELL + 1 : COMMON_CELL;
  return [width, place(groups, width, groups.length > 8 ? most : 1)];
}

// Places the groups in rows of so many columns. Returns the height of the map.
function place(groups, width, columns) {
  const own = (width + COLUMN_GAP) / columns - COLUMN_GAP;
  const head = matchMedia("(max-width: 40rem)").matches ? TWO_LINES : HEAD;
  map.places = []; map.heads = [];
  let y = 0, tallest = 0;
  groups.forEach(({ step, title, nodes }, i) => {
    const column = i % columns;
    if (!column) { y += tallest; tallest = 0; }
    const x = Math.round(column * (own + COLUMN_GAP));
    map.heads.push({ title, nodes, x, y, width: own, step });
    tallest = Math.max(tallest, head + placeGroup(nodes, x, y + head, own) + 8);
  });
  return Math.max(y + tallest, 60);
}

function placeGroup(nodes, left, top, width) {
  const step = CELL + (CELL > 3 ? 1 : 0), gap = Math.max(2, Math.round(CELL * .8));
  let x = 0, y = 0, tallest = 0;
  for (const { name, gpus } of nodes) {
    const w = Math.min(Math.max(gpus.length, 1), 4) * step, h = Math.ceil(Math.max(gpus.length, 1) / 4) * step;
    if (x + w > width) { x = 0; y += tallest + gap; tallest = 0; }
    map.places.push({ name, x: left + x, y: top + y, w, h, step });
    x += w + gap; tallest = Math.max(tallest, h);
  }
  return y + tallest;
}

function paint() {
  const canvas = $("map"), [width, height] = layOut(), scale = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = width * scale; canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  for (const place of map.places) paintNode(pen, place);
  for (const place of map.places) if (view.sets[place.name]) frame(pen, place);
  if (map.places[map.cursor]) frame(pen, map.places[map.cursor]);
  $("heads").replaceChildren(...map.heads.map(({ title, nodes, x, y, width: room, step }) => {
    const text = inShort(nodes), about = `${title}: ${text} · ${counted(nodes.length, "node")}`;
    const name = el("button", { type: "button", className: "enter", onclick: () => enter(step) }, title);
    const head = el("h3", { title: about }, name, " ", el("small", { textContent: text }));
    Object.assign(head.style, { left: `${x}px`, top: `${y}px`, width: `${room}px` });
    return head;
  }));
}

function paintNode(pen, place) {
  const gpus = fleet.nodes.get(place.name).gpus;
  if (!gpus.length) { pen.strokeStyle = colours.quiet; pen.strokeRect(place.x + .5, place.y + .5, CELL - 1, CELL - 1); }
  for (let i = 0; i < gpus.length; i++) {
    const x = place.x + (i % 4) * place.step, y = place.y + Math.floor(i / 4) * place.step, letter = gpus[i];
    pen.fillStyle = colours[stateOf(letter)];
    if (stateOf(letter) === "s") {
      pen.fillStyle = colours.f; pen.fillRect(x, y, CELL, CELL);
      pen.fillStyle = colours.u; pen.fillRect(x, y + CELL * (1 - letter / 10), CELL, CELL * letter / 10);
    } else pen.fillRect(x, y, CELL, CELL);
    if (letter === "h" || letter === "d") { // a hole: their greys are that of a free one
      pen.fillStyle = colours.sheet;
      pen.fillRect(x + CELL / 3, y + CELL / 3, CELL / 3, CELL / (letter === "h" ? 3 : 1.5));
    }
    if (letter === "c") {
      pen.fillStyle = colours.sheet;
      pen.fillRect(x + CELL / 4, y + CELL / 2.5, CELL / 2, CELL / 5);
    }
    if (letter === "x") {
      pen.strokeStyle = colours.sheet;
      pen.beginPath(); pen.moveTo(x + 1, y + 1); pen.lineTo(x + CELL - 1, y + CELL - 1); pen.stroke();
    }
  }
}

function frame(pen, place) {
  pen.strokeStyle = colours.accent; pen.lineWidth = 2;
  pen.strokeRect(place.x - 2, place.y - 2, place.w + 3, place.h + 3);
  pen.lineWidth = 1;
}

// -- moving -------------------------------------------------------------------------------------------------------

function moveTo(position) {
  map.cursor = Math.max(0, Math.min(position, map.places.length - 1));
  const place = map.places[map.cursor], node = fleet.nodes.get(place?.name);
  if (map.isCards) place?.card.focus(); else paint();
  if (node && !map.isCards) $("here").textContent = describe(node);
}

function box(place) {
  if (!place.card) return place;
  const { x, y } = place.card.getBoundingClientRect();
  return { x, y };
}

function inRow(step) {
  const from = box(map.places[Math.max(map.cursor, 0)]);
  let best = map.cursor, off = Infinity;
  map.places.forEach((place, i) => {
    const { x, y } = box(place), down = (y - from.y) * step;
    const distance = down > 0 ? down * 1000 + Math.abs(x - from.x) : Infinity;
    if (distance < off) { off = distance; best = i; }
  });
  return best;
}

function at(event) {
  const edge = $("map").getBoundingClientRect(), x = event.clientX - edge.left, y = event.clientY - edge.top;
  return map.places.findIndex((p) => x >= p.x - 3 && x <= p.x + p.w + 3 && y >= p.y - 3 && y <= p.y + p.h + 3);
}

$("view").onkeydown = (event) => {
  const onCard = map.places.findIndex(({ card }) => card && card === document.activeElement);
  if (onCard >= 0) map.cursor = onCard;
  else if (document.activeElement !== $("map")) return;
  const to = {
    ArrowRight: () => map.cursor + 1,
    ArrowLeft: () => map.cursor - 1,
    ArrowDown: () => inRow(1),
    ArrowUp: () => inRow(-1),
    Home: () => 0,
    End: () => map.places.length - 1,
  }[event.key];
  if (to) { event.preventDefault(); moveTo(to()); }
  if (event.key === "Enter" && !map.isCards && map.places[map.cursor]) go("node", map.places[map.cursor].name);
  if (event.key === "Escape" && view.path.length) leave(view.path.length - 1);
};
$("cards").onclick = (event) => {
  const card = event.target.closest(".node");
  if (card) go("node", card.dataset.node);
};
$("map").onclick = (event) => { const i = at(event); if (i >= 0) { moveTo(i); go("node", map.places[i].name); } };
$("map").onmousemove = (event) => {
  const i = at(event);
  if (i >= 0) $("here").textContent = describe(fleet.nodes.get(map.places[i].name));
};
$("grouping").onchange = () => { view.by = $("grouping").value; showView(); };
