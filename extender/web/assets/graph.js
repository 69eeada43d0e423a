"use strict";
// Draws the NVLinks of one node: the GPUs on a circle, the switch in the middle. More links make a thicker line.

function linkGraph(node) {
  const count = node.fabric.links.length, middle = 150, radius = 112, space = "http://www.w3.org/2000/svg";
  const make = (name, attributes, text) => {
    const made = document.createElementNS(space, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const place = (i) => {
    const angle = (2 * Math.PI * i) / count - Math.PI / 2;
    return [middle + radius * Math.cos(angle), middle + radius * Math.sin(angle)];
  };
  const svg = make("svg", { viewBox: "0 0 300 300", role: "img" });
  const most = Math.max(1, ...node.fabric.links.flat(), ...node.fabric.switch_links), wires = [];
  const wire = (from, to, links, about) => {
    const ends = { x1: from[0], y1: from[1], x2: to[0], y2: to[1] };
    const line = make("line", { ...ends, class: "wire", "stroke-width": 1 + (4 * links) / most });
    line.append(make("title", {}, about));
    svg.append(line);
    wires.push(about);
  };
  for (let i = 0; i < count; i++) {
    for (let j = i + 1; j < count; j++) {
      const links = node.fabric.links[i][j];
      const gbps = (links * node.fabric.link_gbps).toFixed(0);
      if (links) wire(place(i), place(j), links, `${i} to ${j}: ${links} NVLinks, ${gbps} GB/s`);
    }
    const switched = node.fabric.switch_links[i];
    if (switched) wire(place(i), [middle, middle], switched, `${i} to the switch: ${switched} NVLinks`);
  }
  if (node.fabric.switch_links.some((n) => n)) {
    const label = make("text", { x: middle, y: middle + 4, "text-anchor": "middle" }, "switch");
    svg.append(make("circle", { cx: middle, cy: middle, r: 24, class: "hub" }), label);
  }
  for (let i = 0; i < count; i++) {
    const [x, y] = place(i), letter = node.gpus[i] || "f", state = letter >= "1" && letter <= "9" ? "s" : letter;
    const fill = getComputedStyle(document.documentElement).getPropertyValue(`--${state}`).trim();
    const dot = make("circle", { cx: x, cy: y, r: 14, fill, stroke: "currentColor" });
    svg.append(dot, make("text", { x, y: y + 4, "text-anchor": "middle" }, String(i)));
  }
  svg.setAttribute("aria-label", wires.length ? `NVLinks: ${wires.join("; ")}` : "No NVLinks between these GPUs");
  const figure = document.createElement("figure");
  figure.style.margin = "0";
  const caption = document.createElement("figcaption");
  caption.className = "quiet";
  const found = wires.length ? "NVLinks" : "No NVLinks";
  caption.textContent = `${found} between these GPUs, source: ${node.fabric.source}`;
  figure.append(svg, caption);
  return figure;
}
