"use strict";
// The figures at the top, and the lists: waiting pods, groups, decisions, search results.

const note = (text) => el("li", { className: "empty", textContent: text });

// A card that opens something, and lights these GPUs while the pointer or the focus is on it.
function card(kind, name, sets, ...content) {
  const made = el("button", { type: "button", onclick: () => go(kind, name) }, ...content);
  made.dataset.key = hashOf(kind, name);
  made.onmouseenter = made.onfocus = () => light(sets);
  made.onmouseleave = made.onblur = () => light({});
  return el("li", {}, made);
}

// Replaces the items of a list. The focus stays on the item that had it.
function fill(id, items, instead) {
  const key = $(id).contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  $(id).replaceChildren(...(items.length ? items : [note(instead)]));
  if (key !== undefined) [...$(id).querySelectorAll("button")].find((item) => item.dataset.key === key)?.focus();
}

const LONG_WAIT = 60; // seconds after which a waiting pod is shown as a problem
const isLong = (since) => secondsSince(since) > LONG_WAIT;
const heading = (text, at) => el("span", { className: "head" }, el("strong", {}, soft(text)), age(at));

function showWaiting() {
  const title = (pod) => pod.pods > 1 ? `${pod.pod} and ${pod.pods - 1} more of its group` : pod.pod;
  const waiting = fleet.pending.map((pod) => card("pod", pod.pod, {}, heading(title(pod), pod.since),
    el("small", {}, soft(pod.sentence)),
    pod.nearest ? el("span", { className: "nearest" }, soft(pod.nearest)) : null));
  const left = fleet.waiting - fleet.pending.reduce((sum, pod) => sum + pod.pods, 0);
  if (left > 0) waiting.push(note(`and ${left} more`));
  fill("waiting", waiting, "No pod waits for devices.");
}

function markLongWaits() {
  for (const item of $("waiting").children) {
    item.classList.toggle("long", isLong(item.querySelector("time")?.dateTime));
  }
}

// -- groups -------------------------------------------------------------------------------------------------------

// The tightest part of the fleet that has all these nodes.
function domainOf(names) {
  const nodes = names.map((name) => fleet.nodes.get(name)).filter(Boolean);
  if (!nodes.length) return "";
  if (nodes.length === 1) return `on ${nodes[0].name}`;
  const title = { clique: "NVLink clique", rack: "rack", zone: "zone" };
  const level = Object.keys(title).find((one) => nodes[0][one] && nodes.every((node) => node[one] === nodes[0][one]));
  return `on ${nodes.length} nodes${level ? ` of ${title[level]} ${nodes[0][level]}` : ""}`;
}

function groupCard(group) {
  const { minimum, bound, held, waiting, nodes } = group, missing = Math.max(minimum - bound - waiting, 0);
  const parts = [[bound, "bound", "u"], [held, "held", "h"], [waiting - held, waiting === 1 ? "waits" : "wait", "w"],
    [missing, "missing", "m"]].filter(([count]) => count);
  const bar = el("span", { className: "share" }, ...parts.map(([count, , state]) => {
    const part = el("i", { className: state });
    part.style.flexGrow = count;
    return part;
  }));
  const told = [...parts.map(([count, name]) => `${count} ${name}`), minimum ? `minimum ${minimum}` : "",
    domainOf(Object.keys(nodes))].filter(Boolean);
  return card("group", group.group, nodes, heading(group.group), bar, el("small", {}, soft(told.join(" · "))));
}

function showGroups() {
  $("gangs").hidden = !fleet.groups.length;
  fill("groups", fleet.groups.map(groupCard), "");
}

// -- decisions ----------------------------------------------------------------------------------------------------

function decisionCard(d) {
  const { sets } = d, lit = sets ? { [d.node]: sets.chosen.gpus } : {};
  const isAnother = sets && sets.chosen.gpus.length > 1 && !isSameSet(sets);
  const rate = isAnother ? "predicted:" : inWords(d);
  const told = [d.ended && "ended", counted(d.devices, "device"), rate].filter(Boolean);
  return card("pod", d.pod, lit, heading(d.pod, d.at), el("small", {}, soft(d.node), ` · ${told.join(" · ")}`),
    isAnother ? beside(sets) : null);
}

function inWords({ sets, ring_gbps: ring, best_gbps: best }) {
  if (!sets) return ring ? `${ring.toFixed(0)} of ${predicted(best)}` : "";
  return sets.chosen.gpus.length > 1 ? predicted(sets.chosen.gbps) : sets.names[sets.chosen.gpus[0]];
}

// The two sets of a decision in small.
function beside(sets) {
  const one = (which, title) => el("span", { className: `set ${which}` }, setGraph(sets, which),
    el("span", {}, el("b", { textContent: title }), el("br"), gbps(sets[which].gbps), el("br"),
      joinedBy(sets, which)));
  return el("span", { className: "pair" }, one("chosen", "Berth"), one("first_fit", "First fit"));
}

