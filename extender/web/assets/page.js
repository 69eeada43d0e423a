"use strict";
// Addresses within the page, the questions for changes, and the start.

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

let detailHash = ""; // the address of the open dialog
let routedAway = 0; // events of dialogs that a new address closed, which are still to come

function route() {
  let words;
  if (location.hash && !location.hash.startsWith("#/")) return; // the link to the search
  try { words = location.hash.slice(2).split("/").map(decodeURIComponent); } catch { words = []; }
  const [kind, ...rest] = words, name = rest.join("/");
  detailHash = ["node", "pod", "group"].includes(kind) && name ? location.hash : "";
  if (kind === "node" && name) openNode(name);
  else if (kind === "pod" && name) openPod(name);
  else if (kind === "group" && name) openGroup(name);
  else { // "fleet", and any address that the page does not know
    view.by = LEVELS.includes(rest[0]) ? rest[0] : LEVELS[0];
    view.path = stepsOf(rest.slice(1));
    routedAway += $("detail").open;
    $("detail").close();
    showView();
  }
}

// -- live ---------------------------------------------------------------------------------------------------------

function take(update) {
  const now = Date.now(), last = fleet.trend[fleet.trend.length - 1]?.[0] || 0;
  if (update.whole) {
    fleet.nodes.clear();
    Object.assign(fleet, { decisions: [], trend: [] });
    map.places = [];
  }
  fleet.cursor = update.cursor;
  const points = update.trend.map(([ago, free, largest]) => [now - 1000 * ago, free, largest]);
  fleet.trend.push(...points.filter(([time]) => update.whole || time > last + 1000));
  fleet.trend.splice(0, fleet.trend.length - 480);
  for (const node of update.nodes) fleet.nodes.set(node.name, node);
  for (const name of update.gone || []) fleet.nodes.delete(name);
  isSorted = false;
  for (const part of ["pending", "waiting", "groups", "large_jobs"]) {
    if (update[part] !== undefined) fleet[part] = update[part];
  }
  const fresh = new Set(update.decisions.map((d) => d.pod));
  fleet.decisions = [...update.decisions, ...fleet.decisions.filter((d) => !fresh.has(d.pod))]
    .sort((a, b) => Date.parse(b.at) - Date.parse(a.at)).slice(0, 200);
  if (update.release) $("cluster").textContent = [update.release, update.cluster].filter(Boolean).join(" · ");
  if (update.docs) { $("docs").href = update.docs; $("docs").hidden = false; }
  if (update.waiting !== undefined) {
    document.title = `${fleet.waiting ? `(${fleet.waiting}) ` : ""}Berth ${$("cluster").textContent}`;
  }
  if (update.remembered_since) $("since").replaceChildren("of the last ", age(update.remembered_since) || "");
  if (update.now) clock.offset = Date.parse(update.now) - now;
  showTotals();
  if (update.nodes.length || update.gone?.length || !map.places.length) showFleet();
  if (update.pending) showWaiting();
  markLongWaits();
  if (update.groups) showGroups();
  if (update.decisions.length || !$("decisions").children.length) showDecisions();
}

// The page asks for changes while somebody sees it, and keeps no connection: a browser has six for all its tabs.
const PAUSE = 800, LATE = 5000; // milliseconds between two questions; without an answer until the page says so
const HUNG = 10000; // milliseconds without an answer to a question
let answered = Date.now(), asked = Infinity, wake = () => {};

function alive() {
  answered = Date.now();
  $("token").hidden = $("dead").hidden = true;
  document.body.classList.remove("late");
  $("link").textContent = "live"; $("link").className = "live";
}

function late(problem) {
  // A TypeError of fetch means that nothing answers, a TimeoutError that it hangs; their texts differ between browsers.
  const isSilent = problem instanceof TypeError || problem.name === "TimeoutError";
  $("link").textContent = isSilent ? "not connected" : problem.message;
  $("link").className = "";
  if (Date.now() - answered < LATE || !$("token").hidden) return;
  $("dead").textContent = "The console does not answer. "
    + `The page shows the cluster as it was at ${new Date(answered).toLocaleTimeString()}.`;
  $("dead").hidden = false;
  document.body.classList.add("late");
}

async function start() {
  for (let isRouted = false; ;) {
    try {
      if (!document.hidden) {
        asked = Date.now();
        take(await ask(`/v1/fleet?since=${fleet.cursor}`));
        alive();
        if (!isRouted) route();
        isRouted = true;
      }
    } catch (problem) { late(problem); }
    asked = Infinity;
    await new Promise((resolve) => { wake = resolve; setTimeout(resolve, PAUSE); });
  }
}

setInterval(() => { if (Date.now() - asked > HUNG) late(new TypeError()); }, 1000);
document.addEventListener("visibilitychange", () => wake());
$("search").oninput = $("search").onfocus = find;
$("find").onsubmit = (event) => { event.preventDefault(); $("found").querySelector("button")?.click(); };
$("find").addEventListener("focusout", (event) => {
  if (!$("find").contains(event.relatedTarget)) $("found").hidden = true;
});
$("find").onkeydown = (event) => {
  const results = [$("search"), ...$("found").querySelectorAll("button")];
  const down = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (event.key === "Escape") { $("search").focus(); $("found").hidden = true; }
  if (!down) return;
  event.preventDefault();
  results[results.indexOf(document.activeElement) + down]?.focus();
};
$("jobs").onclick = async (event) => { // a link has no token
  if (!token) return;
  event.preventDefault();
  const reply = await fetch("/v1/jobs.jsonl", headers());
  const href = URL.createObjectURL(await reply.blob());
  Object.assign(document.createElement("a"), { href, download: "jobs.jsonl" }).click();
  URL.revokeObjectURL(href);
};
$("close").onclick = () => $("detail").close();
// The event comes a little later than the end of the dialog: a new address may be there, and stays.
$("detail").onclose = () => {
  if (routedAway) routedAway -= 1;
  else if (detailHash && location.hash === detailHash) history.replaceState(null, "", viewHash());
};
document.querySelector("aside").onmouseleave = () => light({});
$("token").onsubmit = (event) => {
  event.preventDefault();
  token = $("secret").value;
  sessionStorage.setItem("berth-token", token);
  wake();
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
function showTheme() {
  useTheme();
  $("theme").textContent = `theme: ${chosenTheme()}`;
  redraw();
}
$("theme").onclick = () => {
  localStorage.setItem("berth-theme", THEMES[(THEMES.indexOf(chosenTheme()) + 1) % THEMES.length]);
  showTheme();
};
systemDark.addEventListener("change", showTheme);

// A phone shows what waits first; the fleet opens by its button.
function fold(isFolded) {
  $("fleet").classList.toggle("folded", isFolded);
  $("fold").textContent = isFolded ? "Show the nodes" : "Hide the nodes";
  $("fold").setAttribute("aria-expanded", String(!isFolded));
  redraw();
}
$("fold").onclick = () => fold(!$("fleet").classList.contains("folded"));
fold(true);
$("signs").replaceChildren(...signs());
showTheme();
start();
