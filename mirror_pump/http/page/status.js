
"use strict";
// Everything that comes from the server is set as text or as a number: nothing is ever parsed as HTML.
const REFRESH = 5000, TIMEOUT = 10000, PAGE = 200;
const LEAVING = ["sealing", "tiering", "tiered"];
const STATES = ["failed", "waiting", "copying", "filling", "live", "dropped"];
const STATE_CLASS = {failed: "critical", waiting: "warning", copying: "busy", filling: "busy", live: "good", dropped: ""};
const PHASES = {
  starting: ["starting", "busy"], standby: ["standby", ""], leading: ["starting Spark", "busy"],
  streaming: ["streaming", "good"], retrying: ["retrying", "warning"],
};
const view = {status: null, history: null, error: null, at: 0, states: new Set(), search: "", limit: PAGE};

// ---- making elements -------------------------------------------------------------------------------------------

function element(tag, properties, ...children) {
  const made = document.createElement(tag);
  return filled(made, properties, children);
}

function svg(tag, properties, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  return filled(made, properties, children);
}

function filled(made, properties, children) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child !== null && child !== undefined) made.append(child instanceof Node ? child : String(child));
  }
  return made;
}

// Makes `parent` hold what `wanted` are, and leaves nodes that are so already: focus and selections stay.
function show(parent, wanted) {
  wanted = wanted.filter((node) => node !== null);
  wanted.forEach((node, place) => {
    const present = parent.childNodes[place];
    if (present === undefined) parent.append(node);
    else if (!present.isEqualNode(node)) {
      if (present.nodeType === Node.ELEMENT_NODE && present.nodeName === node.nodeName) {
        for (const {name} of [...present.attributes]) if (!node.hasAttribute(name)) present.removeAttribute(name);
        for (const {name, value} of [...node.attributes]) if (present.getAttribute(name) !== value) present.setAttribute(name, value);
        if (present.nodeName === "PROGRESS") present.value = node.value;
        show(present, [...node.childNodes]);
      } else present.replaceWith(node);
    }
  });
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
}

const byId = (id) => document.getElementById(id);
const text = (id, value) => { const node = byId(id); if (node.textContent !== value) node.textContent = value; };

// ---- values as text --------------------------------------------------------------------------------------------

const whole = new Intl.NumberFormat("en", {maximumFractionDigits: 0});
const known = (value) => value !== null && value !== undefined;

const count = (value) => known(value) ? whole.format(value) : "–";

