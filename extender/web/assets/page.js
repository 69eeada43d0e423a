"use strict";
// The page shows a map of all GPUs, the waiting pods and the decisions. Server-sent events keep it up to date.
// Names come from the cluster, so they are only set as text, never as HTML.

const STATES = { f: "free", u: "allocated", h: "held", s: "shared", d: "drifting", x: "unhealthy" };
const GAP = 1, HEAD = 26; // pixels
let CELL = 7, NODE_GAP = 6; // pixels; layOut sets larger ones for few nodes
const $ = (id) => document.getElementById(id);
const fleet = { nodes: new Map(), pending: [], waiting: 0, decisions: [] };
const map = { places: [], cursor: -1, heads: [] };
let token = sessionStorage.getItem("berth-token") || "";

const stateOf = (letter) => (letter >= "1" && letter <= "9" ? "s" : letter);
const size = (bytes) => (bytes ? `${(bytes / 2 ** 30).toFixed(bytes < 2 ** 33 ? 1 : 0)} GiB` : "–");
const noun = (count, one) => (count === 1 ? one : `${one}s`);
const counted = (count, one) => `${count} ${noun(count, one)}`;

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
    map.heads.push([name, `${counted(nodes.length, "node")}, ${counted(free, "GPU")} free`, y + 14]);
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
    if (letter === "x") {
      pen.strokeStyle = colours.sheet;
      pen.beginPath(); pen.moveTo(x + 1, y + 1); pen.lineTo(x + CELL - 1, y + CELL - 1); pen.stroke();
    }
  }
}

function drawCursor(pen) {
  const place = map.places[map.cursor];
  if (!place) return;
  pen.strokeStyle = colours.accent; pen.lineWidth = 2;
  pen.strokeRect(place.x - 2, place.y - 2, place.w + 3, place.h + 3);
  pen.lineWidth = 1;
}

function describe(node) {
  const counts = {};
  for (const letter of node.gpus) { const state = STATES[stateOf(letter)]; counts[state] = (counts[state] || 0) + 1; }
  const states = Object.entries(counts).map(([state, count]) => `${count} ${state}`).join(", ");
  return `${node.name} · ${node.product} · ${states || "no GPUs"}`;
}

function moveTo(position) {
  map.cursor = Math.max(0, Math.min(position, map.places.length - 1));
  draw();
  const node = fleet.nodes.get(map.places[map.cursor]?.name);
  if (node) $("here").textContent = describe(node);
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
  const total = (count, name) => el("span", {}, el("b", { textContent: count }), ` ${name}`);
  const shown = Object.entries(STATES).filter(([state]) => counts[state] || "fu".includes(state));
  $("totals").replaceChildren(
    total(fleet.nodes.size, noun(fleet.nodes.size, "node")),
    ...shown.map(([state, name]) => total(counts[state], name)),
    total(fleet.waiting, noun(fleet.waiting, "waiting pod")),
  );
}

const card = (title, text, open) => el("li", {}, el("button", { type: "button", onclick: open },
  el("strong", { textContent: title }), el("small", { textContent: text })));

const note = (text) => el("li", { className: "empty", textContent: text });

function showLists() {
  const why = (pod) => [pod.sentence, pod.nearest].filter(Boolean).join(" — ");
  const title = (pod) => pod.pods > 1 ? `${pod.pod} and ${pod.pods - 1} more of its group` : pod.pod;
  const waiting = fleet.pending.map((pod) => card(title(pod), why(pod), () => openPod(pod.pod)));
  const left = fleet.waiting - fleet.pending.reduce((sum, pod) => sum + pod.pods, 0);
  if (left > 0) waiting.push(note(`and ${left} more`));
  $("waiting").replaceChildren(...(waiting.length ? waiting : [note("No pod waits for devices.")]));
  const decided = fleet.decisions.map((d) => card(d.pod, decision(d), () => openPod(d.pod)));
  $("decisions").replaceChildren(...(decided.length ? decided : [note("No decisions yet.")]));
}

function decision(d) {
  const gbps = d.ring_gbps ? ` · ${d.ring_gbps.toFixed(0)} of ${d.best_gbps.toFixed(0)} GB/s` : "";
  const devices = counted(d.devices, "device");
  const second = d.runner_up ? ` · runner-up ${d.runner_up}, ${d.margin.toFixed(3)} behind` : "";
  return `${d.node} · ${devices}${gbps}${second}`;
}

