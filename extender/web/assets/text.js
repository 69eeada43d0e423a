"use strict";
// The theme, elements, texts and ages. Names come from the cluster, so they are only set as text, never as HTML.

const $ = (id) => document.getElementById(id);
const size = (bytes) => (bytes ? `${(bytes / 2 ** 30).toFixed(bytes < 2 ** 33 ? 1 : 0)} GiB` : "–");
const noun = (count, one) => (count === 1 ? one : `${one}s`);
const shown = (value) => value.toLocaleString("en"); // a number with its thousands, or a text
const counted = (count, one) => `${shown(count)} ${noun(count, one)}`;
const gbps = (value) => `${value.toFixed(0)} GB/s`;
const predicted = (value) => `${gbps(value)} predicted`;
const natural = new Intl.Collator("en", { numeric: true }).compare;

function el(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// A name as text that may break after - . / _ and =, so that no word and no number is broken in its middle.
function soft(text) {
  const parts = text.split(/(?<=[-/_=:,]|(?<!\d)\.)(?=.)/);
  return el("span", { className: "name" }, ...parts.flatMap((part, i) => (i ? [el("wbr"), part] : [part])));
}

const quiet = (...content) => el("p", { className: "quiet" }, ...content);
const bullets = (texts, kind = "bullets") =>
  el("ul", { className: kind }, ...texts.map((text) => el("li", {}, soft(text))));

// -- theme --------------------------------------------------------------------------------------------------------

const THEMES = ["auto", "light", "dark"], systemDark = matchMedia("(prefers-color-scheme: dark)");
const chosenTheme = () => localStorage.getItem("berth-theme") || THEMES[0];
function useTheme() {
  const isDark = chosenTheme() === "dark" || (chosenTheme() === "auto" && systemDark.matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
}
useTheme(); // before the page is drawn

// -- ages ---------------------------------------------------------------------------------------------------------

const clock = { offset: 0 }; // milliseconds by which the server's clock is ahead of this one
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

function duration(seconds) {
  const [length, unit] = UNITS.find(([long]) => seconds >= long) || [1, "s"];
  return `${Math.max(0, Math.floor(seconds / length))}\u00a0${unit}`;
}

const secondsSince = (at) => (Date.now() + clock.offset - Date.parse(at)) / 1000;

function age(at) {
  if (!at || Number.isNaN(Date.parse(at))) return null;
  const made = el("time", { dateTime: at, title: new Date(at).toLocaleString() });
  made.textContent = duration(secondsSince(at));
  return made;
}

setInterval(() => {
  for (const time of document.querySelectorAll("time")) time.textContent = duration(secondsSince(time.dateTime));
}, 5000);

// -- requests -----------------------------------------------------------------------------------------------------

let token = sessionStorage.getItem("berth-token") || "";
const headers = () => (token ? { headers: { Authorization: `Bearer ${token}` } } : {});

async function ask(path, seconds = 30) {
  const reply = await fetch(path, { ...headers(), signal: AbortSignal.timeout(1000 * seconds) });
  if (reply.status === 401) {
    $("token").hidden = false;
    $("refused").hidden = !token;
    throw new Error("a token is needed");
  }
  const answer = await reply.json();
  if (!reply.ok) throw new Error(answer.error || reply.statusText);
  return answer;
}