function size(value) {
  if (!known(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0, number = Math.abs(value);
  while (number >= 1024 && unit < units.length - 1) { number /= 1024; unit += 1; }
  return `${value < 0 ? "−" : ""}${unit ? number.toFixed(1) : number} ${units[unit]}`;
}

function duration(seconds) {
  if (!known(seconds)) return "–";
  if (seconds < 60) return seconds === 0 ? "0 s" : seconds < 10 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.round(minutes / 1440)} days`;
}

function rate(value) {
  if (!known(value)) return "–";
  return value >= 10 || value === 0 ? count(value) : value.toFixed(1);
}

const clock = new Intl.DateTimeFormat("en-GB", {hour: "2-digit", minute: "2-digit", second: "2-digit"});
const minute = new Intl.DateTimeFormat("en-GB", {hour: "2-digit", minute: "2-digit"});
const day = new Intl.DateTimeFormat("en-GB", {dateStyle: "medium", timeStyle: "medium"});
const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

function moment(value) {
  if (!known(value)) return "–";
  const when = new Date(value);
  if (Number.isNaN(when.getTime())) return String(value);
  const node = element("time", {datetime: when.toISOString(), title: when.toISOString()});
  node.textContent = (Date.now() - when.getTime() < 43200000 ? clock : day).format(when);
  return node;
}

// What is between backticks, as in Markdown, is code.
function prose(value) {
  return String(value).split("`").map((part, place) => place % 2 ? element("code", null, part) : part);
}

// ---- parts of the page -----------------------------------------------------------------------------------------

function pill(label, kind) { return element("span", {class: `pill ${kind || ""}`.trim()}, label); }

function tile(name, value, detail, kind) {
  return element("div", null, element("dt", null, name),
    element("dd", {class: `value ${kind ? `is-${kind}` : ""}`.trim()}, value), element("dd", {class: "detail"}, detail));
}

function facts(id, pairs) {
  show(byId(id), pairs.filter(Boolean).flatMap(([name, value]) => [element("dt", null, name), element("dd", null, value)]));
}

function drawHead() {
  const {status, history} = view;
  const pump = history && history.pump;
  const [label, kind] = pump ? PHASES[pump.phase] || [pump.phase, ""] : ["unknown", ""];
  const phase = byId("phase");
  text("phase", label);
  phase.className = `pill ${kind}`.trim();
  if (!status) return;
  text("database", status.database);
  text("warehouse", status.warehouse);
  const critical = status.alerts.filter((alert) => alert.severity === "critical").length;
  const health = byId("health");
  text("health", status.alerts.length ? plural(status.alerts.length, "problem") : "no problems");
  health.className = `pill ${critical ? "critical" : status.alerts.length ? "warning" : "good"}`;
  health.hidden = false;
  const lag = pump && known(pump.lag_seconds) ? pump.lag_seconds : status.lag_seconds;
  const headline = critical ? plural(critical, "problem") : known(lag) ? `${duration(lag)} behind` : "mirror-pump";
  document.title = `${headline} · ${status.database}`;
}

function drawConnection() {
  const problem = view.error || (view.history && view.history.problem);
  document.body.classList.toggle("stale", Boolean(problem) && Boolean(view.status));
  const since = view.at ? `, what follows is of ${clock.format(new Date(view.at))}` : "";
  show(byId("connection"), problem ? [element("p", {class: "banner critical"}, `${problem}${view.status ? since : ""}`)] : []);
}

function drawAlerts() {
  const alerts = view.status.alerts;
  byId("problems").hidden = alerts.length === 0;
  show(byId("alerts"), alerts.map((alert) => element("li", {class: alert.severity === "critical" ? "is-critical" : null},
    element("div", {class: "what"}, pill(alert.severity, alert.severity === "critical" ? "critical" : "warning"),
      prose(alert.table ? `${alert.table}: ${alert.message}` : alert.message)),
    alert.remedy ? element("div", {class: "todo"}, "What to do: ", prose(alert.remedy)) : null)));
}

function drawTiles() {
  const {status, history} = view, slot = status.slot;
  const lag = history && history.pump && known(history.pump.lag_seconds) ? history.pump.lag_seconds : status.lag_seconds;
  const failed = status.tables.filter((table) => table.state === "failed").length;
  const live = status.tables.filter((table) => table.state === "live").length;
  const due = status.maintenance.tables_due;
  show(byId("tiles"), [
    status.streams ? tile("Lag", duration(lag), `${size(status.lag_bytes)} of WAL behind`)
      : tile("Lag", "none", "no stream: tiered tables only"),
    tile("Frontier", element("span", {class: "mono"}, status.frontier),
      known(status.commit_time) ? ["newest commit ", moment(status.commit_time)] : "nothing published yet"),
    tile("Rate", `${rate(history && history.changes_per_second)}/s`,
      `changes; WAL ${size(history && known(history.wal_bytes_per_second) ? Math.round(history.wal_bytes_per_second) : null)}/s`),
    tile("Slot retains", status.streams ? size(slot.retained_bytes) : "nothing", invalidation(), slot.error ? "critical" : slot.wal_status === "unreserved" ? "critical" : null),
    tile("Tables live", `${count(live)} of ${count(status.tables.length)}`,
      failed ? `${plural(failed, "table")} failed` : "none failed", failed ? "critical" : null),
    tile("Maintenance", due ? `due for ${count(due)}` : "none due",
      status.maintenance.served ? "a maintainer runs" : "no maintainer runs", due && !status.maintenance.served ? "warning" : null),
  ]);
}

function invalidation() {
  const slot = view.status.slot, left = view.history && view.history.seconds_to_invalidation;
  if (!view.status.streams) return "no slot is needed";
  if (slot.error) return "no pump can resume from it";
  if (!known(slot.safe_wal_bytes)) return "no limit is set";
  if (slot.safe_wal_bytes <= 0) return "may be invalidated at any time";
  return `${size(slot.safe_wal_bytes)} until invalidation${known(left) ? `, in ${duration(left)}` : ""}`;
}

// ---- plots -----------------------------------------------------------------------------------------------------

function steps(most) {
  const raw = most / 3, power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((step) => step >= raw);
}

function drawPlot(id, values, format, describe) {
  const host = byId(id), samples = view.history.samples;
  const points = samples ? samples.at.map((at, place) => [at, values(samples)[place]]) : [];
  const seen = points.filter(([, value]) => known(value));
  if (seen.length < 2) {
    show(host, [element("p", {class: "empty"}, "Samples are being taken: a plot needs two.")]);
    return;
  }
  const width = Math.max(280, host.clientWidth), height = 176, left = 52, right = 8, top = 14, bottom = 22;
  const end = points[points.length - 1][0], start = end - 3600;
  const most = Math.max(...seen.map(([, value]) => value), 0.001);
  const step = steps(most), ceiling = Math.ceil(most / step) * step;
  const x = (at) => left + (at - start) / (end - start) * (width - left - right);
  const y = (value) => height - bottom - value / ceiling * (height - top - bottom);
  const marks = [];
  for (let value = 0; value <= ceiling * 1.001; value += step) {
    marks.push(svg("line", {class: "rule", x1: left, x2: width - right, y1: y(value), y2: y(value)}),
      svg("text", {x: left - 8, y: y(value) + 4, "text-anchor": "end"}, format(value).replace(/\.0(?= |$)/, "")));
  }
  const every = width < 420 ? 1800 : 900;
  for (let at = Math.ceil(start / every) * every; at <= end; at += every) {
    marks.push(svg("text", {x: x(at), y: height - 6, "text-anchor": x(at) > width - 24 ? "end" : "middle"}, minute.format(new Date(at * 1000))));
  }
  const runs = [];
  let last = -Infinity;
  for (const [at, value] of points) {
    if (!known(value)) { last = -Infinity; continue; }
    if (at - last > 6 * view.history.interval_seconds) runs.push([]);
    runs[runs.length - 1].push([x(at), y(value)]);
    last = at;
  }
  const path = (run) => run.map(([px, py], place) => `${place ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
  const shapes = runs.flatMap((run) => [
    svg("path", {class: "area", d: `${path(run)}L${run[run.length - 1][0].toFixed(1)} ${y(0)}L${run[0][0].toFixed(1)} ${y(0)}Z`}),
    svg("path", {class: "line", d: path(run)}),
  ]);
  const summary = describe(seen[seen.length - 1][1], Math.max(...seen.map(([, value]) => value)));
  const drawing = svg("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": summary},
    ...marks, ...shapes, svg("g", {class: "pointer"}));
  const present = host.querySelector("svg");
  const shown = present && present.querySelector(".pointer");
  // The pointer's reading stays while the plot is drawn anew under it.
  if (shown && shown.childNodes.length && host.dataset.at) {
    host.plot = {seen, x, y, width, top, height, bottom, format};
    show(host, [drawing]);
    point(host, Number(host.dataset.at));
    return;
  }
  show(host, [drawing]);
  host.plot = {seen, x, y, width, top, height, bottom, format};
}

function point(host, wanted) {
  const plot = host.plot, layer = host.querySelector(".pointer");
  if (!plot || !layer) return;
  if (wanted === null) { delete host.dataset.at; show(layer, []); return; }
  const [at, value] = plot.seen.reduce((best, sample) => Math.abs(sample[0] - wanted) < Math.abs(best[0] - wanted) ? sample : best);
  host.dataset.at = String(at);
  const px = plot.x(at), side = px > plot.width / 2 ? "end" : "start";
  show(layer, [
    svg("line", {class: "cursor", x1: px, x2: px, y1: plot.top, y2: plot.height - plot.bottom}),
    svg("circle", {class: "dot", cx: px, cy: plot.y(value), r: 4.5}),
    svg("text", {class: "reading", x: px + (side === "end" ? -8 : 8), y: plot.top - 2, "text-anchor": side},
      `${plot.format(value)} at ${clock.format(new Date(at * 1000))}`),
  ]);
}

function follow(id) {
  const host = byId(id);
  host.addEventListener("pointermove", (event) => {
    if (!host.plot) return;
    const box = host.getBoundingClientRect(), {seen, x} = host.plot, wanted = event.clientX - box.left;
    point(host, seen.reduce((best, sample) => Math.abs(x(sample[0]) - wanted) < Math.abs(x(best[0]) - wanted) ? sample : best)[0]);
  });
  host.addEventListener("pointerleave", () => point(host, null));
}

// ---- tables ----------------------------------------------------------------------------------------------------

function drawCopies() {
  const copies = view.history.copies || [];
  byId("copies-section").hidden = copies.length === 0;
  show(byId("copies"), copies.map((copy) => {
    const left = known(copy.seconds_left) ? `about ${duration(copy.seconds_left)} left` : "time left not known yet";
    const planned = copy.chunks_total ? `${count(copy.chunks_done)} of ${plural(copy.chunks_total, "chunk")}, ${plural(copy.rows, "row")}, ${left}` : "not planned yet";
    return element("li", null,
      element("div", {class: "head"}, element("span", {class: "name"}, copy.table), element("span", {class: "muted"}, planned)),
      element("progress", {max: copy.chunks_total || 1, value: copy.chunks_done, "aria-label": `copy of ${copy.table}`}));
  }));
}

function toDo(table) {
  const parts = view.status.alerts.filter((alert) => alert.table === table.table)
    .map((alert) => element("span", null, prose(alert.message), alert.remedy ? element("span", {class: "todo"}, prose(alert.remedy)) : null));
  if (table.state === "failed") parts.push(element("span", {class: "todo"}, prose("Mend that, then `mirror-pump unregister` and `mirror-pump register` the table. Readers keep its last state until then.")));
  if (parts.length === 0 && table.note) parts.push(element("span", {class: "muted"}, prose(table.note)));
  if (table.state === "copying" && parts.length === 0) parts.push(element("span", {class: "muted"}, "nothing: it is being copied"));
  return parts;
}

function tableRow(table) {
  const cell = (label, value) => element("td", {class: "number", "data-label": label}, value);
  const state = table.state === "copying" && table.copy.chunks_total ? `copying ${table.copy.chunks_done}/${table.copy.chunks_total}` : table.state;
  const lag = known(table.lag_seconds) ? duration(table.lag_seconds) : known(table.lag_bytes) ? size(table.lag_bytes) : "–";
  const deletes = table.equality_deletes ? `${count(table.equality_deletes)}, ${duration(table.equality_deletes_age)}` : count(table.equality_deletes);
  return element("tr", null,
    element("th", {scope: "row"}, table.table),
    element("td", {class: "state"}, pill(state, STATE_CLASS[table.state])),
    cell("lag", lag),
    cell("rows", known(table.rows) ? `${table.rows_exact ? "" : table.equality_deletes ? "≤ " : "~ "}${count(table.rows)}` : "–"),
    cell("size", size(table.size_bytes)),
    cell("files", known(table.data_files) ? count(table.data_files + table.delete_files) : "–"),
    cell("pending deletes", deletes),
    element("td", {class: "do"}, ...toDo(table)));
}

function drawTables() {
  const tables = view.status.tables, alarmed = new Set(view.status.alerts.map((alert) => alert.table));
  const counts = new Map(STATES.map((state) => [state, tables.filter((table) => table.state === state).length]));
  show(byId("states"), STATES.filter((state) => counts.get(state)).map((state) => element("button",
    {type: "button", "data-state": state, "aria-pressed": view.states.has(state)}, `${state} ${count(counts.get(state))}`)));
  const order = (table) => (alarmed.has(table.table) ? 0 : 1) * STATES.length + STATES.indexOf(table.state);
  const wanted = tables
    .filter((table) => view.states.size === 0 || view.states.has(table.state))
    .filter((table) => table.table.toLowerCase().includes(view.search))
    .sort((left, right) => order(left) - order(right));
  show(byId("tables"), wanted.slice(0, view.limit).map(tableRow));
  const hidden = wanted.length - Math.min(wanted.length, view.limit);
  byId("more").hidden = hidden === 0;
  text("tables-note", tables.length === 0 ? "No tables yet: mirror-pump register TABLE"
    : wanted.length === 0 ? "No table matches." : hidden ? `${count(hidden)} more are not shown.` : "");
}

// ---- slot, pumps, maintenance, retention -----------------------------------------------------------------------

function drawSlot() {
  const slot = view.status.slot, held = slot.held_by;
  if (!view.status.streams) {
    facts("slot", [["Stream", "none: tiered tables only"], ["End of WAL", element("span", {class: "mono"}, view.status.wal_position)]]);
    return;
  }
  facts("slot", [
    ["Slot", slot.name],
    ["State", slot.exists ? `${slot.active ? "active" : "inactive"}, ${slot.wal_status || "unknown"}` : "missing"],
    ["Retains", size(slot.retained_bytes)],
    ["Reserve", invalidation()],
    ["Confirmed", element("span", {class: "mono"}, slot.confirmed_lsn || "–")],
    ["End of WAL", element("span", {class: "mono"}, view.status.wal_position)],
    held ? ["Held by", `${held.kind} ${held.prepared || `of process ${held.pid} (${held.application})`}, open for ${duration(held.seconds)}`] : null,
    ["Publication", slot.publication],
    slot.invalidation_reason ? ["Invalidated", slot.invalidation_reason] : null,
  ]);
}

function drawPumps() {
  const {leader, standbys, last_error: error} = view.status;
  const process = (pump) => `process ${pump.pid} on ${pump.host}`;
  facts("pumps", [
    ["Leader", leader && leader.alive ? `${process(leader)}${leader.retrying ? ", failing and retrying" : ""}` : "none"],
    leader && leader.alive && leader.since ? ["Since", moment(leader.since)] : null,
    ["Standbys", standbys.length ? standbys.map(process).join("; ") : "none"],
    view.history.pump ? ["This pump", `${(PHASES[view.history.pump.phase] || [view.history.pump.phase])[0]} since ${clock.format(new Date(view.history.pump.since * 1000))}`] : null,
    error ? ["Last error", error.error] : null,
  ]);
}

function drawMaintenance() {
  const status = view.status, {maintenance, tables} = status;
  facts("maintenance", [
    ["Maintainer", maintenance.served ? "runs" : prose("none: `run --maintain`, or `mirror-pump maintain`")],
    ["Due", maintenance.tables_due ? plural(maintenance.tables_due, "table") : "nothing"],
    ["Unattended commits", count(maintenance.unattended_commits)],
    status.former_locations.length ? ["Former registrations", prose(`${plural(status.former_locations.length, "location")} with files: \`mirror-pump unregister --list\``)] : null,
    maintenance.tables_neglected ? ["Neglected", plural(maintenance.tables_neglected, "table")] : null,
  ]);
  const due = tables.filter((table) => table.maintenance && table.maintenance.due.length);
  show(byId("due"), due.slice(0, 20).map((table) => element("li", null, element("strong", null, table.table), ": ",
    table.maintenance.due.map((job) => `${job.operation.replaceAll("_", " ")} (${job.reason})`).join("; "))));
}