function find() {
  const words = $("search").value.trim().toLowerCase(), list = $("found");
  list.hidden = !words;
  if (!words) return;
  const matches = (name) => name.toLowerCase().includes(words);
  const nodes = [...fleet.nodes.keys()].filter(matches).slice(0, 40);
  const pods = [...new Set([...fleet.pending, ...fleet.decisions].map((p) => p.pod))].filter(matches).slice(0, 20);
  const button = (name, open) => el("li", {}, el("button", { type: "button", textContent: name, onclick: open }));
  const podButtons = pods.map((name) => button(name, () => openPod(name)));
  const nodeButtons = nodes.map((name) => button(name, () => openNode(name)));
  list.replaceChildren(...podButtons, ...nodeButtons);
  if (!list.children.length) list.replaceChildren(note("No node or pod has this name."));
}

// -- details ----------------------------------------------------------------------------------------------------

function open(title, ...content) {
  $("detail-title").textContent = title;
  $("detail-body").replaceChildren(...content);
  if (!$("detail").open) $("detail").showModal();
}

function table(heads, rows) {
  const cell = (kind, content) =>
    content instanceof Node ? el(kind, {}, content) : el(kind, { textContent: content });
  const line = (kind, row) => el("tr", {}, ...row.map((content) => cell(kind, content)));
  const body = el("tbody", {}, ...rows.map((row) => line("td", row)));
  return el("div", { className: "scroll" }, el("table", {}, el("thead", {}, line("th", heads)), body));
}

const quiet = (text) => el("p", { className: "quiet", textContent: text });
const bullets = (texts) => el("ul", {}, ...texts.map((text) => el("li", { textContent: text })));

function stateMark(letter) {
  const state = stateOf(letter), more = state === "s" ? ` ${letter}0 %` : "";
  return el("span", {}, el("i", { className: `key ${state}` }), STATES[state] + more);
}

async function openNode(name) {
  try {
    const node = await ask(`/v1/nodes/${encodeURIComponent(name)}`);
    const rows = node.devices.map((d) => {
      const free = d.live_free === null ? "–" : size(d.live_free);
      return [d.name, stateMark(d.state), d.claims.join(", ") || "–", size(d.memory), free, d.note];
    });
    const clique = node.clique && `clique ${node.clique}`;
    const largest = node.largest_free_set && `largest free NVLink set: ${counted(node.largest_free_set, "GPU")}`;
    const facts = [node.product, node.zone, node.rack, clique, largest];
    const devices = table(["device", "state", "claims", "memory", "free now", "note"], rows);
    const links = node.fabric ? linkGraph(node) : quiet("The NVLinks of this node are not known.");
    open(name, quiet(facts.filter(Boolean).join(" · ")), el("div", { className: "columns" }, links, devices));
  } catch (problem) { open(name, el("p", { textContent: problem.message })); }
}

const inPath = (name) => name.split("/").map(encodeURIComponent).join("/");

async function openPod(pod) {
  open(pod, el("p", { textContent: "…" }));
  try {
    const found = await ask(`/v1/explain/${inPath(pod)}`), parts = [];
    const section = (title, content) => parts.push(el("h3", { textContent: title }), content);
    if (found.sentence) parts.push(el("p", { textContent: found.sentence }));
    if (found.gang) {
      const opener = el("button", { type: "button", onclick: () => openGroup(found.gang) }, `Group ${found.gang}`);
      parts.push(el("p", {}, "All about its group: ", opener));
    }
    if (found.decision) {
      const { at, chosen } = found.decision;
      const text = decision({ ...found.decision, ...chosen, devices: chosen.devices.length + chosen.reused.length });
      parts.push(el("p", { textContent: `Bound at ${at}: ${text}` }), scoreTable([chosen]));
    }
    if (found.misses?.length) section("What would help", bullets(found.misses));
    if (found.alone) section("If it were in no group", el("p", { textContent: found.alone }));
    if (found.best?.length) section("Best nodes", scoreTable(found.best));
    if (found.groups?.length) {
      const rows = found.groups.map((g) => [g.nodes, g.reason, g.examples.join(", "), g.causes.join("; ")]);
      section("Why the pod does not fit", table(["nodes", "reason", "examples", "devices"], rows));
    }
    if (found.terms?.length) section("Terms of the selectors", bullets(found.terms));
    if (found.attempts?.length) {
      const reasons = (a) => a.reasons.map(([text, count]) => `${text} on ${counted(count, "node")}`).join("; ");
      const rows = found.attempts.map((a) => [a.at, `${a.fitting} of ${a.asked}`, reasons(a)]);
      section("Attempts", table(["time", "nodes that fit", "most frequent reasons"], rows));
    }
    open(pod, ...parts);
  } catch (problem) { open(pod, el("p", { textContent: problem.message })); }
}

