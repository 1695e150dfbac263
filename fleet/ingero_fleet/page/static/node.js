// The selected node: why it is, or is not, a straggler, with its history as a chart, and a link that keeps the selection.
"use strict";

// The link: #node=…&of=cluster of the node&cluster=…&by=cohort

function linkTo(cluster, node) {
  const parts = { node, of: cluster, cluster: state.chosen, by: state.group };
  return new URLSearchParams(Object.entries(parts).filter(([, value]) => value)).toString();
}
function keepLink() {
  const chosen = state.selected || { cluster: "", node: "" };
  history.replaceState(null, "", `#${linkTo(chosen.cluster, chosen.node)}`);
}
function followLink() {
  const parts = new URLSearchParams(location.hash.slice(1));
  if (![...parts.keys()].some((name) => ["node", "cluster", "by"].includes(name))) return;
  state.chosen = parts.get("cluster") || "";
  state.group = ["cohort", "switch"].includes(parts.get("by")) ? parts.get("by") : "";
  byId("group").value = state.group;
  if (state.clusters.length) byId("cluster").value = state.chosen;
  if (state.rows) { chooseRows(); paintAll(); showAll(); }
  if (parts.get("node")) ask(parts.get("node"), parts.get("of") || "");
}

// Why.

async function ask(node, cluster = state.chosen) {
  byId("ask-node").value = node;
  const facts = await whyOf(node, cluster);
  if (!facts) return;
  state.selected = { cluster: facts.cluster_id, node: facts.node_id };
  keepLink();
  showWhy(facts);
  if (state.rows) { show(); showAxes(); }
  await refreshNode();
}
async function whyOf(node, cluster) {
  const query = new URLSearchParams({ node_id: node });
  if (cluster) query.set("cluster_id", cluster);
  const answer = await fetch(`/api/v1/why?${query}`);
  const facts = await answer.json();
  if (answer.ok) return facts;
  replace(byId("why"), [element("p", facts.detail || "Fleet does not answer")]);
  byId("node").hidden = true;
  state.selected = null;
  return null;
}
let shown = "";
function showWhy(facts) {
  const signals = Object.entries(facts.signals).filter(([, value]) => value !== null).map(([name, value]) => `${name} ${value.toFixed(2)}`);
  shown = whyState(facts);
  replace(byId("why"), [
    element("h3", `${facts.node_id} (${facts.cluster_id})`),
    element("p", facts.why),
    ...(facts.collectives ? [element("p", facts.collectives.why)] : []),
    ...(facts.network ? [element("p", `Network: ${facts.network.why}`)] : []),
    ...(facts.taint ? [element("p", taintInWords(facts.taint))] : []),
    element("p", `${facts.peers.active} active nodes in cohort ${facts.peers.cohort}, median ${number(facts.peers.median)}` +
      (signals.length ? `; ${signals.join(", ")}` : "") + `; last push ${facts.last_push_age_seconds.toFixed(1)} s before the tick.`),
  ]);
}
// A screen reader reads the reason again only when the state has changed, not at every tick.
const whyState = (facts) => JSON.stringify([facts.cluster_id, facts.node_id, facts.state, facts.straggler, facts.verdict && facts.verdict.state, Boolean(facts.taint)]);

let refreshing = false;
async function refreshNode() {
  if (!state.selected || refreshing) return;
  refreshing = true;
  const { cluster, node } = state.selected;
  try {
    const facts = await whyOf(node, cluster);
    if (!facts) return;
    const answer = await fetch(`/api/v1/page/node?${new URLSearchParams({ cluster_id: cluster, node_id: node })}`);
    const points = await answer.json();
    if (!state.selected || state.selected.node !== node || state.selected.cluster !== cluster) return;
    if (whyState(facts) !== shown) showWhy(facts);
    byId("node").hidden = !points.times.length;
    if (points.times.length) drawNode(facts, points);
  } catch { broken("Fleet does not answer; trying again"); } finally { refreshing = false; }
}

// Chart: above the node's value with its peers and its expectation, below the evidence and the alarm level.