function drawRetention() {
  const tables = view.status.tables.filter((table) => table.retention && table.retention.has_cutline);
  byId("retention-section").hidden = tables.length === 0;
  show(byId("retention"), tables.map((table) => {
    const state = table.retention, partitions = Object.entries(state.partitions).sort();
    return element("li", null,
      element("div", {class: "name"}, table.table),
      element("div", {class: "muted"}, `cut-line ${state.cut}${state.heap_retention ? `, keeps ${state.heap_retention}` : ""}, ${plural(state.delta_rows, "correction")}${state.delta_unfolded ? `, ${count(state.delta_unfolded)} not folded for ${duration(state.delta_age)}` : ""}${state.pins ? `, ${plural(state.pins, "pin")}, the oldest ${duration(state.oldest_pin_age)} old` : ""}`),
      element("div", {class: "steps"}, ...partitions.map(([name, number]) => pill(`${name} ${count(number)}`, LEAVING.includes(name) ? "busy" : ""))),
      state.stopped ? element("div", null, pill("stopped", "critical"), ` ${state.stopped}`) : null,
      state.not_made ? element("div", null, pill("not made", "warning"), ` ${state.not_made}`) : null,
      state.waits_for ? element("div", {class: "muted"}, `waits: ${state.waits_for}`) : null);
  }));
}