async function openGroup(group) {
  open(group, el("p", { textContent: "…" }));
  try {
    const groups = await ask(`/v1/explain/group/${inPath(group)}`);
    open(group, ...groups.flatMap(groupParts));
  } catch (problem) { open(group, el("p", { textContent: problem.message })); }
}

function groupParts(found) {
  const parts = [el("p", { textContent: found.sentence })];
  const section = (title, content) => parts.push(el("h3", { textContent: title }), content);
  const minimum = found.minimum && `${found.bound} of at least ${found.minimum} bound`;
  const topology = found.topology && `topology ${found.topology}`;
  const label = found.topology_label && `one value of ${found.topology_label}`;
  const since = found.since && `${found.since_event} ${found.since}`;
  parts.push(quiet([`named by ${found.source}`, minimum, topology, label, since].filter(Boolean).join(" · ")));
  if (found.misses.length) section("What would help", bullets(found.misses.map((miss) => miss.sentence)));
  if (found.cut_short) parts.push(quiet(found.cut_short));
  const members = found.members.map((m) => [m.pod, m.state, m.node || "–", m.reason, m.since]);
  section("Members", table(["pod", "state", "node", "reason", "first attempt"], members));
  const plan = found.plan.map((p) => [p.pod, p.node, p.devices.join(", ")]);
  if (plan.length) section("Plan", table(["pod", "node", "devices"], plan));
  const names = (h) => (h.pods.length ? h.pods : h.claims).join(", ");
  const holders = found.holders.map((h) => [h.node, h.devices, names(h), h.state, h.group]);
  if (holders[0]) section(`Holders ${found.held_in}`, table(["node", "devices", "pods", "state", "group"], holders));
  if (found.more_holders) parts.push(quiet(`and ${found.more_holders} more`));
  return parts;
}

function scoreTable(candidates) {
  const rows = candidates.flatMap((c) => c.parts.map((part, i) => {
    const [node, score] = i ? ["", ""] : [c.node, c.score.toFixed(3)];
    return [node, score, part.name, meter(part.value), part.sentence];
  }));
  return table(["node", "score", "part", "value", "reason"], rows);
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

const legend = ([state, name]) => el("li", {}, el("i", { className: `key ${state}` }), name);
$("legend").replaceChildren(...Object.entries(STATES).map(legend));
$("grouping").onchange = () => { map.cursor = -1; draw(); };
$("search").oninput = find;
$("find").onsubmit = (event) => { event.preventDefault(); $("found").querySelector("button")?.click(); };
$("close").onclick = () => $("detail").close();
$("token").onsubmit = (event) => {
  event.preventDefault();
  token = $("secret").value;
  sessionStorage.setItem("berth-token", token);
  $("token").hidden = true;
};
$("map").onclick = (event) => { const i = at(event); if (i >= 0) { moveTo(i); openNode(map.places[i].name); } };
$("map").onmousemove = (event) => {
  const i = at(event);
  if (i >= 0) $("here").textContent = describe(fleet.nodes.get(map.places[i].name));
};
$("map").onkeydown = (event) => {
  const to = {
    ArrowRight: () => map.cursor + 1,
    ArrowLeft: () => map.cursor - 1,
    ArrowDown: () => inRow(1),
    ArrowUp: () => inRow(-1),
    Home: () => 0,
    End: () => map.places.length - 1,
  }[event.key];
  if (to) { event.preventDefault(); moveTo(to()); }
  if (event.key === "Enter" && map.places[map.cursor]) openNode(map.places[map.cursor].name);
};
document.addEventListener("keydown", (event) => {
  const isTyping = /INPUT|SELECT/.test(document.activeElement.tagName);
  if (event.key !== "/" || isTyping) return;
  event.preventDefault();
  $("search").focus();
});
let frame = 0;
const redraw = () => {
  cancelAnimationFrame(frame);
  frame = requestAnimationFrame(() => { readColours(); draw(); });
};
new ResizeObserver(redraw).observe($("fleet"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
readColours();
start();
