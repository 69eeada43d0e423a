"use strict";
// The dialog: one node, one pod or one group.

let openings = 0; // so that a late answer does not replace a newer one

// Opens the dialog, and fills it with the elements that `load` returns.
async function open(title, load) {
  const opening = ++openings;
  $("detail-title").replaceChildren(soft(title));
  $("detail-body").replaceChildren(quiet("…"));
  if (!$("detail").open) $("detail").showModal();
  let parts;
  try { parts = await load(); } catch (problem) { parts = [el("p", { textContent: problem.message })]; }
  if (opening !== openings) return;
  $("detail-body").replaceChildren(...parts);
  $("detail").scrollTop = 0;
}

// Columns without any content are left out. On a narrow screen rows become blocks, and each cell shows its head.
function table(heads, rows) {
  const used = heads.map((_, i) => rows.some((row) => row[i] !== "–"));
  const kept = (cells) => cells.filter((_, i) => used[i]);
  const inner = (content) => (content instanceof Node ? content : soft(String(content)));
  const cell = (content, i) => {
    const made = el("td", { className: content === "–" ? "none" : "" }, inner(content));
    made.dataset.head = heads[i];
    return made;
  };
  const body = el("tbody", {}, ...rows.map((row) => el("tr", {}, ...kept(row.map(cell)))));
  const head = el("thead", {}, el("tr", {}, ...kept(heads).map((text) => el("th", { textContent: text }))));
  return el("table", {}, head, body);
}

const link = (kind, name) => el("a", { href: hashOf(kind, name) }, soft(name));

// The parts with headings, and a function that adds one.
function sections(...parts) {
  const add = (title, ...content) => parts.push(el("h3", { textContent: title }), ...content);
  return [parts, add];
}

function stateMark(letter) {
  const state = stateOf(letter), more = state === "s" ? ` ${letter}0 %` : "";
  return el("span", {}, el("i", { className: `key ${state}` }), STATES[state] + more);
}

function figure(svg, ...caption) {
  return el("figure", {}, svg, el("figcaption", {}, ...caption));
}

// -- a node -------------------------------------------------------------------------------------------------------

const openNode = (name) => open(name, async () => {
  const node = await ask(`/v1/nodes/${encodeURIComponent(name)}`);
  const rows = node.devices.map((d) => {
    const memory = d.memory ? size(d.memory) : "–", free = d.live_free === null ? "–" : size(d.live_free);
    return [d.name, stateMark(d.state), d.claims.join(", ") || "–", memory, free, d.note || "–"];
  });
  const clique = node.clique && `clique ${node.clique}`;
  const link = node.fabric && node.fabric.link;
  const largest = node.largest_free_set && `largest free ${link} set: ${counted(node.largest_free_set, "GPU")}`;
  const others = (node.others || []).map((one) => `${one.driver}: ${one.free} of ${one.devices} free`);
  const facts = [node.product, node.zone, node.rack, clique, largest, ...others].filter(Boolean).join(" · ");
  const devices = table(["device", "state", "claims", "memory", "free now", "note"], rows);
  const places = placeParts(node.devices);
  if (!node.fabric) return [quiet(facts), quiet("The links of this node are not known."), devices, ...places];
  const links = node.links || node.switch ? `${link}s` : `No ${link}s`;
  const graph = nodeGraph(node, { numbered: true, rate: node.fabric.link_gbps });
  const drawn = figure(graph, `${links} between these GPUs, source: ${node.fabric.source}`);
  return [quiet(facts), el("div", { className: "columns" }, drawn, devices), ...places];
});

// Where the devices are, who says so, and which free devices are beside a free GPU.
function placeParts(devices) {
  const sourced = (values, from) => values.map((value, i) => `${value} (${from[i]})`).join(", ") || "–";
  const more = (near) => (near.more ? ` and ${near.more} more` : "");
  const besideText = (near) => `${near.devices.join(", ")}${more(near)}: ${near.nearness}`;
  const known = devices.filter(({ place }) => place.roots.length || place.numa.length);
  const rows = known.map(({ name, place: { roots, roots_from: from, numa, numa_from }, beside }) =>
    [name, sourced(roots, roots.map(() => from)), sourced(numa, numa_from), beside.map(besideText).join("; ") || "–"]);
  if (!rows.length) return [];
  return [el("h3", { textContent: "Places" }), table(["device", "PCIe root", "NUMA node", "free beside it"], rows)];
}

// -- a pod --------------------------------------------------------------------------------------------------------

const inPath = (name) => name.split("/").map(encodeURIComponent).join("/");
const speed = (sets, which) => `${predicted(sets[which].gbps)}, ${joinedBy(sets, which)}`;
const isSameSet = ({ chosen, first_fit: other }) => String(chosen.gpus) === String(other.gpus);

