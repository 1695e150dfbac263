// The live page. Two kinds of data come from Fleet: the layout (which nodes, in which order, and their history) and an
// update for every tick. The heat map keeps one byte a node and tick and draws the worst of the nodes that share a line.
"use strict";

const TICKS = 120, LINES = 480;
const CALIBRATING = 1, IDLE = 2, STOPPED = 3, STRAGGLER = 16, HEALTHY = 128;
const byId = (id) => document.getElementById(id);
const state = { layout: -1, nodes: [], cluster: [], clusters: [], cohorts: [], cohort: [], switches: [], switch: [], columns: [], times: [],
  rows: null, ranges: [], places: new Map(), chosen: "", group: "", selected: null, update: null, cursor: null };

// Text goes in as text; nothing that an agent sent is ever read as HTML.
function element(tag, text = "", attributes = {}, children = []) {
  const made = document.createElement(tag);
  if (text !== "") made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
function replace(parent, children) {
  // What has the focus or is being scrolled stays as it is when nothing changed.
  const shell = document.createElement(parent.tagName);
  shell.append(...children);
  if (shell.innerHTML === parent.innerHTML) return;
  const focused = parent.contains(document.activeElement) ? document.activeElement.id : "";
  const scrolled = [...parent.querySelectorAll(".scroll")].map((box) => [box.id, box.scrollTop, box.scrollLeft]);
  parent.replaceChildren(...shell.childNodes);
  for (const [id, top, left] of scrolled) {
    const box = id && byId(id);
    if (box) { box.scrollTop = top; box.scrollLeft = left; }
  }
  if (focused && byId(focused)) byId(focused).focus({ preventScroll: true });
}
const number = (value, digits = 3) => (value === null || value === undefined ? "–" : value.toFixed(digits).replace(/^-(?=[0.]+$)/, ""));
const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);
function money(value, cost) {
  const digits = value < 1000 ? 2 : 0;
  return `${cost.symbol}${value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}
// What has no rate is never shown as 0: nothing is known, or at least so much.
function priced(value, cost, unpriced, unit = "") {
  if (!unpriced) return money(value, cost) + unit;
  return value > 0 ? `≥ ${money(value, cost)}${unit}` : "no rate";
}
function ago(text, now) {
  if (!text) return "";
  const seconds = Math.max(0, now - Date.parse(text) / 1000);
  if (seconds < 90) return `for ${Math.round(seconds)} s`;
  if (seconds < 5400) return `for ${Math.round(seconds / 60)} min`;
  return `for ${(seconds / 3600).toFixed(1)} h`;
}
function bytes(text) {
  const raw = atob(text), out = new Uint8Array(raw.length);
  for (let place = 0; place < raw.length; place++) out[place] = raw.charCodeAt(place);
  return out;
}

// Heat map.

// How bad a byte is, so that the worst node of a line is the one that is seen.
const badness = new Uint16Array(256), colours = new Uint32Array(256);
for (let level = 1; level < 256; level++) {
  badness[level] = level === CALIBRATING ? 2 : level === IDLE ? 1 : level === STOPPED ? 900
    : level < HEALTHY ? 800 - level : 400 - level;
}
function rgb(name) {
  const probe = byId("map");
  const text = getComputedStyle(probe).getPropertyValue(name).trim();
  return [1, 3, 5].map((place) => parseInt(text.slice(place, place + 2), 16));
}
function blend(low, high, share) {
  const [red, green, blue] = low.map((value, place) => Math.round(value + (high[place] - value) * share));
  return (255 << 24) | (blue << 16) | (green << 8) | red;
}
function readColours() {
  const pair = (name) => [rgb(`--${name}-low`), rgb(`--${name}-high`)];
  const [healthyLow, healthyHigh] = pair("healthy"), [slowLow, slowHigh] = pair("straggler");
  colours.fill(0);
  for (const [level, name] of [[CALIBRATING, "--calibrating"], [IDLE, "--idle"], [STOPPED, "--stopped"]]) {
    colours[level] = blend(rgb(name), rgb(name), 0);
  }
  for (let level = STRAGGLER; level < HEALTHY; level++) colours[level] = blend(slowLow, slowHigh, (level - STRAGGLER) / 111);
  // Most healthy nodes score close to 1: the scale is stretched there.
  for (let level = HEALTHY; level < 256; level++) colours[level] = blend(healthyLow, healthyHigh, ((level - HEALTHY) / 127) ** 4);
}
const nodeKey = (cluster, node) => `${cluster}\n${node}`;
function chooseRows() {
  const wanted = state.clusters.indexOf(state.chosen);
  state.rows = [];
  for (let row = 0; row < state.nodes.length; row++) if (wanted < 0 || state.cluster[row] === wanted) state.rows.push(row);
  // The layout is in the order of cohorts; what no switch is known for comes last.
  const order = (row) => (state.switch[row] + state.switches.length + 1) % (state.switches.length + 1);
  if (grouping() === "switch") state.rows.sort((row, other) => state.cluster[row] - state.cluster[other] || order(row) - order(other) || row - other);
  // What shares a line: nodes of one cohort or switch, which are neighbours, or as few neighbours as possible.
  const starts = [];
  state.rows.forEach((row, place) => { if (!grouping() || !place || !sameGroup(row, state.rows[place - 1])) starts.push(place); });
  const count = Math.min(LINES, starts.length);
  state.ranges = [];
  for (let line = 0; line < count; line++) {
    const end = Math.floor(((line + 1) * starts.length) / count);
    state.ranges.push([starts[Math.floor((line * starts.length) / count)], end < starts.length ? starts[end] : state.rows.length]);
  }
  state.places = new Map(state.rows.map((row, place) => [nodeKey(state.clusters[state.cluster[row]], state.nodes[row]), place]));
}
// What the address or the user chose; a grouping by switches needs a topology.
const grouping = () => (state.group === "switch" && !state.switches.length ? "" : state.group);
function sameGroup(row, other) {
  const groups = grouping() === "switch" ? state.switch : state.cohort;
  return state.cluster[row] === state.cluster[other] && groups[row] === groups[other];
}
// Few ticks fill the picture too: the newest is always on the right.
const span = () => Math.min(TICKS, Math.max(24, state.columns.length));
const lines = () => Math.max(1, state.ranges.length);
const rowsOf = (line) => state.ranges[line] || [0, 0];
function lineOf(cluster, node) {
  const place = state.places.get(nodeKey(cluster, node));
  return place === undefined ? -1 : state.ranges.findIndex(([from, to]) => place >= from && place < to);
}
function worst(column, line) {
  const [from, to] = rowsOf(line);
  let best = from, most = -1;
  for (let place = from; place < to && place < state.rows.length; place++) {
    const bad = badness[column[state.rows[place]] || 0];
    if (bad > most) { most = bad; best = place; }
  }
  return state.rows[best];
}
const small = document.createElement("canvas");
function paintColumn(pixels, column, x) {
  for (let line = 0; line < lines(); line++) pixels[line * TICKS + x] = colours[column[worst(column, line)] || 0];
}
function paintAll() {
  small.width = TICKS; small.height = lines();
  const image = small.getContext("2d").createImageData(TICKS, lines());
  const pixels = new Uint32Array(image.data.buffer);
  const first = TICKS - state.columns.length;
  state.columns.forEach((column, place) => paintColumn(pixels, column, first + place));
  small.getContext("2d").putImageData(image, 0, 0);
  show();
}
function paintNewest() {
  const context = small.getContext("2d");
  context.globalCompositeOperation = "copy";
  context.drawImage(small, -1, 0);
  context.globalCompositeOperation = "source-over";
  const image = context.createImageData(1, lines());
  const pixels = new Uint32Array(image.data.buffer), column = state.columns[state.columns.length - 1];
  for (let line = 0; line < lines(); line++) pixels[line] = colours[column[worst(column, line)] || 0];
  context.putImageData(image, TICKS - 1, 0);
  show();
}
function show() {
  const canvas = byId("map"), scale = window.devicePixelRatio || 1;
  const width = Math.round(canvas.clientWidth * scale), height = Math.round(canvas.clientHeight * scale);
  if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
  const context = canvas.getContext("2d");
  context.imageSmoothingEnabled = false;
  context.clearRect(0, 0, width, height);
  if (!state.rows || !state.rows.length) return;
  context.drawImage(small, TICKS - span(), 0, span(), lines(), 0, 0, width, height);
  const cellWidth = width / span(), cellHeight = height / lines();
  context.strokeStyle = context.fillStyle = getComputedStyle(canvas).color;
  drawMarks(context, cellWidth, cellHeight, scale);
  if (!state.cursor) return;
  context.strokeStyle = getComputedStyle(canvas).color;
  context.lineWidth = 2 * scale;
  context.strokeRect((state.cursor.x - TICKS + span()) * cellWidth - scale, state.cursor.line * cellHeight - scale, cellWidth + 2 * scale, Math.max(cellHeight, 3) + 2 * scale);
}
function columnOf(seconds) {
  const place = state.times.findIndex((time) => time >= seconds);
  return place < 0 || seconds < state.times[0] - 1 ? -1 : place + TICKS - state.columns.length;
}
function drawMarks(context, cellWidth, cellHeight, scale) {
  // Jobs are separated by a line, a taint is a square where it began, the selected node has a frame.
  context.lineWidth = scale;
  for (let line = 1; line < lines(); line++) {
    if (!grouping() && !sameGroup(state.rows[rowsOf(line)[0]], state.rows[rowsOf(line - 1)[0]])) context.fillRect(0, line * cellHeight - scale / 2, context.canvas.width, scale);
  }
  for (const taint of state.update ? state.update.taints : []) {
    const line = lineOf(taint.cluster_id, taint.node_id), x = taint.since ? columnOf(Date.parse(taint.since) / 1000) : -1;
    if (line < 0 || x < 0) continue;
    context.lineWidth = 2 * scale;
    context.strokeRect((x - TICKS + span()) * cellWidth, (line + 0.5) * cellHeight - 4 * scale, 8 * scale, 8 * scale);
  }
  const selected = state.selected ? lineOf(state.selected.cluster, state.selected.node) : -1;
  if (selected >= 0) context.strokeRect(scale / 2, selected * cellHeight, context.canvas.width - scale, Math.max(cellHeight, 3 * scale));
}
function nameOf(line) {
  const [from, to] = rowsOf(line), row = state.rows[from];
  if (grouping() === "cohort") return `${state.cohorts[state.cohort[row]]} (${to - from})`;
  if (grouping() === "switch") return `${state.switches[state.switch[row]] || "no switch known"} (${to - from})`;
  return state.nodes[row] + (to - from > 1 ? " …" : "");
}
function showAxes() {
  const canvas = byId("map"), height = canvas.clientHeight / lines(), step = Math.max(1, Math.ceil(16 / height));
  const selected = state.selected ? lineOf(state.selected.cluster, state.selected.node) : -1, names = [];
  for (let line = 0; line < state.ranges.length; line++) {
    if (line !== selected && (line % step || (selected >= 0 && Math.abs(line - selected) < step))) continue;
    const name = element("span", line === selected && !grouping() ? state.selected.node : nameOf(line), line === selected ? { class: "selected" } : {});
    name.style.top = `${(line + 0.5) * height}px`;
    names.push(name);
  }
  byId("map-names").replaceChildren(...names);
  const empty = span() - state.columns.length, wanted = canvas.clientWidth < 400 ? 2 : 4, times = [];
  for (let part = 0; part <= wanted && state.nodes.length && state.times.length > 1; part++) {
    const place = Math.round((part * (state.times.length - 1)) / wanted);
    const label = element("span", new Date(1000 * state.times[place]).toLocaleTimeString());
    label.style.left = `${(100 * (empty + place + (part === wanted ? 1 : 0.5))) / span()}%`;
    times.push(label);
  }
  byId("map-times").replaceChildren(...times);
}
function words(level) {
  if (!level) return "not there";
  if (level < STRAGGLER) return { [CALIBRATING]: "calibrating", [IDLE]: "idle", [STOPPED]: "stopped" }[level] || "";
  return level < HEALTHY ? `straggler, score ${((level - STRAGGLER) / 111).toFixed(2)}` : `healthy, score ${((level - HEALTHY) / 127).toFixed(2)}`;
}
function moveCursor(x, line) {
  if (!state.rows || !state.rows.length) return;
  const first = TICKS - state.columns.length;
  state.cursor = { x: Math.min(TICKS - 1, Math.max(first, x)), line: Math.min(lines() - 1, Math.max(0, line)) };
  const column = state.columns[state.cursor.x - first];
  if (!column) return;
  const row = worst(column, state.cursor.line), [from, to] = rowsOf(state.cursor.line);
  const others = Math.min(to, state.rows.length) - from - 1;
  const when = new Date(1000 * state.times[state.cursor.x - first]).toLocaleTimeString();
  byId("readout").textContent = `${state.nodes[row]} (${state.clusters[state.cluster[row]]}) at ${when}: ${words(column[row])}` +
    (others > 0 ? `; the worst of ${others + 1} nodes on this line` : "");
  state.cursor.row = row;
  show();
}
function listenToMap() {
  const canvas = byId("map");
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    moveCursor(TICKS - span() + Math.floor(((event.clientX - box.left) / box.width) * span()), Math.floor(((event.clientY - box.top) / box.height) * lines()));
  };
  canvas.addEventListener("pointermove", (event) => requestAnimationFrame(() => at(event)));
  canvas.addEventListener("click", (event) => { at(event); askCursor(); });
  canvas.addEventListener("keydown", (event) => {
    const cursor = state.cursor || { x: TICKS - 1, line: 0 };
    const far = Math.max(1, Math.round(lines() / 20));
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], PageUp: [0, -far], PageDown: [0, far],
      Home: [-TICKS, 0], End: [TICKS, 0] }[event.key];
    if (step) moveCursor(cursor.x + step[0], cursor.line + step[1]);
    else if (event.key === "Enter") askCursor();
    else return;
    event.preventDefault();
  });
  new ResizeObserver(() => { show(); showAxes(); }).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); if (state.rows) paintAll(); });
}
function askCursor() {
  if (state.cursor && state.cursor.row !== undefined) ask(state.nodes[state.cursor.row], state.clusters[state.cluster[state.cursor.row]]);
}

// Everything beside the map.

const clock = (text) => (text ? new Date(text).toLocaleString([], { dateStyle: "short", timeStyle: "short" }) : "–");
const effect = (taint) => taint.effect || "annotation only";
const taintInWords = (taint) => `Marked by the operator (${effect(taint)}: ${taint.reason})${taint.since ? ` since ${clock(taint.since)}` : ""}, until ${clock(taint.expires)} unless renewed.`;

function tile(name, value, bad = false) {
  return element("div", "", bad ? { class: "bad" } : {}, [element("dt", name), element("dd", value)]);
}
function showTiles(update) {
  const clusters = update.clusters.filter((item) => !state.chosen || item.cluster_id === state.chosen);
  const sum = (name) => clusters.reduce((total, item) => total + item[name], 0);
  const threshold = clusters.length === 1 ? tile("threshold", number(clusters[0].threshold))
    : tile("clusters with quorum", `${clusters.filter((item) => item.quorum_met).length} of ${clusters.length}`);
  replace(byId("tiles"), [
    tile("stragglers", String(sum("accused")), sum("accused") > 0),
    tile("active nodes", `${sum("active")} of ${sum("expected")}`, clusters.some((item) => item.coverage_low)),
    tile("idle, calibrating", `${sum("idle")}, ${sum("calibrating")}`),
    threshold,
    tile("late ranks", String(update.late_ranks.length + update.stragglers.filter((item) => item.collective).length), update.late_ranks.length > 0),
    tile("tainted nodes", String(countTaints(update))),
    tile("waiting now", priced(update.cost.waiting_per_hour, update.cost, update.cost.gpus_without_rate, "/h"), update.cost.waiting_per_hour > 0),
    tile("waiting so far", priced(update.cost.waiting, update.cost, update.cost.gpus_without_rate)),
  ]);
  const warnings = [];
  for (const item of clusters) {
    if (item.panic) warnings.push(`${item.cluster_id}: too large a share lies below the threshold; thresholds are frozen and nobody should be acted on.`);
    if (item.coverage_low) warnings.push(`${item.cluster_id}: only ${item.active + item.idle + item.calibrating} of ${item.expected} expected nodes report.`);
    if (!item.quorum_met) warnings.push(`${item.cluster_id}: no quorum, so nobody is judged.`);
  }
  const several = update.several_agents;
  if (several.count) warnings.push(`Several agents report as ${several.nodes.slice(0, 3).map((item) => `${item.node_id} (${item.cluster_id})`).join(", ")}${several.count > 3 ? ` and ${several.count - 3} more` : ""}, so nothing acts on what is said of them.`);
  if (update.hidden_nodes) warnings.push(`${update.hidden_nodes} nodes are not shown.`);
  byId("warnings").hidden = !warnings.length;
  byId("warnings").textContent = warnings.slice(0, 5).join(" ");
}
const costInWords = (item, cost) => (item.gpus_without_rate && !item.share ? "its GPUs have no rate"
  : `${priced(item.share_per_hour, cost, item.gpus_without_rate, "/h")}, ${priced(item.share, cost, item.gpus_without_rate)} so far`);
const nodeLink = (item, id) => element("a", `${item.node_id} (${item.cluster_id})`, { href: `#${linkTo(item.cluster_id, item.node_id)}`, id });
function showStragglers(update) {
  const chosen = (item) => !state.chosen || item.cluster_id === state.chosen;
  const cards = update.stragglers.filter(chosen).map((item) => {
    const facts = [ago(item.since, update.time), item.kind, `weakest signal ${item.dominant_signal}`, `cohort ${item.cohort}`];
    if (item.severity !== null && item.severity !== undefined) facts.push(`lost ${percent(item.severity)} of its rate`);
    if (item.cost) facts.push(costInWords(item.cost, update.cost));
    return element("li", "", item.kind === "stopped" ? { class: "stopped-node" } : {}, [
      element("h3", "", {}, [nodeLink(item, `straggler-${item.cluster_id}-${item.node_id}`)]),
      element("p", item.why),
      ...(item.collective ? [element("p", item.collective.why)] : []),
      ...(item.taint ? [element("p", taintInWords(item.taint), { class: "taint" })] : []),
      element("p", facts.filter(Boolean).join(" · "), { class: "facts" }),
    ]);
  });
  // A job that hangs comes first: nothing else matters to it.
  cards.unshift(...update.hangs.filter(chosen).map((item) => element("li", "", { class: "stopped-node" }, [
    element("h3", `${item.job_id ? `job ${item.job_id}` : "a job"} hangs (${item.cluster_id})`),
    element("p", item.why),
    element("p", [ago(item.since, update.time), item.comm && `communicator ${item.comm}`, item.op, `reported by ${item.reported_by}`].filter(Boolean).join(" · "), { class: "facts" }),
  ])));
  for (const item of update.late_ranks.filter(chosen)) {
    cards.push(element("li", "", {}, [
      element("h3", `${item.node_id} (${item.cluster_id})${item.gpu ? `, ${item.gpu}` : item.rank === null ? "" : `, rank ${item.rank}`}`),
      element("p", item.why),
      ...(item.taint ? [element("p", taintInWords(item.taint), { class: "taint" })] : []),
      element("p", [`communicator ${item.comm}`, item.pod && `pod ${item.pod}`, item.job_id && `job ${item.job_id}`, `lag ${number(item.lag_ms, 2)} ms`].filter(Boolean).join(" · "), { class: "facts" }),
    ]));
  }
  if (update.straggler_count > update.stragglers.length) cards.push(element("li", `and ${update.straggler_count - update.stragglers.length} more`));
  if (!cards.length) cards.push(element("li", state.nodes.length ? "Nobody straggles." : "No node has pushed yet.", { class: "well" }));
  replace(byId("stragglers"), cards);
}
let known = null;
function announce(update) {
  const now = new Set([...update.stragglers, ...update.late_ranks].map((item) => item.node_id));
  if (known) {
    const found = [...now].filter((node) => !known.has(node)), gone = [...known].filter((node) => !now.has(node));
    const text = [
      found.length && `${found.slice(0, 5).join(", ")}${found.length > 5 ? ` and ${found.length - 5} more` : ""}: straggler.`,
      gone.length && `${gone.slice(0, 5).join(", ")}${gone.length > 5 ? ` and ${gone.length - 5} more` : ""}: well again.`,
    ].filter(Boolean).join(" ");
    if (text) byId("announcement").textContent = text;
  }
  known = now;
}
function table(id, caption, heads, rows, empty) {
  replace(byId(id), [
    ...(caption ? [element("caption", caption, { class: "quiet" })] : []),
    element("thead", "", {}, [element("tr", "", {}, heads.map((head) => element("th", head, { scope: "col" })))]),
    element("tbody", "", {}, rows.length ? rows.map(([head, ...cells]) =>
      element("tr", "", {}, [element("th", head, { scope: "row" }), ...cells.map((cell) => element("td", cell))]),
    ) : [element("tr", "", {}, [element("td", empty, { colspan: String(heads.length) })])]),
  ]);
}
function showCost(update) {
  const cost = update.cost;
  const rows = cost.culprits.filter((item) => !state.chosen || item.cluster_id === state.chosen).slice(0, 20).map((item) => [
    item.node_id, item.cluster_id, priced(item.share, cost, item.gpus_without_rate), priced(item.saving_alone, cost, item.gpus_without_rate),
    item.straggling_now ? priced(item.share_per_hour, cost, item.gpus_without_rate, "/h") : "–",
    percent(item.severity), `${Math.round(item.straggler_seconds)} s`,
  ]);
  table("cost", `${priced(cost.waiting, cost, cost.gpus_without_rate)} of ${priced(cost.cost, cost, cost.gpus_without_rate)} since ${new Date(cost.since).toLocaleString()}`,
    ["node", "cluster", "share of the waiting", "saved if it alone were well", "now", "severity", "time"], rows, "Nobody has cost anything yet.");
  byId("cost-note").textContent = cost.missing_rates.length
    ? `Not in these sums: ${cost.missing_rates.map((item) => `${item.gpus} GPUs (${item.gpu_model || "unknown model"}: ${item.why})`).join("; ")}.` : "";
}
const countTaints = (update) => Object.entries(update.taint_counts)
  .reduce((total, [cluster, count]) => total + (!state.chosen || cluster === state.chosen ? count : 0), 0);
function showTaints(update) {
  const rows = update.taints.filter((item) => !state.chosen || item.cluster_id === state.chosen).map((item) => [
    item.node_id, item.cluster_id, effect(item), item.reason, clock(item.since), clock(item.expires),
  ]);
  const hidden = countTaints(update) - rows.length;
  table("taints", hidden > 0 ? `the newest ${rows.length} of ${rows.length + hidden}` : "",
    ["node", "cluster", "taint", "reason", "since", "ends unless renewed"], rows, "The operator has reported no taint since Fleet started.");
}
function showCohorts(update) {
  const rows = update.cohorts.filter((item) => !state.chosen || item.cluster_id === state.chosen).map((item) => [
    item.name, item.cluster_id, String(item.active), number(item.median), number(item.mad, 4),
    number(item.threshold) + (item.merged_into ? ` (from ${item.merged_into})` : ""),
  ]);
  table("cohorts", update.cohort_count > update.cohorts.length ? `the largest ${update.cohorts.length} of ${update.cohort_count}` : "",
    ["cohort", "cluster", "active nodes", "median score", "MAD", "threshold"], rows, "No nodes yet.");
}
function showCollectives(update) {
  const boxes = update.collectives.communicators.filter((item) => !state.chosen || item.cluster_id === state.chosen).map((item) => {
    // Lags of microseconds draw no long bars.
    const most = Math.max(1, ...item.lags.map((lag) => Math.abs(lag.lag_ms || 0)));
    const late = item.verdict === "culprit" ? item.finding : null;
    const same = (lag) => late && lag.rank === late.rank && lag.gpu === late.gpu && lag.node_id === late.node_id;
    const rows = item.lags.filter((lag) => lag.lag_ms !== null).map((lag) => element("tr", "", same(lag) ? { class: "culprit" } : {}, [
      element("th", lag.gpu || String(lag.rank), { scope: "row" }), element("td", lag.node_id || "–", { class: "words" }),
      element("td", "", { class: "bars", "aria-hidden": "true" }, [element("span", "", { class: "bar", "data-share": (Math.max(0, lag.lag_ms) / most).toFixed(4) })]),
      element("td", `${number(lag.lag_ms, 2)} ms`),
    ]));
    const title = `${item.comm}, ${item.ranks} ranks`;
    const verdict = late ? `${late.gpu ? `${late.gpu} of ${late.node_id}` : `Rank ${late.rank}`} is late: ${percent(item.finding.share)} of the time is lost to it alone.` : `${item.verdict.replace(/^none:/, "nobody is late:").replace(/^./, (letter) => letter.toUpperCase())}.`;
    return element("div", "", {}, [
      element("p", verdict, { class: "quiet" }),
      element("div", "", { class: "scroll", id: `lags-${item.cluster_id}-${item.comm}-${item.ranks}`, role: "region", tabindex: "0", "aria-label": `Lags of ${title}` }, [
        element("table", "", {}, [element("caption", `${title} (${item.cluster_id})`),
          element("thead", "", {}, [element("tr", "", {}, ["rank", "node", "", "lag"].map((head) => head ? element("th", head, { scope: "col", class: head === "node" ? "words" : "" }) : element("td")))]),
          element("tbody", "", {}, rows)]),
      ]),
    ]);
  });
  if (!boxes.length) boxes.push(element("p", "No agent tells of collectives.", { class: "quiet" }));
  boxes.unshift(...update.collectives.network.filter((item) => !state.chosen || item.cluster_id === state.chosen)
    .map((item) => element("p", `Network of ${item.cluster_id}: ${item.why}`)));
  replace(byId("collectives"), boxes);
  // Widths are set here because the page's policy allows no inline styles in markup.
  for (const bar of byId("collectives").querySelectorAll(".bar")) bar.style.width = `${100 * Number(bar.dataset.share)}%`;
}
function showClusters() {
  const select = byId("cluster"), names = ["", ...state.clusters];
  if ([...select.options].map((option) => option.value).join("\n") === names.join("\n")) return;
  select.replaceChildren(...names.map((name) => element("option", name || "all clusters", { value: name })));
  select.value = names.includes(state.chosen) ? state.chosen : "";
  if (state.clusters.length) state.chosen = select.value;
}
function showAll() {
  const update = state.update;
  if (!update) return;
  byId("empty").hidden = state.nodes.length > 0;
  showAxes(); refreshNode(); showTiles(update); showStragglers(update); showCollectives(update); showTaints(update); showCost(update); showCohorts(update);
  byId("map-summary").textContent = `${state.rows ? state.rows.length : 0} nodes, ${update.straggler_count} stragglers.`;
}

// Data.

let loading = null;
async function loadLayout() {
  const answer = await fetch("/api/v1/page/layout");
  const layout = await answer.json();
  const count = layout.nodes.length, all = bytes(layout.levels);
  Object.assign(state, { layout: layout.layout, nodes: layout.nodes, cluster: layout.cluster, clusters: layout.clusters, times: layout.times,
    cohorts: layout.cohorts, cohort: layout.cohort, switches: layout.switches, switch: layout.switch });
  byId("switches").hidden = !state.switches.length;
  state.columns = layout.times.map((_, place) => all.subarray(place * count, (place + 1) * count));
  showClusters();
  chooseRows();
  paintAll();
}
async function take(update) {
  if (!update) return;
  const started = performance.now();
  state.update = update;
  if (update.layout !== state.layout) {
    loading ??= loadLayout().finally(() => { loading = null; });
    await loading;
  } else if (update.time > state.times[state.times.length - 1]) {
    state.columns.push(bytes(update.column));
    state.times.push(update.time);
    if (state.columns.length > TICKS) { state.columns.shift(); state.times.shift(); }
    paintNewest();
  }
  announce(update);
  showAll();
  byId("connection").classList.remove("broken");
  byId("connection").textContent = `live, ${new Date(1000 * update.time).toLocaleTimeString()}, every ${update.interval_seconds} s`;
  document.body.dataset.updates = String(1 + Number(document.body.dataset.updates || 0));
  document.body.dataset.updateMilliseconds = (performance.now() - started).toFixed(2);
}
let latest = null, busy = false;
async function takeLatest(update) {
  // A page in the background or a slow machine skips ticks instead of falling behind.
  latest = update;
  if (busy) return;
  busy = true;
  try { while (latest) { const next = latest; latest = null; await take(next); } } finally { busy = false; }
}
function broken(text) { byId("connection").classList.add("broken"); byId("connection").textContent = text; }
async function poll() {
  try {
    const answer = await fetch("/api/v1/page/update");
    await takeLatest(await answer.json());
  } catch { broken("Fleet does not answer; trying again"); }
  setTimeout(poll, 1000 * Math.max(1, state.update ? state.update.interval_seconds : 2));
}
function listen() {
  const source = new EventSource("/api/v1/page/events");
  source.onmessage = (event) => takeLatest(JSON.parse(event.data)).catch(() => broken("Fleet does not answer; trying again"));
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) poll();
    else broken("Fleet does not answer; trying again");
  };
}
function choose(name, value) { state[name] = value; state.cursor = null; chooseRows(); paintAll(); showAll(); keepLink(); }
readColours();
listenToMap();
for (const [id, name] of [["cluster", "chosen"], ["group", "group"]]) byId(id).addEventListener("change", (event) => choose(name, event.target.value));
