"use strict";
// The page: the fleet as a map of GPUs, waiting pods, decisions; live by server-sent events. Names come from the
// cluster and are only ever set as text.

const STATES = { f: "free", u: "allocated", h: "held", s: "shared", d: "drifting", x: "unhealthy" };
const GAP = 1, HEAD = 26; // pixels
let CELL = 7, NODE_GAP = 6; // larger where there are few nodes
const $ = (id) => document.getElementById(id);
const fleet = { nodes: new Map(), pending: [], waiting: 0, decisions: [] };
const map = { places: [], cursor: -1, heads: [] };
let token = sessionStorage.getItem("berth-token") || "";

const stateOf = (letter) => (letter >= "1" && letter <= "9" ? "s" : letter);
const size = (bytes) => (bytes ? `${(bytes / 2 ** 30).toFixed(bytes < 2 ** 33 ? 1 : 0)} GiB` : "–");

function el(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

async function ask(path) {
  const reply = await fetch(path, token ? { headers: { Authorization: `Bearer ${token}` } } : {});
  if (reply.status === 401) { $("token").hidden = false; throw new Error("a token is needed"); }
  const answer = await reply.json();
  if (!reply.ok) throw new Error(answer.error || reply.statusText);
  return answer;
}

// -- the map ----------------------------------------------------------------------------------------------------

const colours = {};
function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const state of Object.keys(STATES)) colours[state] = style.getPropertyValue(`--${state}`).trim();
  for (const name of ["ink", "quiet", "accent", "sheet"]) colours[name] = style.getPropertyValue(`--${name}`).trim();
}

function grouped() {
  const by = $("grouping").value, groups = new Map();
  for (const node of fleet.nodes.values()) {
    const name = node[by] || `no ${by}`;
    if (!groups.has(name)) groups.set(name, []);
    groups.get(name).push(node);
  }
  return [...groups].sort(([a], [b]) => (a < b ? -1 : 1));
}

function layOut() {
  const width = $("map").clientWidth || 600;
  CELL = fleet.nodes.size < 300 ? 13 : fleet.nodes.size < 1500 ? 9 : 6;
  NODE_GAP = Math.round(CELL * .8);
  map.places = []; map.heads = [];
  let y = 8;
  for (const [name, nodes] of grouped()) {
    const free = nodes.reduce((sum, node) => sum + [...node.gpus].filter((g) => g === "f").length, 0);
    map.heads.push([name, `${nodes.length} nodes, ${free} GPUs free`, y + 14]);
    y += HEAD;
    let x = 10, tallest = 0;
    for (const node of nodes) {
      const columns = Math.min(Math.max(node.gpus.length, 1), 4), rows = Math.ceil(Math.max(node.gpus.length, 1) / 4);
      const w = columns * (CELL + GAP), h = rows * (CELL + GAP);
      if (x + w > width - 8) { x = 10; y += tallest + NODE_GAP; tallest = 0; }
      map.places.push({ name: node.name, x, y, w, h });
      x += w + NODE_GAP; tallest = Math.max(tallest, h);
    }
    y += tallest + NODE_GAP + 6;
  }
  return [width, Math.max(y, 60)];
}

function draw() {
  const canvas = $("map"), [width, height] = layOut(), scale = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  canvas.width = width * scale; canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.font = "600 13px system-ui, sans-serif";
  for (const [name, about, y] of map.heads) {
    pen.fillStyle = colours.ink; pen.fillText(name, 10, y);
    const wide = pen.measureText(name).width;
    pen.fillStyle = colours.quiet; pen.font = "13px system-ui, sans-serif";
    if (22 + wide + pen.measureText(about).width < width - 8) pen.fillText(about, 22 + wide, y);
    pen.font = "600 13px system-ui, sans-serif";
  }
  map.places.forEach((place) => drawNode(pen, place));
  drawCursor(pen);
}