function setFigures(sets) {
  const several = sets.chosen.gpus.length > 1, names = (set) => set.gpus.map((i) => sets.names[i]).join(", ");
  const one = (which, title) => {
    const made = figure(setGraph(sets, which), el("strong", { textContent: title }), el("br"),
      ...(several ? [speed(sets, which), el("br")] : []), el("small", {}, soft(names(sets[which]))));
    made.className = which;
    return made;
  };
  return el("div", { className: "sets" }, ...(isSameSet(sets) ? [one("chosen", "Berth, and first fit")]
    : [one("chosen", "Berth"), one("first_fit", "First fit on this node")]));
}

// A button that asks which pods to restart, and the command that says the same.
function restartParts(kind, name) {
  const [namespace, own] = name.split("/"), command = `berth defrag ${kind} ${own} -n ${namespace}`;
  const told = quiet("The cheapest pods to restart, and a proof that there is room then. It changes nothing. Also:");
  const button = el("button", { type: "button", className: "search", textContent: "Search" });
  const found = el("div", { className: "restarts" });
  found.setAttribute("aria-live", "polite");
  button.addEventListener("click", async () => {
    button.disabled = true;
    found.replaceChildren(quiet("Searching, for half a minute at most …"));
    const path = `/v1/restarts/${kind === "group" ? "group/" : ""}${inPath(name)}`;
    try { found.replaceChildren(...adviceParts(await ask(path, 60))); } catch (problem) {
      found.replaceChildren(el("p", { textContent: problem.message }));
    }
    button.disabled = false;
  });
  return [told, el("code", { className: "command", textContent: command }), button, found];
}

function adviceParts({ advice: [advice], not_known: notes }) {
  const parts = [el("p", { className: "lead" }, soft(advice.sentence))];
  const goes = ({ goes_to: nodes, waiting_pods: pods, waits }) =>
    [...(nodes.length ? [nodes.join(", ")] : []), ...(pods ? [`would wait: ${waits}`] : [])].join("; ");
  if (advice.is_proved) {
    const rows = advice.moves.map((move) =>
      [move.restart, move.owner || "–", move.frees.join("; "), `${move.cost}`, goes(move)]);
    const total = [`${counted(advice.waiting_gpus, "GPU")} would wait`, "–", "–", `${advice.waiting_cost}`, "–"];
    const heads = ["restart", "owner", "frees", "cost (GPU-hours)", "goes to"];
    if (rows.length) parts.push(table(heads, advice.waiting_gpus ? [...rows, total] : rows));
    parts.push(el("p", {}, soft(advice.proof)));
    parts.push(el("code", { className: "command", textContent: advice.commands.join("\n") }));
  }
  const stays = Object.entries(advice.stays).map(([why, pods]) =>
    `never restarted, because ${why}: ${counted(pods.length, pods[0].startsWith("claim ") ? "claim" : "pod")}`);
  const unknown = notes.map((note) => `not known: ${note}`);
  const others = [advice.jobs, advice.other_schedulers].filter(Boolean);
  return [...parts, ...[...others, ...stays, ...unknown].map((line) => quiet(line))];
}

// The sentence without the first advice, which is in a list below it.
function withoutAdvice(sentence, misses) {
  const first = misses?.[0];
  if (!first) return sentence;
  const clauses = [`; ${first}`, `; it ${first.replace(/^group \S+ /, "")}`, `: ${first}`];
  return clauses.reduce((left, clause) => left.replace(clause, ""), sentence);
}

function boundParts(found) {
  const { at, chosen, runner_up: second, margin } = found.decision;
  const was = found.ended ? "The pod has ended. It was bound" : "Bound";
  const gap = margin < .0005 ? "as good" : `${margin.toFixed(3)} behind`;
  const devices = counted(chosen.devices.length + chosen.reused.length, "device");
  const behind = second ? [" · runner-up ", link("node", second), `, ${gap}`] : [];
  const isBest = chosen.ring_gbps > .999 * chosen.best_gbps;
  const rate = isBest ? `${predicted(chosen.ring_gbps)}, the best for this pod`
    : `${chosen.ring_gbps.toFixed(0)} of ${predicted(chosen.best_gbps)}`;
  const ring = chosen.ring_gbps ? ` · ${rate}` : "";
  const told = el("p", {}, `${was} to `, link("node", chosen.node), " ", age(at), ` ago: ${devices}${ring}`, ...behind);
  return [told, ...(found.sets ? [setFigures(found.sets)] : []), ...pairParts(chosen),
    el("h3", { textContent: "Why this node" }), scoreTable([chosen])];
}

// The devices of a pod that are used together, such as a GPU and its NIC.
function pairParts(chosen) {
  const crowded = chosen.clique ? [`another ComputeDomain has channels in NVLink clique ${chosen.clique}`] : [];
  if (!chosen.pairs.length) return crowded.map((text) => quiet(text));
  const rows = chosen.pairs.map((pair) => [pair.device, pair.other, pair.nearness, pair.note || "–"]);
  const left = chosen.more_pairs && `and ${counted(chosen.more_pairs, "more pair")}`;
  const more = [left, chosen.network, ...crowded].filter(Boolean);
  return [el("h3", { textContent: "Devices beside each other" }), table(["device", "with", "how near", "note"], rows),
    ...more.map((text) => quiet(text))];
}

