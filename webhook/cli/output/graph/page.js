"use strict";
const graph = JSON.parse(document.getElementById("graph").textContent);
const BLOCKING = new Set(["waits for", "is ready only with"]);
const SVG = "http://www.w3.org/2000/svg", WIDTH = 210, HEIGHT = 40, GAP_X = 90, GAP_Y = 14;
const byId = new Map(graph.nodes.map(node => [node.id, node]));
const inCycle = new Set(graph.cycles.flatMap(cycle => cycle.members));
const shown = new Set(graph.edges.map(edge => edge.relation));
let focus = null, wanted = "";
const $ = id => document.getElementById(id);
const made = (name, attributes, text) => {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
};
const item = (text, action, bad) => {
  const li = document.createElement("li");
  if (bad) li.className = "bad";
  const inner = action ? document.createElement("button") : li;
  if (action) { inner.type = "button"; inner.addEventListener("click", action); li.append(inner); }
  inner.textContent = text;
  return li;
};
const label = node => node.kind + " " + (node.namespace ? node.namespace + "/" : "") + node.name;

function visible() {
  let edges = graph.edges.filter(edge => shown.has(edge.relation));
  if (focus) {
    const near = new Set([...focus]);
    for (const id of [...focus]) walk(id, edges, near, "source", "target"), walk(id, edges, near, "target", "source");
    edges = edges.filter(edge => near.has(edge.source) && near.has(edge.target));
  }
  const linked = new Set(edges.flatMap(edge => [edge.source, edge.target]));
  for (const id of focus ?? []) linked.add(id);
  const matches = id => { const node = byId.get(id); return !wanted || label(node).toLowerCase().includes(wanted); };
  if (wanted) {
    edges = edges.filter(edge => matches(edge.source) || matches(edge.target));
    const kept = new Set(edges.flatMap(edge => [edge.source, edge.target]));
    for (const node of graph.nodes) if (matches(node.id) && (!focus || linked.has(node.id))) kept.add(node.id);
    return { nodes: graph.nodes.filter(node => kept.has(node.id)), edges };
  }
  return { nodes: graph.nodes.filter(node => linked.has(node.id)), edges };
}
function walk(start, edges, seen, from, to) {
  const next = new Map();
  for (const edge of edges) { if (!next.has(edge[from])) next.set(edge[from], []); next.get(edge[from]).push(edge[to]); }
  const queue = [start];
  while (queue.length) for (const id of next.get(queue.shift()) ?? []) if (!seen.has(id)) { seen.add(id); queue.push(id); }
}
function layout(nodes, edges) {
  // A node is one column to the right of what points to it; edges that close a cycle do not count.
  const rank = new Map(), state = new Map(), outgoing = new Map(nodes.map(node => [node.id, []]));
  for (const edge of edges) outgoing.get(edge.source).push(edge.target);
  const order = [];
  for (const { id } of nodes) {
    const stack = [[id, 0]];
    while (stack.length) {
      const top = stack[stack.length - 1];
      if (top[1] === 0) { if (state.get(top[0])) { stack.pop(); continue; } state.set(top[0], 1); }
      const targets = outgoing.get(top[0]);
      while (top[1] < targets.length && state.get(targets[top[1]])) top[1]++;
      if (top[1] < targets.length) stack.push([targets[top[1]++], 0]);
      else { state.set(top[0], 2); order.push(top[0]); stack.pop(); }
    }
  }
  const place = new Map(order.reverse().map((id, index) => [id, index]));
  for (const id of order) rank.set(id, rank.get(id) ?? 0), outgoing.get(id).forEach(target => { if (place.get(target) > place.get(id)) rank.set(target, Math.max(rank.get(target) ?? 0, rank.get(id) + 1)); });
  const columns = [];
  for (const id of order) (columns[rank.get(id)] ??= []).push(id);
  const row = new Map();
  columns.forEach(column => column.forEach((id, index) => row.set(id, index)));
  for (let sweep = 0; sweep < 4; sweep++) for (const column of columns) {
    const middle = new Map(column.map(id => {
      const others = edges.filter(edge => edge.source === id || edge.target === id).map(edge => row.get(edge.source === id ? edge.target : edge.source));
      return [id, others.length && edges.length < 4000 ? others.reduce((a, b) => a + b, 0) / others.length : row.get(id)];
    }));
    column.sort((a, b) => middle.get(a) - middle.get(b)).forEach((id, index) => row.set(id, index));
  }
  return new Map(nodes.map(({ id }) => [id, { x: rank.get(id) * (WIDTH + GAP_X), y: row.get(id) * (HEIGHT + GAP_Y) }]));
}
function draw() {
  const { nodes, edges } = visible(), at = layout(nodes, edges), view = $("view");
  view.replaceChildren();
  const onCycle = edge => inCycle.has(edge.source) && inCycle.has(edge.target) || cycleLinks.has(edge.source + "\n" + edge.target);
  for (const edge of edges) {
    const a = at.get(edge.source), b = at.get(edge.target), x1 = a.x + WIDTH, y1 = a.y + HEIGHT / 2, x2 = b.x, y2 = b.y + HEIGHT / 2;
    const bend = Math.max(40, Math.abs(x2 - x1) / 2);
    const path = made("path", { class: "edge" + (BLOCKING.has(edge.relation) ? " blocking" : "") + (onCycle(edge) ? " cycle" : ""), d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`, "marker-end": "url(#tip)" });
    path.append(made("title", {}, label(byId.get(edge.source)) + " " + edge.relation + " " + label(byId.get(edge.target))));
    view.append(path);
  }
  for (const node of nodes) {
    const { x, y } = at.get(node.id);
    const group = made("g", { class: "node" + (node.replicas !== undefined ? " workload" : "") + (inCycle.has(node.id) ? " cycle" : "") + (focus?.has(node.id) ? " focus" : ""), transform: `translate(${x} ${y})`, tabindex: 0, role: "button", "aria-label": label(node) });
    group.append(made("title", {}, label(node)), made("rect", { width: WIDTH, height: HEIGHT }), made("text", { x: 8, y: 16 }, cut(node.kind + (node.replicas > 1 ? " × " + node.replicas : ""))), made("text", { x: 8, y: 32 }, cut((node.namespace ? node.namespace + "/" : "") + node.name)));
    group.addEventListener("click", () => select(node));
    group.addEventListener("keydown", event => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); select(node); } });
    view.append(group);
  }
  $("summary").textContent = `${nodes.length} of ${graph.nodes.length} objects, ${edges.length} of ${graph.edges.length} dependencies` + (graph.truncated ? "; the graph is too large, some are left out" : "");
  fit(at);
}
const cut = text => text.length > 30 ? text.slice(0, 29) + "…" : text;
const cycleLinks = new Set();
for (const cycle of graph.cycles) cycle.members.forEach((from, index) => {
  const to = cycle.members[(index + 1) % cycle.members.length];
  for (const edge of graph.edges) if (edge.source === from && BLOCKING.has(edge.relation) && graph.edges.some(each => each.source === edge.target && each.target === to)) cycleLinks.add(from + "\n" + edge.target), cycleLinks.add(edge.target + "\n" + to);
});
function select(node) {
  focus = new Set([node.id]);
  $("title").textContent = label(node);
  const lines = [];
  for (const edge of graph.edges) if (edge.source === node.id) lines.push(item(`${edge.relation} ${label(byId.get(edge.target))}` + (edge.who ? `, by ${edge.who}` : "") + (edge.limitSeconds ? `, for up to ${edge.limitSeconds} s` : "") + (edge.path ? ` (${edge.path})` : ""), () => select(byId.get(edge.target))));
  for (const edge of graph.edges) if (edge.target === node.id) lines.push(item(`${label(byId.get(edge.source))} ${edge.relation} it`, () => select(byId.get(edge.source))));
  $("details").replaceChildren(...(lines.length ? lines : [item("no dependencies")]));
  draw();
}
let box = { x: 0, y: 0, scale: 1 };
const place = () => $("view").setAttribute("transform", `translate(${box.x} ${box.y}) scale(${box.scale})`);
function fit(at) {
  const svg = document.querySelector("svg").getBoundingClientRect(), places = [...at.values()];
  const right = Math.max(1, ...places.map(each => each.x + WIDTH)), bottom = Math.max(1, ...places.map(each => each.y + HEIGHT));
  const scale = Math.min(1.2, Math.max(.15, Math.min((svg.width - 40) / right, (svg.height - 40) / bottom)));
  box = { x: 20, y: 20, scale }; place();
}
const svg = document.querySelector("svg");
svg.addEventListener("wheel", event => { event.preventDefault(); const factor = event.deltaY < 0 ? 1.15 : 1 / 1.15, bounds = svg.getBoundingClientRect(), x = event.clientX - bounds.left, y = event.clientY - bounds.top; box = { x: x - (x - box.x) * factor, y: y - (y - box.y) * factor, scale: box.scale * factor }; place(); }, { passive: false });
let drag = null;
svg.addEventListener("pointerdown", event => { if (!event.target.closest(".node")) drag = { x: event.clientX - box.x, y: event.clientY - box.y }; });
window.addEventListener("pointermove", event => { if (drag) { box.x = event.clientX - drag.x; box.y = event.clientY - drag.y; place(); } });
window.addEventListener("pointerup", () => drag = null);
for (const relation of [...shown].sort()) {
  const line = document.createElement("label"), check = document.createElement("input");
  check.type = "checkbox"; check.checked = true;
  check.addEventListener("change", () => { check.checked ? shown.add(relation) : shown.delete(relation); draw(); });
  line.append(check, " " + relation); $("relations").append(line);
}
for (const cycle of graph.cycles) $("cycles").append(item(cycle.members.map(id => byId.get(id)?.name ?? id).join(" → "), () => { focus = new Set(cycle.members); draw(); }, true));
if (!graph.cycles.length) $("cycles").append(item("none"));
$("filter").addEventListener("input", event => { wanted = event.target.value.trim().toLowerCase(); draw(); });
$("all").addEventListener("click", () => { focus = null; wanted = $("filter").value = ""; draw(); });
draw();