function drawNode(pen, place) {
  const gpus = fleet.nodes.get(place.name).gpus;
  if (!gpus.length) { pen.strokeStyle = colours.quiet; pen.strokeRect(place.x + .5, place.y + .5, CELL - 1, CELL - 1); }
  for (let i = 0; i < gpus.length; i++) {
    const x = place.x + (i % 4) * (CELL + GAP), y = place.y + Math.floor(i / 4) * (CELL + GAP), letter = gpus[i];
    pen.fillStyle = colours[stateOf(letter)];
    if (stateOf(letter) === "s") {
      pen.fillStyle = colours.f; pen.fillRect(x, y, CELL, CELL);
      pen.fillStyle = colours.u; pen.fillRect(x, y + CELL * (1 - letter / 10), CELL, CELL * letter / 10);
    } else pen.fillRect(x, y, CELL, CELL);
    if (letter === "x") { pen.strokeStyle = colours.sheet; pen.beginPath(); pen.moveTo(x + 1, y + 1); pen.lineTo(x + CELL - 1, y + CELL - 1); pen.stroke(); }
  }
}

function drawCursor(pen) {
  const place = map.places[map.cursor];
  if (!place) return;
  pen.strokeStyle = colours.accent; pen.lineWidth = 2;
  pen.strokeRect(place.x - 2, place.y - 2, place.w + 3, place.h + 3);
  pen.lineWidth = 1;
}

function told(node) {
  const counts = {};
  for (const letter of node.gpus) { const state = STATES[stateOf(letter)]; counts[state] = (counts[state] || 0) + 1; }
  const states = Object.entries(counts).map(([state, count]) => `${count} ${state}`).join(", ");
  return `${node.name} · ${node.product} · ${states || "no GPUs"}`;
}

function moveTo(position) {
  map.cursor = Math.max(0, Math.min(position, map.places.length - 1));
  draw();
  const node = fleet.nodes.get(map.places[map.cursor]?.name);
  if (node) $("here").textContent = told(node);
}

function inRow(step) {
  const from = map.places[Math.max(map.cursor, 0)];
  let best = map.cursor, off = Infinity;
  map.places.forEach((place, i) => {
    const down = (place.y - from.y) * step;
    const distance = down > 0 ? down * 1000 + Math.abs(place.x - from.x) : Infinity;
    if (distance < off) { off = distance; best = i; }
  });
  return best;
}

function at(event) {
  const box = $("map").getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
  return map.places.findIndex((p) => x >= p.x - 3 && x <= p.x + p.w + 3 && y >= p.y - 3 && y <= p.y + p.h + 3);
}

// -- lists ------------------------------------------------------------------------------------------------------

function showTotals() {
  const counts = Object.fromEntries(Object.keys(STATES).map((state) => [state, 0]));
  for (const node of fleet.nodes.values()) for (const letter of node.gpus) counts[stateOf(letter)]++;
  $("totals").replaceChildren(
    el("span", {}, el("b", { textContent: fleet.nodes.size }), " nodes"),
    ...Object.entries(STATES).filter(([s]) => counts[s] || "fu".includes(s)).map(([s, name]) => el("span", {}, el("b", { textContent: counts[s] }), ` ${name}`)),
    el("span", {}, el("b", { textContent: fleet.waiting }), " pods wait"),
  );
}

function card(title, text, open) {
  return el("li", {}, el("button", { type: "button", onclick: open }, el("strong", { textContent: title }), el("small", { textContent: text })));
}

function showLists() {
  const waiting = fleet.pending.map((pod) => card(pod.pod, [pod.sentence, pod.nearest].filter(Boolean).join(" — "), () => openPod(pod.pod)));
  if (fleet.waiting > waiting.length) waiting.push(el("li", { className: "empty", textContent: `and ${fleet.waiting - waiting.length} more` }));
  $("waiting").replaceChildren(...(waiting.length ? waiting : [el("li", { className: "empty", textContent: "No pod waits for devices." })]));
  const decided = fleet.decisions.map((d) => card(d.pod, decision(d), () => openPod(d.pod)));
  $("decisions").replaceChildren(...(decided.length ? decided : [el("li", { className: "empty", textContent: "Nothing was decided yet." })]));
}