function draw() {
  drawHead();
  drawConnection();
  if (!view.status || !view.history) return;
  drawAlerts();
  drawTiles();
  drawPlot("lag-plot", (samples) => samples.lag_seconds, duration, (last, most) => `Lag over the last hour: now ${duration(last)}, at most ${duration(most)}`);
  drawPlot("rate-plot", (samples) => samples.changes_per_second, rate, (last, most) => `Changes per second: now ${rate(last)}, at most ${rate(most)}`);
  drawCopies();
  drawTables();
  drawSlot();
  drawPumps();
  drawMaintenance();
  drawRetention();
}

// ---- refreshing ------------------------------------------------------------------------------------------------

async function fetched(path) {
  const answer = await fetch(path, {signal: AbortSignal.timeout(TIMEOUT), cache: "no-store", credentials: "same-origin"});
  const document = (answer.headers.get("content-type") || "").startsWith("application/json") ? await answer.json() : null;
  if (!answer.ok) throw new Error(document && document.error ? document.error : `the pump answers ${answer.status} ${answer.statusText}`);
  return document;
}

async function refresh() {
  try {
    view.history = await fetched("history.json");
    view.status = await fetched("status.json");
    view.error = null;
    view.at = Date.now();
  } catch (error) {
    view.error = error instanceof TypeError || error.name === "TimeoutError" ? "The pump does not answer" : error.message;
  }
  draw();
  tick();
}

function tick() {
  text("updated", view.at ? `updated ${duration(Math.floor((Date.now() - view.at) / 1000))} ago` : "");
}

async function run() {
  for (;;) {
    if (!document.hidden || !view.at) await refresh();
    await new Promise((resolve) => setTimeout(resolve, REFRESH));
  }
}

byId("search").addEventListener("input", (event) => { view.search = event.target.value.trim().toLowerCase(); view.limit = PAGE; if (view.status) drawTables(); });
byId("states").addEventListener("click", (event) => {
  const state = event.target.dataset.state;
  if (!state) return;
  if (!view.states.delete(state)) view.states.add(state);
  view.limit = PAGE;
  drawTables();
});
byId("more").addEventListener("click", () => { view.limit += PAGE; drawTables(); });
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
window.addEventListener("resize", () => { if (view.status && view.history) draw(); });
setInterval(tick, 1000);
follow("lag-plot");
follow("rate-plot");
run();