function svg(tag, attributes, text = "") {
  const made = document.createElementNS(byId("chart").namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.textContent = text;
  return made;
}
function line(values, x, y) {
  let path = "", pen = "M";
  values.forEach((value, place) => {
    if (value === null) { pen = "M"; return; }
    path += `${pen}${x(place).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
  });
  return path;
}
function area(low, high, x, y) {
  const places = low.map((_, place) => place).filter((place) => low[place] !== null && high[place] !== null);
  if (!places.length) return "";
  const point = (values) => (place) => `${x(place).toFixed(1)} ${y(values[place]).toFixed(1)}`;
  return `M${places.map(point(high)).join("L")}L${places.reverse().map(point(low)).join("L")}Z`;
}
// Onset and alarm, taint, and starts: where the node appeared, or began to calibrate after work.
function eventsOf(facts, times) {
  const verdict = facts.verdict || {}, found = [["onset", verdict.since], ["alarm", verdict.detected], ["well", verdict.recovered],
    ["taint", facts.taint && facts.taint.since]].filter(([, text]) => text).map(([name, text]) => [name, Date.parse(text) / 1000]);
  const place = state.places.get(nodeKey(facts.cluster_id, facts.node_id));
  const row = place === undefined ? -1 : state.rows[place];
  for (let column = 1; row >= 0 && column < state.columns.length; column++) {
    const before = state.columns[column - 1][row], now = state.columns[column][row];
    if (now && !before) found.push(["start", state.times[column]]);
    else if (now === CALIBRATING && before > CALIBRATING) found.push(["restart", state.times[column]]);
  }
  return found.filter(([, time]) => time >= times[0] && time <= times[times.length - 1] + 1).sort(([, one], [, other]) => one - other);
}
function drawNode(facts, points) {
  const chart = byId("chart"), width = Math.max(200, chart.clientWidth), height = Math.max(160, chart.clientHeight);
  const left = 46, right = width - 8, top = 22, middle = 0.6 * height, bottom = height - 22, last = points.times.length - 1;
  const x = (place) => left + ((right - left) * place) / Math.max(1, last);
  const at = (time) => x(Math.max(0, points.times.findIndex((tick) => tick >= time - 1e-3)));
  const finite = (...lists) => lists.flat().filter((value) => value !== null);
  const most = 1.1 * Math.max(1e-9, ...finite(points.value, points.expected, points.peers.high));
  const y = (value) => middle - 14 - ((middle - 14 - top) * value) / most;
  const strongest = Math.log1p(Math.max(1, ...finite(points.evidence, points.level)));
  const z = (value) => bottom - ((bottom - middle - 14) * Math.log1p(Math.max(0, value))) / strongest;
  const kind = facts.rate === null ? "score" : "rate", short = (value) => String(Number(value.toPrecision(3)));
  const label = (text, place, level, anchor = "end") => svg("text", { x: place, y: level, "text-anchor": anchor }, text);
  const clockAt = (place) => new Date(1000 * points.times[place]).toLocaleTimeString();
  const events = eventsOf(facts, points.times);
  chart.setAttribute("viewBox", `0 0 ${width} ${height}`);
  chart.replaceChildren(
    svg("path", { class: "axis", d: `M${left} ${top}V${y(0)}H${right}M${left} ${middle + 14}V${bottom}H${right}` }),
    label(short(most), left - 4, top + 8), label("0", left - 4, y(0)), label(kind, left + 4, top - 8, "start"),
    label("evidence", left + 4, middle + 8, "start"), label("0", left - 4, bottom), label(short(Math.expm1(strongest)), left - 4, middle + 22),
    label(clockAt(0), left, height - 6, "start"), label(clockAt(last), right, height - 6),
    svg("path", { class: "peers", d: area(points.peers.low, points.peers.high, x, y) }),
    svg("path", { class: "median", d: line(points.peers.median, x, y) }),
    svg("path", { class: "expected", d: line(points.expected, x, y) }),
    svg("path", { class: "own", d: line(points.value, x, y) }),
    svg("path", { class: "level", d: line(points.level, x, z) }),
    svg("path", { class: "evidence", d: line(points.evidence, x, z) }),
    ...events.flatMap(([name, time], order) => [
      svg("path", { class: "event", "data-event": name, d: `M${at(time).toFixed(1)} ${top}V${bottom}` }),
      label(name, Math.min(right, at(time) + 3), top + 12 * (1 + (order % 4)), at(time) > right - 50 ? "end" : "start"),
    ]),
  );
  const now = (values) => number(values[last]);
  byId("chart-summary").textContent = `${facts.node_id} (${facts.cluster_id}): its ${kind} is ${now(points.value)}, expected ${now(points.expected)}; its peers have ${now(points.peers.median)} ` +
    `(${now(points.peers.low)} to ${now(points.peers.high)}). Evidence ${now(points.evidence)}, alarm level ${now(points.level)}.` +
    events.map(([name, time]) => ` ${name[0].toUpperCase()}${name.slice(1)} at ${new Date(1000 * time).toLocaleTimeString()}.`).join("");
}

byId("ask").addEventListener("submit", (event) => { event.preventDefault(); ask(byId("ask-node").value.trim()); });
addEventListener("hashchange", followLink);
followLink();
listen();
