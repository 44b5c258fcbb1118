"use strict";
(() => {
  const OPEN_AT_ONCE = 200;
  const by = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";

  // Every text becomes a text node: what users wrote is never read as markup.
  const make = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  const draw = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
  const fill = (element, attributes, children) => {
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children.filter((child) => child !== null && child !== ""));
    return element;
  };

  // --- the card of an object ---------------------------------------------------------------------

  const VERBS = { enforce: "refuses", warn: "warns", audit: "audits" };
  const SIGNS = { enforce: "✕", warn: "!", audit: "·", exempted: "○" };

  const opened = (details) => {
    const data = details.querySelector(":scope > script");
    if (!data || details.querySelector(":scope > .card")) return;
    const content = JSON.parse(data.textContent);
    const card = make("div", { class: "card" });
    for (const note of content.notes ?? []) card.append(make("p", { class: "note" }, note));
    for (const each of content.findings ?? []) card.append(finding(each, details));
    for (const sentence of content.would ?? []) card.append(make("p", { class: "note" }, sentence));
    if (content.diff) card.append(make("h4", {}, "What the policies inject"), diff(content.diff));
    for (const each of content.probes ?? []) card.append(timeline(each));
    if (content.exempt) card.append(exemption(content.exempt));
    details.append(card);
  };

  const finding = (each, details) => {
    const outcome = each.exempted === undefined ? each.mode : "exempted";
    const head = make("h4", {},
      make("span", { class: `st ${outcome}` }, make("span", { "aria-hidden": "true" }, SIGNS[outcome]), ` ${VERBS[outcome] ?? outcome}`), " ",
      make("a", { href: `#rule-${encodeURIComponent(each.rule)}` }, make("code", {}, each.rule)),
      each.strict ? make("span", { class: "tag strict" }, "refuses under strict") : "");
    const block = make("section", { class: "finding" }, head, make("p", {}, each.message));
    if (each.hint) block.append(make("p", {}, make("strong", {}, "Fix: "), each.hint));
    const others = each.names.map(([kind, name]) => rowOf(details, kind, name)).filter((row) => row !== null);
    if (others.length) block.append(between(details, others, each.rule));
    if (each.ratcheted) block.append(make("p", {}, make("strong", {}, "Not refused: "), `${each.ratcheted}.`));
    if (each.exempted !== undefined) block.append(make("p", {}, make("strong", {}, "Exempted: "), each.exempted));
    const rows = each.rows.map((row, index) => {
      const number = each.start + index;
      const marked = number >= each.marked[0] && number <= each.marked[1];
      return make(marked ? "mark" : "span", { class: "row" },
        make("span", { class: "no", "aria-hidden": "true" }, each.line === null ? "" : String(number)),
        make("span", { class: "gut", "aria-hidden": "true" }, marked ? "▸" : " "), `${row}\n`);
    });
    const code = make("pre", { tabindex: "0", role: "region", "aria-label": `YAML around ${each.path}` }, ...rows);
    if (each.more) code.append(make("span", { class: "row" }, make("span", { class: "no" }), make("span", { class: "gut" }), `… ${each.more} more lines\n`));
    block.append(make("figure", {}, make("figcaption", {}, make("code", {}, each.path), each.line === null ? "" : ` · line ${each.line}`), code));
    return block;
  };

  // The row of another object that a finding names: in the same namespace, or without one. With several, none is meant.
  const rowOf = (details, kind, name) => {
    const own = details.closest("section.ns").dataset.ns;
    const rows = [...document.querySelectorAll(`.w[data-k="${CSS.escape(kind)}"][data-n="${CSS.escape(name)}"]`)]
      .filter((row) => row !== details && [own, ""].includes(row.closest("section.ns").dataset.ns));
    return rows.length === 1 ? rows[0] : null;
  };

  const BOX = 250, HIGH = 44, GAP = 12;

  // An object, and those that a finding about it names, with a line to each.
  const between = (details, others, rule) => {
    const height = others.length * (HIGH + GAP) - GAP, middle = (height - HIGH) / 2;
    const svg = draw("svg", { class: "between", viewBox: `0 0 ${2 * BOX + 140} ${height}`, role: "img", "aria-label": `${rule} is about ${[details, ...others].map((row) => `${row.dataset.k} ${row.dataset.n}`).join(" and ")}` });
    others.forEach((row, index) => svg.append(draw("path", { d: `M${BOX} ${middle + HIGH / 2} L${BOX + 140} ${index * (HIGH + GAP) + HIGH / 2}` })));
    svg.append(box(details, 0, middle));
    others.forEach((row, index) => svg.append(draw("a", { href: `#${row.id}` }, box(row, BOX + 140, index * (HIGH + GAP)))));
    return make("div", { class: "scroll" }, svg);
  };

  const box = (row, x, y) => draw("g", {},
    draw("rect", { x: x + 1, y: y + 1, width: BOX - 2, height: HIGH - 2, rx: 6 }),
    draw("text", { x: x + 12, y: y + 18, class: "kind" }, row.dataset.k),
    draw("text", { x: x + 12, y: y + 34 }, row.dataset.n.length > 32 ? `${row.dataset.n.slice(0, 31)}…` : row.dataset.n));

  const diff = (rows) => {
    const lines = rows.map(([sign, text, why]) => {
      const line = make(sign === "+" ? "ins" : "span", { class: "row" },
        make("span", { class: "gut" }, sign), make("span", { class: "text" }, text || " "));
      if (why) line.append(make("span", { class: "why" }, make("span", { "aria-hidden": "true" }, "← "), why));
      line.append("\n");
      return line;
    });
    return make("pre", { class: "diff", tabindex: "0", role: "region", "aria-label": "What the policies inject" }, ...lines);
  };

  const exemption = (content) => {
    const block = make("section", { class: "exempt" }, make("h4", {}, "To admit it as it is"));
    for (const text of [content.yaml, content.command]) {
      if (!text) continue;
      const code = make("pre", { tabindex: "0", role: "region", "aria-label": "Exemption to copy" }, text);
      const button = make("button", { type: "button" }, "Copy");
      button.addEventListener("click", () => copy(code, button));
      block.append(make("div", { class: "copy" }, code, button));
    }
    return block;
  };

  const copy = async (code, button) => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  };

  // --- the timeline of probes -----------------------------------------------------------------------

  const LEFT = 128, WIDTH = 330, LANE = 26;

  const timeline = (each) => {
    const [kills, restarts] = each.wrong;
    const start = [["expected start", each.expected, "t-exp", "serves"]];
    if (each.startup !== null) start.push(["startup probe", each.startup, kills ? "t-bad" : "t-start", "killed if it has not answered"]);
    if (each.livenessOnly !== null) start.push(["liveness probe", each.livenessOnly, kills ? "t-bad" : "t-live", "killed if it has not answered"]);
    const later = [
      ["readiness probe", each.readiness, "t-ready", "out of the Service"],
      ["liveness probe", each.liveness, restarts ? "t-bad" : "t-live", "restarted"],
    ];
    const svg = draw("svg", { class: "timeline", viewBox: "0 0 760 0", "aria-hidden": "true" });
    let y = panel(svg, 0, "From its start", start, each.expected);
    y = panel(svg, y + 8, "From when it stops answering", later, null);
    svg.setAttribute("viewBox", `0 0 760 ${y}`);
    const words = make("ul", {}, ...each.text.map((sentence) => make("li", {}, sentence)));
    const wrong = kills || restarts;
    return make("figure", { class: "probes" },
      make("figcaption", {}, "Probes of container ", make("code", {}, each.container), " ", wrong ? make("span", { class: "st enforce" }, "✕ check these probes") : ""),
      make("div", { class: "scroll" }, svg), words);
  };

  const panel = (svg, top, title, lanes, mark) => {
    const known = lanes.filter(([, end]) => end !== null);
    svg.append(draw("text", { x: 0, y: top + 14, class: "t-title" }, title));
    let y = top + 22;
    if (!known.length) {
      svg.append(draw("text", { x: LEFT, y: y + 14 }, "no probe"));
      return y + LANE;
    }
    const [most, said] = known.map(([, end]) => end).reduce((one, two) => (two[0] > one[0] ? two : one), [1, "1 s"]);
    const x = (seconds) => LEFT + WIDTH * seconds / most;
    for (const [label, [end, lasting], kind, what] of known) {
      svg.append(draw("text", { x: LEFT - 10, y: y + 14, "text-anchor": "end" }, label),
        draw("rect", { x: LEFT, y: y + 3, width: Math.max(3, x(end) - LEFT), height: 15, rx: 3, class: kind }),
        draw("path", { d: `M${Math.max(x(end), LEFT + 3)} ${y} v21`, class: "t-cap" }),
        draw("text", { x: Math.max(x(end), LEFT + 3) + 8, y: y + 15 }, `${kind === "t-bad" ? "✕ " : ""}${lasting} · ${what}`));
      y += LANE;
    }
    if (mark !== null) svg.append(draw("path", { d: `M${x(mark[0])} ${top + 22} V${y}`, class: "t-mark" }));
    svg.append(draw("path", { d: `M${LEFT} ${y} h${WIDTH}`, class: "t-axis" }));
    for (const [at, text] of [[0, "0"], [most, said]]) {
      svg.append(draw("path", { d: `M${x(at)} ${y} v4`, class: "t-axis" }),
        draw("text", { x: x(at), y: y + 16, "text-anchor": at ? "middle" : "start", class: "t-tick" }, text));
    }
    return y + 24;
  };

  // --- places that links lead to ---------------------------------------------------------------------

  const visit = () => {
    const name = location.hash.slice(1);
    if (name.startsWith("?") || !name) return;
    let target = by(name);
    try { target ??= by(decodeURIComponent(name)); } catch { /* not an address of ours */ }
    if (!target) return;
    if (target.closest("[hidden]")) by("filter").reset();
    if (target instanceof HTMLDetailsElement) target.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", visit);
  document.addEventListener("toggle", (event) => {
    if (event.target.open && event.target.matches("details.w")) opened(event.target);
  }, true);

  // --- filters ---------------------------------------------------------------------------------------

  const form = by("filter");
  if (form) {
    const selects = ["ns", "kind", "rule", "show"];
    const sections = [...document.querySelectorAll("section.ns")].map((section) => ({
      section,
      ns: section.dataset.ns,
      rows: [...section.querySelectorAll(":scope > .w")].map((row) => ({
        row,
        kind: row.dataset.k,
        rules: row.dataset.r ? row.dataset.r.split(" ") : [],
        marks: new Set([row.dataset.s, ...row.dataset.f.split(" ")]),
        text: null,
      })),
    }));
    const total = sections.reduce((sum, each) => sum + each.rows.length, 0);
    const textOf = (each) => {
      if (each.text === null) {
        const data = each.row.querySelector(":scope > script");
        each.text = `${each.row.firstElementChild.textContent} ${each.row.dataset.i} ${data ? data.textContent : ""}`.toLowerCase();
      }
      return each.text;
    };

    const wanted = () => {
      const values = Object.fromEntries(selects.map((name) => [name, by(`f-${name}`).value]));
      return { ...values, text: by("f-text").value.trim().toLowerCase() };
    };

    const apply = () => {
      const want = wanted();
      let shown = 0;
      for (const { section, ns, rows } of sections) {
        let here = 0;
        const inNamespace = !want.ns || want.ns === `=${ns}`;
        for (const each of rows) {
          const fits = inNamespace
            && (!want.kind || want.kind === `=${each.kind}`)
            && (!want.rule || each.rules.includes(want.rule.slice(1)))
            && (!want.show || each.marks.has(want.show.slice(1)))
            && (!want.text || textOf(each).includes(want.text) || ns.toLowerCase().includes(want.text));
          if (each.row.hidden === fits) each.row.hidden = !fits;
          here += fits;
        }
        section.hidden = !here;
        shown += here;
      }
      by("shown").textContent = shown === total ? `${total.toLocaleString("en")} shown` : `${shown.toLocaleString("en")} of ${total.toLocaleString("en")} shown`;
      return want;
    };

    const remember = () => {
      const want = apply();
      const query = new URLSearchParams(Object.entries(want).filter(([, value]) => value));
      history.replaceState(null, "", query.size ? `#?${query}` : "#workloads");
    };

    const set = (values) => {
      by("f-text").value = values.text ?? "";
      for (const name of selects) by(`f-${name}`).value = values[name] ?? "";
    };

    let waiting = 0;
    by("f-text").addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(remember, 150);
    });
    form.addEventListener("change", remember);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => { set({}); remember(); });
    by("open").addEventListener("click", () => {
      let left = OPEN_AT_ONCE;
      for (const { section, rows } of sections) {
        if (section.hidden) continue;
        for (const { row } of rows) {
          if (row.hidden || !(row instanceof HTMLDetailsElement)) continue;
          if (!left--) return;
          row.open = true;
        }
      }
    });
    document.addEventListener("click", (event) => {
      const link = event.target.closest("a[data-show], a[data-rule]");
      if (!link) return;
      event.preventDefault();
      const { ns, kind, rule, show } = link.dataset;
      const value = (given) => (given === undefined ? "" : `=${given}`);
      set({ ns: value(ns), kind: value(kind), rule: value(rule), show: value(show) });
      remember();
      by("workloads").scrollIntoView();
      by("f-text").focus({ preventScroll: true });
    });

    // Reading all texts takes a second where there are thousands: done ahead, while nobody waits.
    const unread = sections.flatMap(({ rows }) => rows);
    const readOn = (idle) => {
      while (unread.length && idle.timeRemaining() > 2) textOf(unread.pop());
      if (unread.length) requestIdleCallback(readOn);
    };
    globalThis.requestIdleCallback?.(readOn);

    if (location.hash.startsWith("#?")) set(Object.fromEntries(new URLSearchParams(location.hash.slice(2))));
    apply();
  }
  visit();
})();