const showDecisions = () => fill("decisions", fleet.decisions.map(decisionCard), "No decisions yet.");

// -- figures ------------------------------------------------------------------------------------------------------

function tile(name, value, more, { change = "", drawn = null } = {}) {
  return el("div", { className: "tile" }, el("dt", { textContent: name }), el("dd", {},
    el("b", { textContent: shown(value) }), change ? el("small", { className: "change" }, change) : null,
    el("small", {}, more)), drawn);
}

function trendTile(name, value, of, position) {
  const points = fleet.trend.map((point) => [point[0], point[position]]);
  if (points.length < 2) return tile(name, value, of);
  const moved = value - points[0][1], since = duration((Date.now() - points[0][0]) / 1000);
  const change = moved ? `${moved > 0 ? "+" : "−"}${shown(Math.abs(moved))} in ${since}` : "";
  const drawn = trendLine(points, `${name}: ${value}, ${change || `as ${since} ago`}`);
  return tile(name, value, of, { change, drawn });
}

function showTotals() {
  const nodes = [...fleet.nodes.values()], counts = Object.fromEntries(Object.keys(STATES).map((state) => [state, 0]));
  for (const node of nodes) for (const letter of node.gpus) counts[stateOf(letter)]++;
  const total = ([state, name]) => el("li", {}, el("i", { className: `key ${state}` }),
    el("b", { textContent: shown(counts[state]) }), ` ${name}`);
  const states = Object.entries(STATES).filter(([state]) => counts[state] || "fu".includes(state));
  $("totals").replaceChildren(...states.map(total));
  const largest = Math.max(0, ...nodes.map((node) => node.largest || 0)), oldest = oldestWait();
  const compared = fleet.decisions.map((d) => d.sets).filter((sets) => sets && sets.chosen.gpus.length > 1);
  const several = compared.filter((sets) => !sets.in_group); // the pods that `berth run` counts
  $("figures").replaceChildren(
    trendTile("Free GPUs", counts.f, `of ${shown(gpusOf(nodes))} on ${counted(nodes.length, "node")}`, 1),
    trendTile("Largest free joined set", largest, noun(largest, "GPU"), 2),
    ...fleet.large_jobs.slice(0, 1).map(largeTile),
    waitingTile(oldest),
    ...(several.length ? [joinedTile(several, several.length < compared.length)] : []));
}

function waitingTile(oldest) {
  const since = oldest && (fleet.waiting > 1 ? `the first for ${oldest}` : `for ${oldest}`);
  const made = tile("Waiting pods", fleet.waiting, since);
  made.classList.toggle("long", fleet.pending.some((pod) => isLong(pod.since)));
  return made;
}

function largeTile({ gpus, where }) {
  const others = fleet.large_jobs.slice(1).map((job) => `${job.gpus} × ${job.where}`);
  const made = tile("The next large job finds", gpus, `× ${where}`);
  made.title = ["Free GPUs that links join, by product", ...others].join("\n");
  return made;
}

function oldestWait() {
  const times = fleet.pending.map((pod) => pod.since).filter(Boolean).sort();
  return times.length ? duration(secondsSince(times[0])) : "";
}

function joinedTile(several, hasGangs) {
  const joined = (which) => several.filter((sets) => sets[which].is_joined).length;
  const sum = (which) => several.reduce((total, sets) => total + sets[which].gbps, 0);
  const times = sum("chosen") / sum("first_fit");
  const faster = times >= 1.05 ? ` · ${times.toFixed(1)}× predicted GB/s` : "";
  const made = tile(hasGangs ? "Multi-GPU pods outside of gangs, joined" : "Multi-GPU pods joined",
    `${joined("chosen")} of ${several.length}`, `first fit: ${joined("first_fit")}${faster}`);
  made.title = "Joined: the links of the GPUs make a ring. First fit: the first devices that fit on the node that "
    + "Berth chose.";
  return made;
}

// -- search -------------------------------------------------------------------------------------------------------

function find() {
  const words = $("search").value.trim().toLowerCase(), list = $("found");
  list.hidden = !words;
  if (!words) return;
  const matches = (name) => name.toLowerCase().includes(words);
  const pods = [...new Set([...fleet.pending, ...fleet.decisions].map((p) => p.pod))].filter(matches).slice(0, 20);
  const groups = fleet.groups.map((one) => one.group).filter(matches);
  const nodes = [...fleet.nodes.keys()].filter(matches).slice(0, 40);
  const button = (kind) => (name) => el("li", {}, el("button", { type: "button", onclick: () => go(kind, name) },
    el("small", { textContent: kind }), " ", soft(name)));
  list.replaceChildren(...pods.map(button("pod")), ...groups.map(button("group")), ...nodes.map(button("node")));
  const none = fleet.cursor ? "No node, pod or group has this name." : "The console has not told any name yet.";
  if (!list.children.length) list.replaceChildren(note(none));
}