function decision(d) {
  const gbps = d.ring_gbps ? ` · ${d.ring_gbps.toFixed(0)} of ${d.best_gbps.toFixed(0)} GB/s` : "";
  const second = !d.runner_up ? "" : d.margin < .0005 ? ` · as good as ${d.runner_up}` : ` · before ${d.runner_up} by ${d.margin.toFixed(3)}`;
  return `${d.node} · ${d.devices} ${d.devices === 1 ? "device" : "devices"}${gbps}${second}`;
}

function find() {
  const words = $("search").value.trim().toLowerCase(), list = $("found");
  list.hidden = !words;
  if (!words) return;
  const nodes = [...fleet.nodes.keys()].filter((name) => name.toLowerCase().includes(words)).slice(0, 40);
  const pods = [...new Set([...fleet.pending, ...fleet.decisions].map((p) => p.pod))].filter((name) => name.toLowerCase().includes(words)).slice(0, 20);
  const buttons = [...pods.map((name) => [name, () => openPod(name)]), ...nodes.map((name) => [name, () => openNode(name)])];
  list.replaceChildren(...buttons.map(([name, open]) => el("li", {}, el("button", { type: "button", textContent: name, onclick: open }))));
  if (!buttons.length) list.replaceChildren(el("li", { className: "empty", textContent: "Nothing has that name." }));
}

// -- details ----------------------------------------------------------------------------------------------------

function open(title, ...content) {
  $("detail-title").textContent = title;
  $("detail-body").replaceChildren(...content);
  if (!$("detail").open) $("detail").showModal();
}

function table(heads, rows) {
  const cells = (kind, row) => el("tr", {}, ...row.map((cell) => (cell instanceof Node ? el(kind, {}, cell) : el(kind, { textContent: cell }))));
  return el("div", { className: "scroll" }, el("table", {}, el("thead", {}, cells("th", heads)), el("tbody", {}, ...rows.map((row) => cells("td", row)))));
}

function stateMark(letter) {
  const state = stateOf(letter), more = state === "s" ? ` ${letter}0 %` : "";
  return el("span", {}, el("i", { className: `key ${state}` }), STATES[state] + more);
}

async function openNode(name) {
  try {
    const node = await ask(`/v1/nodes/${encodeURIComponent(name)}`);
    const rows = node.devices.map((d) => [d.name, stateMark(d.state), d.claims.join(", ") || "–", size(d.memory), d.live_free === null ? "–" : size(d.live_free), d.note]);
    const facts = [node.product, node.zone, node.rack, node.clique && `clique ${node.clique}`, node.largest_free_set ? `${node.largest_free_set} free GPUs on one NVLink set` : null];
    const devices = table(["device", "state", "claims", "memory", "live free", "note"], rows);
    open(name, el("p", { className: "quiet", textContent: facts.filter(Boolean).join(" · ") }),
      el("div", { className: "columns" }, node.fabric ? linkGraph(node) : el("p", { className: "quiet", textContent: "No links are known." }), devices));
  } catch (problem) { open(name, el("p", { textContent: problem.message })); }
}

async function openPod(pod) {
  open(pod, el("p", { textContent: "…" }));
  try {
    const found = await ask(`/v1/explain/${pod.split("/").map(encodeURIComponent).join("/")}`), parts = [];
    if (found.sentence) parts.push(el("p", { textContent: found.sentence }));
    if (found.decision) parts.push(el("p", { textContent: `Bound at ${found.decision.at}: ${decision({ ...found.decision, ...found.decision.chosen, devices: found.decision.chosen.devices.length })}` }), scoreTable([found.decision.chosen]));
    if (found.misses?.length) parts.push(el("h3", { textContent: "What would help" }), el("ul", {}, ...found.misses.map((m) => el("li", { textContent: m }))));
    if (found.best?.length) parts.push(el("h3", { textContent: "Best nodes" }), scoreTable(found.best));
    if (found.groups?.length) parts.push(el("h3", { textContent: "Why nodes are refused" }), table(["nodes", "reason", "such as", "devices there"], found.groups.map((g) => [g.nodes, g.reason, g.examples.join(", "), g.causes.join("; ")])));
    if (found.terms?.length) parts.push(el("h3", { textContent: "Selectors, term by term" }), el("ul", {}, ...found.terms.map((t) => el("li", { textContent: t }))));
    if (found.attempts?.length) parts.push(el("h3", { textContent: "Attempts" }), table(["at", "nodes", "most frequent reasons"], found.attempts.map((a) => [a.at, `${a.fitting} of ${a.asked}`, a.reasons.map(([text, count]) => `${text} on ${count} nodes`).join("; ")])));
    open(pod, ...parts);
  } catch (problem) { open(pod, el("p", { textContent: problem.message })); }
}