const openPod = (pod) => open(pod, async () => {
  const found = await ask(`/v1/explain/${inPath(pod)}`), [parts, section] = sections();
  const sentence = found.decision ? "" : withoutAdvice(found.sentence, found.misses);
  if (sentence) parts.push(el("p", { className: "lead" }, soft(sentence)));
  if (found.gang) parts.push(el("p", {}, "All about its group: ", link("group", found.gang)));
  if (found.decision) parts.push(...boundParts(found));
  const facts = found.facts || [];
  const advice = found.misses?.filter((miss) => !facts.includes(miss))
    .map((miss) => miss.replace(`group ${found.gang} `, ""));
  if (advice?.length) section(`What would help${found.gang ? " its group" : ""}`, bullets(advice, "advice"));
  if (facts.length) section("What stands in the way", bullets(facts));
  const isVain = facts.some((fact) => fact.startsWith("freeing devices does not help"));
  const mayHelp = found.outcome === "refused" && !isVain;
  if (mayHelp && !found.gang) section("What to restart", ...restartParts("pod", pod));
  if (found.alone) section("If it were in no group", el("p", {}, soft(found.alone)));
  if (found.best?.length) parts.push(...pairParts(found.best[0]));
  if (found.best?.length) section("Best nodes", scoreTable(found.best));
  if (found.unschedulable?.length) {
    const onFirst = ({ examples, causes }) => (causes.length ? `${examples[0]}: ${causes.join("; ")}` : "–");
    const rows = found.unschedulable.map((n) => [n.nodes, n.reason, n.examples.join(", "), onFirst(n)]);
    section("Why the pod does not fit", table(["nodes", "reason", "examples", "devices"], rows));
  }
  const terms = (found.terms || []).filter((term) => !found.misses?.includes(term));
  if (terms.length) section("Terms of the selectors", bullets(terms));
  return parts;
});

function scoreTable(candidates) {
  const rows = candidates.flatMap((c) => c.parts.map((part, i) => {
    const [node, score] = i ? ["", ""] : [link("node", c.node), c.score.toFixed(3)];
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

// -- a group ------------------------------------------------------------------------------------------------------

const openGroup = (group) => open(group, async () =>
  (await ask(`/v1/explain/group/${inPath(group)}`)).flatMap(groupParts));

function groupParts(found) {
  const misses = found.misses.map((miss) => miss.sentence);
  const [lead, ...clauses] = withoutAdvice(found.sentence, misses).split("; ");
  const list = clauses.length ? [bullets(clauses)] : [];
  const [parts, section] = sections(el("p", { className: "lead" }, soft(lead)), ...list);
  const minimum = found.minimum && `${found.bound} of at least ${found.minimum} bound`;
  const topology = found.topology && `topology ${found.topology}`;
  const label = found.topology_label && `one value of ${found.topology_label}`;
  const facts = [`named by ${found.source}`, minimum, topology, label].filter(Boolean).join(" · ");
  parts.push(quiet(facts, ...(age(found.since) ? [` · ${found.since_event} for `, age(found.since)] : [])));
  if (misses.length) section("What would help", bullets(misses, "advice"));
  if (found.cut_short) parts.push(quiet(found.cut_short));
  const mayHelp = found.outcome === "refused" && (found.room_if_empty ?? found.missing) >= found.missing;
  if (mayHelp) section("What to restart", ...restartParts("group", found.group));
  const row = fleet.groups.find((one) => one.group === found.group);
  if (row && Object.keys(row.nodes).length) section("Where its devices are", nodeFigures(row));
  const when = (m) => (age(m.since) ? el("span", {}, age(m.since), " ago") : "–");
  const members = found.members.map((m) =>
    [link("pod", m.pod), m.state, m.node ? link("node", m.node) : "–", m.reason || "–", when(m)]);
  section("Members", table(["pod", "state", "node", "reason", "created"], members));
  const split = found.parts.map((p) => [p.part, p.pods, p.level, p.domain || "–", p.room]);
  if (split.length) section("Slices and sub-groups", table(["part", "pods", "in one", "where", "room"], split));
  const plan = found.plan.map((p) => [link("pod", p.pod), link("node", p.node), p.devices.join(", ")]);
  if (plan.length) section("Plan", table(["pod", "node", "devices"], plan));
  const names = (h) => (h.pods.length ? h.pods : h.claims).join(", ");
  const holders = found.holders.map((h) => [link("node", h.node), h.devices, names(h), h.state, h.group || "–"]);
  if (holders[0]) section(`Holders ${found.held_in}`, table(["node", "devices", "pods", "state", "group"], holders));
  if (found.more_holders) parts.push(quiet(`and ${found.more_holders} more`));
  return parts;
}

function nodeFigures(row) {
  const drawn = Object.entries(row.nodes).filter(([name]) => fleet.nodes.has(name)).map(([name, lit]) =>
    figure(nodeGraph(fleet.nodes.get(name), { lit }), link("node", name)));
  const more = row.more_nodes ? quiet(`and ${counted(row.more_nodes, "more node")}`) : null;
  return el("div", { className: "sets" }, ...drawn, ...(more ? [more] : []));
}
