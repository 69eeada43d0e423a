"use strict";
// Addresses within the page, server-sent updates, and the start.

// -- addresses: #/node/NAME, #/pod/NS/NAME, #/group/NS/NAME, #/fleet/LEVEL/in/LEVEL/VALUE… ------------------------

const hashOf = (kind, name) => `#/${kind}/${inPath(name)}`;

function go(kind, name) {
  if (location.hash === hashOf(kind, name)) route(); else location.hash = hashOf(kind, name);
}

function viewHash() {
  const steps = view.path.flat().map(encodeURIComponent);
  return view.path.length || view.by !== LEVELS[0] ? `#/fleet/${[view.by, ...steps].join("/")}` : "#/fleet";
}

function stepsOf(words) {
  const steps = [];
  for (let i = 0; i + 1 < words.length && LEVELS.includes(words[i]);) {
    const length = words[i] === "name" ? 3 : 2;
    steps.push(words.slice(i, i + length));
    i += length;
  }
  return steps.filter((step) => step.length === (step[0] === "name" ? 3 : 2));
}

function route() {
  let words;
  try { words = location.hash.slice(2).split("/").map(decodeURIComponent); } catch { return; }
  const [kind, ...rest] = words, name = rest.join("/");
  if (kind === "node" && name) openNode(name);
  else if (kind === "pod" && name) openPod(name);
  else if (kind === "group" && name) openGroup(name);
  else if (kind === "fleet" || !kind) {
    view.by = LEVELS.includes(rest[0]) ? rest[0] : LEVELS[0];
    view.path = stepsOf(rest.slice(1));
    $("detail").close();
    showView();
  }
}

// -- live ---------------------------------------------------------------------------------------------------------

// An update from before the fleet's answer brings at most points of the trend.
function take(update) {
  const now = Date.now(), last = fleet.trend[fleet.trend.length - 1]?.[0] || 0;
  const points = update.trend.map(([ago, free, largest]) => [now - 1000 * ago, free, largest]);
  fleet.trend.push(...points.filter(([time]) => time > last + 1000));
  fleet.trend.splice(0, fleet.trend.length - 480);
  if (update.revision < fleet.revision) return;
  fleet.revision = update.revision;
  for (const node of update.nodes) fleet.nodes.set(node.name, node);
  for (const name of update.gone || []) fleet.nodes.delete(name);
  isSorted = false;
  for (const part of ["pending", "waiting", "groups"]) if (update[part] !== undefined) fleet[part] = update[part];
  const fresh = new Set(update.decisions.map((d) => d.pod));
  fleet.decisions = [...update.decisions, ...fleet.decisions.filter((d) => !fresh.has(d.pod))].slice(0, 200);
  if (update.remembered_since) $("since").replaceChildren("of the last ", age(update.remembered_since) || "");
  if (update.now) clock.offset = Date.parse(update.now) - now;
  showTotals();
  if (update.nodes.length || update.gone?.length || !map.places.length) showFleet();
  if (update.pending) showWaiting();
  if (update.groups) showGroups();
  if (update.decisions.length || !$("decisions").children.length) showDecisions();
}

async function read(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) if (event.startsWith("data: ")) take(JSON.parse(event.slice(6)));
  }
}

async function connect(signal) {
  const reply = await fetch("/v1/updates", { ...headers(), signal }); // before the fleet, so that no change is missed
  const answer = await ask("/v1/fleet");
  if (!reply.ok) throw new Error(reply.statusText);
  fleet.nodes.clear();
  Object.assign(fleet, { decisions: [], trend: [], revision: 0 });
  map.places = [];
  take(answer);
  $("token").hidden = true;
  $("link").textContent = "live"; $("link").className = "live";
  return reply;
}

async function start() {
  for (let isRouted = false; ;) {
    const stop = new AbortController();
    try {
      const reply = await connect(stop.signal);
      if (!isRouted) route();
      isRouted = true;
      await read(reply);
    } catch (problem) { $("link").textContent = problem.message; }
    stop.abort();
    $("link").className = "";
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}

$("search").oninput = find;
$("find").onsubmit = (event) => { event.preventDefault(); $("found").querySelector("button")?.click(); };
$("close").onclick = () => $("detail").close();
$("detail").onclose = () => { if (!location.hash.startsWith("#/fleet")) history.replaceState(null, "", viewHash()); };
document.querySelector("aside").onmouseleave = () => light({});
$("token").onsubmit = (event) => {
  event.preventDefault();
  token = $("secret").value;
  sessionStorage.setItem("berth-token", token);
};
document.addEventListener("keydown", (event) => {
  const isTyping = /INPUT|SELECT/.test(document.activeElement.tagName);
  if (event.key !== "/" || isTyping) return;
  event.preventDefault();
  $("search").focus();
});
window.addEventListener("hashchange", route);
let frameNumber = 0, knownSize = "";
const redraw = () => {
  cancelAnimationFrame(frameNumber);
  frameNumber = requestAnimationFrame(() => {
    readColours();
    if (map.isCards) fit(); else paint();
  });
};
new ResizeObserver(() => {
  const newSize = `${$("view").clientWidth} ${$("view").clientHeight}`;
  if (newSize !== knownSize) redraw();
  knownSize = newSize;
}).observe($("fleet"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
readColours();
start();