function scoreTable(candidates) {
  return table(["node", "score", "part", "", "why"], candidates.flatMap((c) => c.parts.map((p, i) => [i ? "" : c.node, i ? "" : c.score.toFixed(3), p.name, meter(p.value), p.sentence])));
}

function meter(value) {
  const bar = el("i");
  bar.style.width = `${Math.round(100 * value)}%`;
  const made = el("div", { className: "meter", title: value.toFixed(2) }, bar);
  made.setAttribute("role", "img"); made.setAttribute("aria-label", value.toFixed(2));
  return made;
}

// -- live -------------------------------------------------------------------------------------------------------

function take(update) {
  for (const node of update.nodes) fleet.nodes.set(node.name, node);
  for (const name of update.gone || []) fleet.nodes.delete(name);
  if (update.pending) { fleet.pending = update.pending; fleet.waiting = update.waiting; }
  const fresh = new Set(update.decisions.map((d) => d.pod));
  fleet.decisions = [...update.decisions, ...fleet.decisions.filter((d) => !fresh.has(d.pod))].slice(0, 200);
  if (update.remembered_since) $("since").textContent = `since ${update.remembered_since}`;
  if (update.nodes.length || update.gone?.length || !map.places.length) draw();
  showTotals(); showLists();
}

async function follow() {
  const reply = await fetch("/v1/updates", token ? { headers: { Authorization: `Bearer ${token}` } } : {});
  if (!reply.ok) throw new Error(reply.statusText);
  $("link").textContent = "live"; $("link").className = "live";
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) if (event.startsWith("data: ")) take(JSON.parse(event.slice(6)));
  }
}

async function start() {
  for (;;) {
    try {
      const answer = await ask("/v1/fleet");
      fleet.nodes.clear(); fleet.decisions = []; map.places = [];
      take(answer);
      await follow();
    } catch (problem) { $("link").textContent = problem.message; }
    $("link").className = "";
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}

$("legend").replaceChildren(...Object.entries(STATES).map(([state, name]) => el("li", {}, el("i", { className: `key ${state}` }), name)));
$("grouping").onchange = () => { map.cursor = -1; draw(); };
$("search").oninput = find;
$("find").onsubmit = (event) => { event.preventDefault(); $("found").querySelector("button")?.click(); };
$("close").onclick = () => $("detail").close();
$("token").onsubmit = (event) => { event.preventDefault(); token = $("secret").value; sessionStorage.setItem("berth-token", token); $("token").hidden = true; };
$("map").onclick = (event) => { const i = at(event); if (i >= 0) { moveTo(i); openNode(map.places[i].name); } };
$("map").onmousemove = (event) => { const i = at(event); if (i >= 0) $("here").textContent = told(fleet.nodes.get(map.places[i].name)); };
$("map").onkeydown = (event) => {
  const to = { ArrowRight: () => map.cursor + 1, ArrowLeft: () => map.cursor - 1, ArrowDown: () => inRow(1), ArrowUp: () => inRow(-1), Home: () => 0, End: () => map.places.length - 1 }[event.key];
  if (to) { event.preventDefault(); moveTo(to()); }
  if (event.key === "Enter" && map.places[map.cursor]) openNode(map.places[map.cursor].name);
};
document.addEventListener("keydown", (event) => { if (event.key === "/" && !/INPUT|SELECT/.test(document.activeElement.tagName)) { event.preventDefault(); $("search").focus(); } });
let pending = 0;
const again = () => { cancelAnimationFrame(pending); pending = requestAnimationFrame(() => { readColours(); draw(); }); };
new ResizeObserver(again).observe($("fleet"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
readColours();
start();
