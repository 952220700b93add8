"use strict";
// Everything from the observed programs reaches the page as text nodes, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const CALL = 0, REPEAT = 1, ALIKE = 2, PATH = 3, CUT = 4;
  const SAME = 0, GONE = 1, NEW = 2, MOVED_FROM = 3, MOVED_TO = 4, ENDED = 5;
  const ROW = 26, FRAME = 22, THINNEST = 5, DEEPEST_INDENT = 24, NARROW = 820, AROUND = 4;
  const by = (id) => document.getElementById(id);
  const number = (count) => count.toLocaleString("en");
  const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
  const nameOf = (f) => (f < 0 ? "the run" : data.functions[f][1]);
  const rankOf = new Map(data.suspects.map((suspect, place) => [suspect.function, place]));
  const best = Math.max(...data.suspects.map((suspect) => suspect.score), 1e-9);
  const state = { tab: "why", suspect: data.suspects.length ? 0 : -1, shown: [] };

  function el(tag, options = {}, ...inner) {
    const made = document.createElement(tag);
    for (const [key, value] of Object.entries(options)) {
      if (value === undefined || value === null || value === false) continue;
      if (key === "class") made.className = value;
      else if (key === "on") for (const [event, act] of Object.entries(value)) made.addEventListener(event, act);
      else if (key === "style") Object.assign(made.style, value);
      else made.setAttribute(key, value === true ? "" : value);
    }
    made.append(...inner.filter((each) => each !== null && each !== undefined && each !== ""));
    return made;
  }
  // A long name may break behind a dot or an underscore.
  const breakable = (name) => name.split(/(?<=[._])(?=[^._])/).flatMap((part, place) => (place ? [el("wbr"), part] : [part]));
  const badge = (text, kind = "") => el("span", { class: `badge ${kind}` }, text);
  const say = (text) => { by("status").textContent = text; };
  const bar = (share) => el("span", { class: "bar", "aria-hidden": "true" },
    el("i", { style: { width: `${Math.max(share * 100, share > 0 ? 2 : 0)}%` } }));

  // --- theme ---------------------------------------------------------------------------------------------------------
  const system = matchMedia("(prefers-color-scheme: dark)");
  // Storage may be refused where the page is opened as a file.
  function stored(value) {
    try {
      if (value === undefined) return localStorage.getItem("xlocal-theme");
      localStorage.setItem("xlocal-theme", value);
    } catch { /* the theme then lasts as long as the page */ }
    return null;
  }
  let theme = stored();
  function paint() {
    document.documentElement.dataset.theme = theme || (system.matches ? "dark" : "light");
  }
  function turnTheme() {
    theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    stored(theme);
    paint();
    say(`${theme} theme`);
  }
  system.addEventListener("change", paint);
  paint();

  // --- head ----------------------------------------------------------------------------------------------------------
  for (const run of data.runs) {
    by("commands").append(el("span", {},
      badge(run.role, run.role === "buggy" ? "bad" : "good"), el("code", { title: run.command }, run.command),
      el("span", { class: "soft" }, run.ended.split(",")[0])));
  }
  if (data.warnings.length) {
    by("alarm").hidden = false;
    by("alarm").append(`${counted(data.warnings.length, "warning")}: `, data.warnings[0][1], " ",
      el("button", { type: "button", on: { click: () => open("runs") } }, "See all"));
  }

  // --- suspects ------------------------------------------------------------------------------------------------------
  const list = by("suspects");
  function listSuspects() {
    const wanted = by("filter").value.trim().toLowerCase();
    state.shown = data.suspects.map((_, place) => place).filter((place) => {
      const suspect = data.suspects[place];
      const text = `${data.functions[suspect.function].join(" ")} ${suspect.reason} ${suspect.evidence.map((e) => e[0]).join(" ")}`;
      return text.toLowerCase().includes(wanted);
    });
    by("count").textContent = wanted ? `${state.shown.length} of ${data.suspects.length}` : String(data.suspects.length);
    list.replaceChildren(...state.shown.map(suspectItem));
    if (!state.shown.length) list.append(el("li", { class: "empty" }, data.suspects.length ? "None fits." : "No suspects."));
    markSuspect();
  }
  function suspectItem(place) {
    const suspect = data.suspects[place];
    return el("li", { role: "option", id: `suspect-${place}`, "data-place": place, on: { click: () => { choose(place); open("why"); } } },
      el("span", { class: "rank" }, String(suspect.rank)),
      el("span", { class: "name", title: suspect.where }, ...breakable(nameOf(suspect.function))),
      el("span", { class: "score" }, bar(Math.max(suspect.score, 0) / best), suspect.score.toFixed(3)),
      el("span", { class: "why" }, suspect.reason));
  }
  function markSuspect() {
    for (const item of list.querySelectorAll("[aria-selected]")) item.removeAttribute("aria-selected");
    const item = by(`suspect-${state.suspect}`);
    list.removeAttribute("aria-activedescendant");
    if (!item) return;
    item.setAttribute("aria-selected", "true");
    list.setAttribute("aria-activedescendant", item.id);
    const top = item.offsetTop, bottom = top + item.offsetHeight;
    if (top < list.scrollTop) list.scrollTop = top - 6;
    else if (bottom > list.scrollTop + list.clientHeight) list.scrollTop = bottom - list.clientHeight + 6;
  }
  function choose(place) {
    state.suspect = place;
    markSuspect();
    showWhy();
    remember();
  }
  function stepSuspect(step) {
    const at = state.shown.indexOf(state.suspect);
    const next = state.shown[at < 0 ? 0 : Math.min(Math.max(at + step, 0), state.shown.length - 1)];
    if (next !== undefined) choose(next);
  }

  // --- why -----------------------------------------------------------------------------------------------------------
  function showWhy() {
    const panel = by("why");
    panel.scrollTop = 0;
    if (state.suspect < 0) {
      panel.replaceChildren(el("div", { class: "card" }, el("h2", {}, "No suspects"),
        el("p", {}, data.warnings.length ? data.warnings[data.warnings.length - 1][1] : data.distance)));
      return;
    }
    const suspect = data.suspects[state.suspect];
    const calls = suspect.calls;
    panel.replaceChildren(el("div", { class: "card" },
      el("div", { class: "head" }, el("h2", {}, ...breakable(nameOf(suspect.function))), el("span", { class: "mono" }, suspect.where)),
      el("div", { class: "facts" },
        badge(`rank ${suspect.rank} of ${data.suspects.length}`, "mark"), badge(`score ${suspect.score.toFixed(3)}`),
        badge(`${counted(calls[0], "call")} in the buggy run`), badge(`${number(calls[1])} in the reference`),
        suspect.executed ? null : badge("did not run in the buggy run", "warn"), treeLink(suspect.function)),
      evidence(suspect)), detailsOf(suspect));
  }
  function evidence(suspect) {
    if (!suspect.evidence.length) return el("p", {}, suspect.reason);
    return el("dl", { class: "evidence" }, ...suspect.evidence.flatMap(([kind, weight, detail]) => [
      el("dt", {}, kind), el("dd", { title: `weight ${weight}`, "aria-label": `weight ${weight}` }, bar(weight)), el("dd", {}, detail)]));
  }
  function treeLink(f) {
    if (!data.trees.length || !data.trees.some((tree) => tree.function.includes(f))) return null;
    return el("button", { type: "button", on: { click: () => { open("tree"); findFunction(f); } } }, "Show in the tree");
  }
  function detailsOf(suspect) {
    if (!suspect.lines) {
      return el("p", { class: "empty" }, "Source and values of this suspect are not in this file: xlocal explain shows them.");
    }
    const box = el("div");
    const fill = (view) => box.replaceChildren(el("div", { class: "pair" }, sourceCard(suspect, view, fill), valuesCard(suspect, view)));
    fill(suspect.views[0]);
    return box;
  }
  function sourceCard(suspect, view, fill) {
    const card = el("div", { class: "card" }, el("div", { class: "card-head" }, el("h3", {}, view ? view.title : "Source"),
      el("div", {}, ...(suspect.views.length > 1 ? suspect.views : []).map((each) =>
        el("button", { type: "button", "aria-pressed": String(each === view), on: { click: () => fill(each) } }, each.reference)))));
    if (!suspect.lines.length) {
      card.append(el("p", { class: "soft" }, "The source is not there."));
      return card;
    }
    const here = new Map(view ? view.lines[0] : []), there = new Map(view ? view.lines[1] : []);
    const rows = sourceRows(suspect, here, there, Boolean(view));
    const body = el("tbody");
    const head = el("thead", {}, el("tr", {}, el("th", { class: "number" }, "line"),
      view ? el("th", { class: "number" }, "buggy") : null, view ? el("th", { class: "number" }, "ref.") : null,
      view ? el("th", {}, el("span", { class: "hidden" }, "mark")) : null, el("th", {}, "")));
    fold(body, rows, view ? 5 : 2);
    card.append(el("div", { class: "source", tabindex: "0", role: "region", "aria-label": "Source" }, el("table", {}, head, body)));
    card.append(view ? el("div", { class: "keyline" },
      el("span", {}, el("b", { class: "bad" }, "−"), "only the buggy run"), el("span", {}, el("b", { class: "good" }, "+"), "only the reference"),
      el("span", {}, el("b", { class: "warn" }, "~"), "another number of times"))
      : el("p", { class: "soft" }, "How often each line ran is not known."));
    return card;
  }
  function sourceRows(suspect, here, there, seen) {
    const paintLine = painter();
    return suspect.lines.map(([line, text]) => {
      const a = here.get(line) || 0, b = there.get(line) || 0;
      const kind = a === b ? "" : !b ? "bad" : !a ? "good" : "warn";
      const mark = { bad: "−", good: "+", warn: "~" }[kind] || "";
      const cell = (count, known) => el("td", { class: "number" }, known ? number(count) : "");
      return { kind, row: el("tr", { class: kind }, el("td", { class: "number" }, String(line)),
        seen ? cell(a, here.has(line)) : null, seen ? cell(b, there.has(line)) : null,
        seen ? el("td", { class: "mark" }, mark) : null, el("td", {}, ...paintLine(text))) };
    });
  }
  // A long function opens at its differences; each gap opens on a click.
  function fold(body, rows, columns) {
    const wanted = rows.map(() => rows.length <= 60);
    rows.forEach((each, at) => {
      const strong = each.kind === "bad" || each.kind === "good" || (each.kind && !rows.some((r) => r.kind === "bad" || r.kind === "good"));
      if (strong || at < 2) for (let near = at - AROUND; near <= at + AROUND; near++) if (near in wanted) wanted[near] = true;
    });
    for (let at = 0; at < rows.length;) {
      let stop = at;
      while (stop < rows.length && wanted[stop] === wanted[at]) stop++;
      const part = rows.slice(at, stop).map((each) => each.row);
      if (wanted[at] || part.length < 3) body.append(...part);
      else {
        const gap = el("tr", { class: "gap" }, el("td", { colspan: columns },
          el("button", { type: "button", on: { click: () => gap.replaceWith(...part) } }, `${part.length} more lines`)));
        body.append(gap);
      }
      at = stop;
    }
  }
  const KEYWORDS = new Set(("False None True and as assert async await break class continue def del elif else except finally for from " +
    "global if import in is lambda nonlocal not or pass raise return try while with yield match case").split(" "));
  // Colours Python line by line; a triple-quoted string may span lines, so the painter remembers.
  function painter() {
    let quote = "";
    const token = /("""|''')|[rbfuRBFU]{0,2}("(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?)|(#.*)|([A-Za-z_]\w*)|(\d[\w.]*)/g;
    return (text) => {
      const out = [];
      const put = (piece, kind) => { if (piece) out.push(kind ? el("span", { class: kind }, piece) : piece); };
      let at = 0;
      while (at < text.length) {
        if (quote) {
          const end = text.indexOf(quote, at);
          const stop = end < 0 ? text.length : end + 3;
          put(text.slice(at, stop), "t-s");
          at = stop;
          if (end >= 0) quote = "";
          continue;
        }
        token.lastIndex = at;
        const found = token.exec(text);
        if (!found) break;
        put(text.slice(at, found.index));
        at = token.lastIndex;
        if (found[1]) { quote = found[1]; put(found[1], "t-s"); }
        else if (found[2]) put(found[0], "t-s");
        else if (found[3]) put(found[0], "t-c");
        else if (found[4]) put(found[0], KEYWORDS.has(found[4]) ? "t-k" : "");
        else put(found[0], "t-n");
      }
      put(text.slice(at));
      return out;
    };
  }
  function valuesCard(suspect, view) {
    const card = el("div", { class: "card" });
    if (!view) {
      card.append(el("h3", {}, "Calls"), el("p", { class: "soft" }, suspect.unseen),
        ...suspect.around.map((sentences) => el("ul", { class: "plain around" }, ...sentences.map((text) => el("li", {}, text)))));
      return card;
    }
    if (!view.pairs.length) {
      card.append(el("h3", {}, "Values"), el("p", { class: "soft" }, "No pair of matching calls was seen closely."));
      return card;
    }
    const body = el("div", { class: "scroll" });
    const choices = view.pairs.map(([bad, good], place) => el("button", { type: "button", on: { click: () => show(place) } },
      `${bad.number} | ${good.number}`));
    const title = el("h3");
    const show = (place) => {
      choices.forEach((button, each) => button.setAttribute("aria-pressed", String(each === place)));
      const [bad, good] = view.pairs[place];
      title.textContent = `Values: call ${number(bad.number)} of the buggy run, call ${number(good.number)} of ${view.reference}`;
      body.replaceChildren(valueTable(bad, good));
    };
    card.append(el("div", { class: "card-head" }, title, el("div", {}, ...(choices.length > 1 ? choices : []))), body);
    show(0);
    return card;
  }
  function valueTable(bad, good) {
    const body = el("tbody");
    // What differs although its text, as far as that is kept, is the same.
    const hidden = new Set([...bad.hidden, ...good.hidden]);
    const unsure = new Set([...bad.unsure, ...good.unsure]);
    const unlike = ([name, here, there]) => here !== there || hidden.has(name);
    const rowFor = (name, here, there, rule) => el("tr", { class: `${unlike([name, here, there]) ? "differ" : ""} ${rule ? "rule" : ""}` },
      el("td", { class: "name" }, ...breakable(name)), el("td", { class: "here" }, here),
      el("td", { class: "there" }, here !== there ? there : hidden.has(name) ? el("em", {}, "differs beyond what is shown") : el("span", { class: "soft" }, unsure.has(name) ? "same as far as seen" : "same")));
    const add = (...row) => body.append(rowFor(...row));
    for (const [prefix, one, other] of [["", bad.given, good.given], ["then ", bad.left, good.left]]) {
      const here = new Map(one), there = new Map(other);
      const attributes = [...here.keys()].some((name) => name.startsWith("self."));
      const names = [...new Set([...here.keys(), ...there.keys()])].filter((name) => name !== "self" || !attributes);
      const rows = names.map((name) => [prefix + name, here.get(name) ?? "unset", there.get(name) ?? "unset"]);
      rows.sort((x, y) => unlike(y) - unlike(x));
      const first = Math.max(rows.filter(unlike).length, prefix ? 3 : 6);
      rows.slice(0, first).forEach((row, place) => add(...row, prefix && !place));
      const rest = rows.slice(first);
      if (rest.length === 1) add(...rest[0]);
      else if (rest.length) {
        const more = el("tr", { class: "more" }, el("td", { colspan: 3 }, el("button", { type: "button",
          on: { click: () => more.replaceWith(...rest.map((row) => rowFor(...row))) } }, `${rest.length} more alike`)));
        body.append(more);
      }
    }
    add("outcome", bad.outcome, good.outcome, true);
    return el("table", { class: "values" }, el("thead", {}, el("tr", {}, el("th", {}, "name"), el("th", {}, "buggy"), el("th", {}, "reference"))), body);
  }

  // --- difference ----------------------------------------------------------------------------------------------------
  const tree = { place: 0, closed: null, end: null, visible: [], cursor: 0, hits: [], one: innerWidth < NARROW };
  // The first reference that shows a difference.
  const first = Math.max(data.trees.findIndex((each) => each.edits[0] > 0), 0);
  const now = () => data.trees[tree.place];
  function buildTree() {
    const panel = by("tree");
    panel.className = "fixed";
    if (!data.trees.length) {
      panel.className = "";
      panel.replaceChildren(el("p", { class: "empty" }, "The recordings are not there, so there are no trees to show."));
      return;
    }
    tree.find = el("input", { type: "search", placeholder: "Find a function  /", "aria-label": "Find in the tree", autocomplete: "off", spellcheck: "false",
      on: { input: search, keydown: (event) => { if (event.key === "Enter") { event.preventDefault(); nextHit(event.shiftKey ? -1 : 1); } } } });
    tree.found = el("span", { class: "soft", "aria-live": "polite" });
    tree.told = el("span", { class: "told" });
    tree.mode = el("button", { type: "button", "aria-pressed": "false", on: { click: () => setMode(!tree.one) } }, "One column");
    tree.head = el("div", { class: "tree-head", "aria-hidden": "true" });
    tree.rows = el("div", { class: "rows", role: "presentation" });
    tree.box = el("div", { class: "tree", role: "tree", tabindex: "0", "aria-label": "Differences of the call trees",
      on: { scroll: () => requestAnimationFrame(drawRows) } }, tree.head, tree.rows);
    tree.detail = el("div", { class: "detail", "aria-live": "polite" });
    panel.replaceChildren(el("div", { class: "toolbar" }, references((place) => { showTree(place); setMode(tree.one); }), tree.find, tree.found,
      el("button", { type: "button", title: "Previous difference (p)", on: { click: () => nextDifference(-1) } }, "Previous"),
      el("button", { type: "button", title: "Next difference (n)", on: { click: () => nextDifference(1) } }, "Next"),
      tree.mode, tree.told), tree.box, tree.detail);
    tree.rows.addEventListener("click", clickRow);
    tree.rows.addEventListener("dblclick", () => enterRow());
    new ResizeObserver(drawRows).observe(tree.box);
    showTree(first);
    setMode(tree.one);
  }
  function references(act) {
    if (data.trees.length < 2) return null;
    return el("select", { "aria-label": "Reference", on: { change: (event) => act(Number(event.target.value)) } },
      ...data.trees.map((each, place) => el("option", { value: place, selected: place === first }, each.reference)));
  }
  function setMode(one) {
    tree.one = one;
    tree.box.classList.toggle("one", one);
    tree.mode.setAttribute("aria-pressed", String(one));
    tree.head.replaceChildren(...(one ? [el("span", {}, "− only buggy   + only reference   ~ ended otherwise")]
      : [el("span", {}, "Buggy run"), el("span", {}, now().reference)]));
    drawRows(true);
  }
  function showTree(place) {
    tree.place = place;
    const lines = now(), count = lines.what.length;
    tree.end = new Int32Array(count);
    const waiting = [];
    for (let at = 0; at < count; at++) {
      while (waiting.length && lines.depth[waiting[waiting.length - 1]] >= lines.depth[at]) tree.end[waiting.pop()] = at;
      waiting.push(at);
    }
    for (const at of waiting) tree.end[at] = count;
    tree.closed = new Uint8Array(count);
    for (let at = 1; at < count; at++) tree.closed[at] = !lines.edits[at] && tree.end[at] > at + 1 ? 1 : 0;
    tree.noisy = new Set(lines.noisy);
    tree.told.textContent = lines.heading;
    refresh();
    tree.cursor = 0;
    nextDifference(1, true);
    search();
  }
  function refresh() {
    tree.visible = [];
    for (let at = 1; at < tree.end.length;) {
      tree.visible.push(at);
      at = tree.closed[at] ? tree.end[at] : at + 1;
    }
    tree.rows.style.height = `${tree.visible.length * ROW}px`;
    drawRows(true);
  }
  function drawRows(anew) {
    if (!tree.box || !tree.box.clientHeight) return;
    const first = Math.max(Math.floor(tree.box.scrollTop / ROW) - 12, 0);
    const last = Math.min(first + Math.ceil(tree.box.clientHeight / ROW) + 24, tree.visible.length);
    if (anew !== true && tree.first === first && tree.last === last) return;
    tree.first = first;
    tree.last = last;
    const made = [];
    for (let place = first; place < last; place++) made.push(rowOf(tree.visible[place], place));
    if (!tree.visible.length) made.push(el("p", { class: "empty" }, "Both runs made the same calls."));
    tree.rows.replaceChildren(...made);
    markRow();
  }
  const isEdit = (at) => now().what[at] === CALL && now().kind[at] !== SAME;
  function rowOf(at, place) {
    const lines = now(), what = lines.what[at], kind = lines.kind[at], inner = tree.end[at] > at + 1;
    const row = el("div", { class: what === CALL ? "row" : "row group", role: "treeitem", id: `row-${at}`, "data-at": at,
      "aria-level": lines.depth[at], "aria-expanded": inner ? String(!tree.closed[at]) : undefined, "aria-label": spoken(at),
      style: { top: `${place * ROW}px` } });
    if (tree.hits.length && tree.hitSet.has(at)) row.classList.add("hit");
    const start = (sign) => {
      const depth = lines.depth[at] - 1, deep = depth > DEEPEST_INDENT;
      return [el("span", { class: "sign" }, sign),
        el("span", { class: "twist", "data-twist": "1", style: { marginLeft: `${Math.min(depth, DEEPEST_INDENT) * 14}px` } }, inner ? (tree.closed[at] ? "▶" : "▼") : ""),
        deep ? el("span", { class: "deep" }, `${depth}`) : null];
    };
    if (what !== CALL) {
      row.append(el("span", { class: "cell wide" }, ...start(""), el("span", { class: "name" }, summary(at))));
      return row;
    }
    const bad = kind === GONE || kind === MOVED_FROM, good = kind === NEW || kind === MOVED_TO;
    const tone = bad ? "bad" : good ? "good" : kind === ENDED ? "warn" : "";
    const sign = bad ? "−" : good ? "+" : kind === ENDED ? "~" : "";
    const here = lines.texts[lines.told[at]], there = lines.texts[lines.told_there[at]];
    const cell = (calls, told) => el("span", { class: `cell ${tone}` }, ...start(sign), ...callParts(at, calls, told));
    const none = () => el("span", { class: "cell void" });
    if (tree.one) row.append(cell(bad ? lines.buggy[at] : good ? lines.reference_calls[at] : -1, toldOf(at)));
    else row.append(good ? none() : cell(lines.buggy[at], here), bad ? none() : cell(lines.reference_calls[at], there));
    return row;
  }
  function toldOf(at) {
    const lines = now(), here = lines.texts[lines.told[at]], there = lines.texts[lines.told_there[at]];
    return lines.kind[at] === ENDED ? `${here}, ${there} in the reference run` : here || there;
  }
  function callParts(at, calls, told) {
    const lines = now(), f = lines.function[at];
    const times = lines.times[at], inside = calls > times ? `${number(calls - times)} inside` : "";
    return [el("span", { class: "name", title: f < 0 ? "" : data.functions[f].join("::") }, nameOf(f)),
      times > 1 ? badge(`×${number(times)}`) : null,
      rankOf.has(f) && data.suspects[rankOf.get(f)].evidence.length ? badge(`#${data.suspects[rankOf.get(f)].rank}`, "mark") : null,
      tree.noisy.has(f) ? badge("noise", "warn") : null,
      told || inside ? el("span", { class: "tell" }, [told, inside].filter(Boolean).join(" · ")) : null];
  }
  function summary(at) {
    const lines = now(), here = lines.buggy[at], there = lines.reference_calls[at];
    if (lines.what[at] === REPEAT) return `${number(lines.times[at])} times:`;
    if (lines.what[at] === PATH) return `${counted(lines.times[at], "call")} deeper`;
    if (lines.what[at] === CUT) return `${counted(Math.max(here, there), "call")} more, ${counted(lines.edits[at], "difference")} among them (did not fit)`;
    return `${counted(here, "call")} alike: ${lines.texts[lines.told[at]]}`;
  }
  function spoken(at) {
    const lines = now();
    if (lines.what[at] !== CALL) return summary(at);
    const kind = ["", "only in the buggy run", "only in the reference", "moved, in the buggy run", "moved, in the reference", "ended otherwise"][lines.kind[at]];
    return [nameOf(lines.function[at]), kind, lines.times[at] > 1 ? `${number(lines.times[at])} times` : "", toldOf(at)].filter(Boolean).join(", ");
  }
  function markRow() {
    for (const row of tree.rows.querySelectorAll("[aria-selected]")) row.removeAttribute("aria-selected");
    const row = by(`row-${tree.cursor}`);
    if (row) {
      row.setAttribute("aria-selected", "true");
      tree.box.setAttribute("aria-activedescendant", row.id);
    } else tree.box.removeAttribute("aria-activedescendant");
  }
  function moveTo(at, quiet) {
    if (at < 1 || at >= tree.end.length) return;
    let hidden = false;
    for (let above = at - 1, depth = now().depth[at]; above > 0 && depth > 1; above--) {
      if (now().depth[above] < depth) {
        depth = now().depth[above];
        if (tree.closed[above]) { tree.closed[above] = 0; hidden = true; }
      }
    }
    tree.cursor = at;
    if (hidden) refresh();
    const place = placeOf(at), head = tree.head.offsetHeight, top = place * ROW;
    if (top < tree.box.scrollTop) tree.box.scrollTop = Math.max(top - 3 * ROW, 0);
    else if (top + ROW + head > tree.box.scrollTop + tree.box.clientHeight) tree.box.scrollTop = top + head + 4 * ROW - tree.box.clientHeight;
    drawRows();
    markRow();
    if (!quiet) showDetail();
  }
  function placeOf(at) {
    let low = 0, high = tree.visible.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (tree.visible[middle] < at) low = middle + 1; else high = middle;
    }
    return low;
  }
  function showDetail() {
    const lines = now(), at = tree.cursor, f = lines.function[at];
    const parts = [el("code", {}, lines.what[at] === CALL && f >= 0 ? data.functions[f].join("::") : summary(at)),
      el("span", {}, `${counted(lines.buggy[at], "call")} in the buggy run, ${number(lines.reference_calls[at])} in the reference, ${counted(lines.edits[at], "difference")}`)];
    if (lines.what[at] === CALL && toldOf(at)) parts.push(el("span", {}, toldOf(at)));
    if (rankOf.has(f)) {
      parts.push(el("button", { type: "button", on: { click: enterRow } }, `Suspect ${data.suspects[rankOf.get(f)].rank} `, el("kbd", {}, "enter")));
    }
    tree.detail.replaceChildren(...parts);
  }
  function toggle(at, closed) {
    if (tree.end[at] <= at + 1 || Boolean(tree.closed[at]) === closed) return false;
    tree.closed[at] = closed ? 1 : 0;
    refresh();
    return true;
  }
  function clickRow(event) {
    const row = event.target.closest("[data-at]");
    if (!row) return;
    const at = Number(row.dataset.at);
    if (event.target.dataset.twist || row.classList.contains("group")) toggle(at, !tree.closed[at]);
    moveTo(at);
    tree.box.focus({ preventScroll: true });
  }
  function enterRow() {
    const f = now().function[tree.cursor];
    if (now().what[tree.cursor] === CALL && rankOf.has(f)) {
      choose(rankOf.get(f));
      open("why");
    } else toggle(tree.cursor, !tree.closed[tree.cursor]);
  }
  function stepRow(step) {
    const place = placeOf(tree.cursor);
    moveTo(tree.visible[Math.min(Math.max(place + step, 0), tree.visible.length - 1)]);
  }
  function sideways(step) {
    if (step > 0) { if (!toggle(tree.cursor, false) && tree.end[tree.cursor] > tree.cursor + 1) moveTo(tree.cursor + 1); return; }
    if (toggle(tree.cursor, true)) return;
    let above = tree.cursor - 1;
    while (above > 0 && now().depth[above] >= now().depth[tree.cursor]) above--;
    if (above > 0) moveTo(above);
  }
  function nextDifference(step, quiet) {
    for (let at = tree.cursor + step; at > 0 && at < tree.end.length; at += step) {
      if (isEdit(at)) { moveTo(at, quiet); return; }
    }
    if (quiet) moveTo(1, true);
    else say("no further difference");
  }
  function search() {
    const wanted = tree.find.value.trim().toLowerCase();
    const fits = new Set();
    if (wanted) data.functions.forEach((f, place) => { if (f.join("::").toLowerCase().includes(wanted)) fits.add(place); });
    tree.hits = [];
    if (fits.size) now().function.forEach((f, at) => { if (fits.has(f)) tree.hits.push(at); });
    tree.hitSet = new Set(tree.hits);
    const alike = wanted && !tree.hits.length && !now().whole ? " listed (calls alike are only counted)" : "";
    tree.found.textContent = wanted ? `${number(tree.hits.length)} found${alike}` : "";
    drawRows(true);
    if (tree.hits.length) moveTo(tree.hits.find((at) => at >= tree.cursor) ?? tree.hits[0]);
  }
  function nextHit(step) {
    if (!tree.hits.length) return;
    let place = step > 0 ? tree.hits.findIndex((at) => at > tree.cursor) : tree.hits.findLastIndex((at) => at < tree.cursor);
    if (place < 0) place = step > 0 ? 0 : tree.hits.length - 1;
    moveTo(tree.hits[place]);
    tree.found.textContent = `${number(place + 1)} of ${number(tree.hits.length)}`;
  }
  function findFunction(f) {
    const lines = now();
    let at = lines.function.findIndex((each, place) => each === f && isEdit(place));
    if (at < 0) at = lines.function.indexOf(f);
    if (at < 0) {
      const place = data.trees.findIndex((each) => each.function.includes(f));
      if (place < 0) return;
      showTree(place);
      const select = by("tree").querySelector("select");
      if (select) select.value = String(place);
      setMode(tree.one);
      at = now().function.indexOf(f);
    }
    moveTo(at);
    tree.box.focus({ preventScroll: true });
  }

  // --- flame ---------------------------------------------------------------------------------------------------------
  const fire = { place: first, top: 0, at: 0, told: -1 };
  function buildFlame() {
    const panel = by("flame");
    if (!data.trees.length) {
      panel.replaceChildren(el("p", { class: "empty" }, "The recordings are not there, so there is nothing to sum up."));
      return;
    }
    panel.className = "fixed";
    fire.find = el("input", { type: "search", placeholder: "Highlight a function  /", "aria-label": "Highlight in the flame view", autocomplete: "off", spellcheck: "false",
      on: { input: drawFlame } });
    fire.out = el("button", { type: "button", title: "Zoom out (Escape)", on: { click: zoomOut } }, "Zoom out");
    fire.doubt = el("span", { class: "badge warn doubt" });
    fire.box = el("div", { class: "flame", role: "group", "aria-label": "Calls by path, arrow keys move" });
    fire.detail = el("div", { class: "detail", "aria-live": "polite" });
    panel.replaceChildren(el("div", { class: "toolbar" }, references((place) => { fire.place = place; measureFlame(); zoom(0); }), fire.find, fire.out,
      fire.doubt, el("span", { class: "told" }, "By path of callers. Width: calls inside, those of both runs once")), fire.box, fire.detail,
      el("div", { class: "keyline" }, el("span", {}, el("b", { class: "bad-fill" }, "−"), "by this path only in the buggy run"), el("span", {}, el("b", { class: "good-fill" }, "+"), "by this path only in the reference"),
        el("span", {}, el("b", { class: "warn-fill" }, "~"), "in both, with differences inside"), el("span", {}, el("b", { class: "same" }, "\u00a0"), "alike")));
    new ResizeObserver(drawFlame).observe(fire.box);
    measureFlame();
    zoom(0);
  }
  function measureFlame() {
    const frames = data.trees[fire.place].flame;
    fire.doubt.hidden = !frames.doubt;
    fire.doubt.textContent = frames.doubt;
    fire.children = frames.parent.map(() => []);
    frames.parent.forEach((above, at) => { if (above >= 0) fire.children[above].push(at); });
    const differs = (at) => (toneOf(at) ? 1 : 0);
    for (const inner of fire.children) inner.sort((a, b) => differs(b) - differs(a) || frames.width[b] - frames.width[a]);
  }
  // The widths inside a frame: by calls, but what differs is never too narrow to see while there is room.
  function widthsInside(at, room) {
    const frames = data.trees[fire.place].flame, inner = fire.children[at];
    const exact = inner.map((each) => frames.width[each] / frames.width[at] * room);
    const raised = exact.map((width, place) => (toneOf(inner[place]) ? Math.max(width, THINNEST) : width));
    const total = raised.reduce((sum, width) => sum + width, 0);
    return total > room ? raised.map((width) => width * room / total) : raised;
  }
  function toneOf(at) {
    const frames = data.trees[fire.place].flame;
    if (!frames.reference[at]) return "bad";
    if (!frames.buggy[at]) return "good";
    return frames.edits[at] ? "warn" : "";
  }
  function drawFlame() {
    if (!fire.box || !fire.box.clientWidth) return;
    const frames = data.trees[fire.place].flame, whole = fire.box.clientWidth - 4;
    const wanted = fire.find.value.trim().toLowerCase();
    const above = [];
    for (let at = frames.parent[fire.top]; at >= 0; at = frames.parent[at]) above.unshift(at);
    const made = above.map((at, level) => frameButton(at, 2, level, whole, true, wanted));
    const waiting = [[fire.top, 2, above.length, whole]];
    let deepest = above.length;
    while (waiting.length) {
      const [at, left, level, width] = waiting.pop();
      if (width < 1.5) continue;
      deepest = Math.max(deepest, level);
      made.push(frameButton(at, left, level, width, false, wanted));
      let next = left;
      widthsInside(at, width).forEach((each, place) => {
        waiting.push([fire.children[at][place], next, level + 1, each]);
        next += each;
      });
    }
    const held = fire.box.contains(document.activeElement);
    fire.box.replaceChildren(el("div", { style: { height: `${(deepest + 1) * FRAME + 6}px` } }, ...made));
    if (held) focusFrame(fire.at);
  }
  function frameButton(at, left, level, width, up, wanted) {
    const frames = data.trees[fire.place].flame, name = nameOf(frames.function[at]);
    const faint = wanted && !(frames.function[at] >= 0 && data.functions[frames.function[at]].join("::").toLowerCase().includes(wanted));
    const sign = { bad: "− ", good: "+ ", warn: "~ " }[toneOf(at)] || "";
    return el("button", { type: "button", class: [toneOf(at), up ? "up" : "", faint ? "faint" : "", width > 24 ? "" : "thin"].join(" "), id: `frame-${at}`, tabindex: at === fire.at ? "0" : "-1",
      "aria-label": `${name}: ${frameText(at)}`, style: { left: `${left}px`, top: `${level * FRAME + 3}px`, width: `${Math.max(width - 1, 1)}px` },
      on: { click: () => { zoom(at); focusFrame(at); }, focus: () => { fire.at = at; tellFrame(at); }, mousemove: () => tellFrame(at) } }, width > 24 ? sign + name : "");
  }
  function frameText(at) {
    const frames = data.trees[fire.place].flame;
    return `${number(frames.buggy[at])}× in the buggy run, ${number(frames.reference[at])}× in the reference; ${counted(frames.width[at], "call")} in all with what they call, ${counted(frames.edits[at], "difference")}`;
  }
  // The pointer is told what it moves over, and leaves the keys' place alone: a frame drawn under a resting pointer is no move.
  function tellFrame(at) {
    const frames = data.trees[fire.place].flame, f = frames.function[at];
    if (fire.told === at) return;
    fire.told = at;
    fire.detail.replaceChildren(el("code", {}, f < 0 ? "the run" : data.functions[f].join("::")), el("span", {}, frameText(at)),
      frames.left_out ? el("span", {}, `${counted(frames.left_out, "small frame")} left out`) : "");
  }
  function focusFrame(at) {
    const button = by(`frame-${at}`);
    if (button) { button.focus({ preventScroll: true }); button.scrollIntoView({ block: "nearest" }); }
  }
  function zoom(at) {
    fire.top = at;
    fire.at = at;
    fire.told = -1;
    fire.out.disabled = at === 0;
    drawFlame();
    tellFrame(at);
  }
  function zoomOut() {
    if (fire.top) { const at = fire.top; zoom(data.trees[fire.place].flame.parent[at]); focusFrame(at); }
  }
  function stepFrame(key) {
    const frames = data.trees[fire.place].flame, above = frames.parent[fire.at];
    const beside = above < 0 ? [fire.at] : fire.children[above], place = beside.indexOf(fire.at);
    const to = { down: fire.children[fire.at][0], up: above, left: beside[place - 1], right: beside[place + 1] }[key];
    if (to === undefined || to < 0) return;
    if (by(`frame-${to}`)) { fire.at = to; focusFrame(to); }
  }

  // --- runs and limits -----------------------------------------------------------------------------------------------
  function buildRuns() {
    const card = (title, ...inner) => el("div", { class: "card" }, el("h3", {}, title), ...inner);
    const titles = ["run", "command", "ended", "calls", "functions", "time", "repeats"];
    const kindOf = (place) => (place > 2 && place < 6 ? "number" : "");
    const head = titles.map((text, place) => el("th", { class: kindOf(place) }, text));
    const repeats = (run) => (run.repeats < 2 ? "ran once: noise is not told apart" : run.identical ? `${run.repeats} runs alike` : `${run.repeats} runs differ`);
    // In a narrow window a row is a block in which each cell names its column.
    const rows = data.runs.map((run) => el("tr", {}, ...[badge(run.role, run.role === "buggy" ? "bad" : "good"), el("code", {}, run.command), run.ended,
      number(run.calls), number(run.functions), `${run.seconds} s`, repeats(run)].map((cell, place) => el("td", { class: kindOf(place), "data-title": titles[place] }, cell))));
    by("runs").replaceChildren(
      card("Runs", el("div", { class: "scroll" }, el("table", { class: "runs" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows))), el("p", { class: "soft" }, data.distance)),
      card("Warnings", data.warnings.length ? el("dl", { class: "messages" }, ...data.warnings.flatMap(([slug, text]) => [el("dt", {}, slug), el("dd", {}, text)])) : el("p", {}, "None.")),
      card("Noise", data.noise.length ? el("dl", { class: "messages" }, ...data.noise.flatMap(([role, names]) => [el("dt", {}, role),
        el("dd", {}, el("p", {}, `${counted(names.length, "function")} behave unlike from run to run of this script; their calls are no evidence:`), el("ul", { class: "plain" }, ...names.map((name) => el("li", {}, el("code", {}, name)))))]))
        : el("p", {}, data.trees.length && data.runs.every((run) => run.repeats > 1) ? "The runs of each script were alike, so nothing was left out." : "Unknown: noise shows only when each script runs twice.")),
      card("Limits of this file", el("ul", { class: "plain" }, ...(data.limits.length ? data.limits : ["Nothing was left out."]).map((text) => el("li", {}, text))),
        el("p", { class: "soft" }, "Code in C, other programs and values deep inside objects are not seen. Evidence orders the functions; it does not prove which is wrong.")),
      data.issue ? card("Issue", el("pre", { class: "issue", tabindex: "0" }, data.issue)) : "",
      el("p", { class: "soft empty" }, `xlocal ${data.version}, ranker ${data.ranker}`));
  }

  // --- tabs, keys, address -------------------------------------------------------------------------------------------
  const TABS = ["why", "tree", "flame", "runs"];
  function open(tab) {
    state.tab = tab;
    for (const each of TABS) {
      by(each).hidden = each !== tab;
      by(`tab-${each}`).setAttribute("aria-selected", String(each === tab));
      by(`tab-${each}`).tabIndex = each === tab ? 0 : -1;
    }
    if (tab === "tree" && tree.box) { moveTo(tree.cursor); drawRows(true); tree.box.focus({ preventScroll: true }); }
    if (tab === "flame" && fire.box) drawFlame();
    remember();
  }
  function remember() {
    const rank = state.suspect >= 0 ? data.suspects[state.suspect].rank : 0;
    history.replaceState(null, "", `#${state.tab}=${rank}`);
  }
  const HELP = [[["j", "k"], "next, previous"], [["↑", "↓"], "the same"], [["←", "→"], "close, open in the tree"], [["enter"], "open: the suspect, the call"],
    [["n", "p"], "next, previous difference"], [["/"], "search here"], [["1", "-", "4"], "the views"], [["t"], "light or dark"], [["esc"], "leave the search, zoom out"], [["?"], "these keys"]];
  by("keys").append(el("h2", { id: "keys-title" }, "Keys"), el("dl", {}, ...HELP.flatMap(([keys, text]) => [el("dt", {}, ...keys.map((key) => el("kbd", {}, key))), el("dd", {}, text)])),
      el("button", { type: "button", on: { click: () => by("keys").close() } }, "Close"));
  const showKeys = () => by("keys").showModal();
  const inTree = () => state.tab === "tree" && tree.box && !by("suspects").contains(document.activeElement);
  const inFlame = () => state.tab === "flame" && fire.box && !by("suspects").contains(document.activeElement);
  function step(by_) { if (inTree()) stepRow(by_); else if (inFlame()) stepFrame(by_ > 0 ? "down" : "up"); else stepSuspect(by_); }
  const ACTS = {
    j: () => step(1), k: () => step(-1), ArrowDown: () => step(1), ArrowUp: () => step(-1),
    ArrowLeft: () => { if (inTree()) sideways(-1); else if (inFlame()) stepFrame("left"); else return false; return true; },
    ArrowRight: () => { if (inTree()) sideways(1); else if (inFlame()) stepFrame("right"); else return false; return true; },
    PageDown: () => { if (!inTree()) return false; stepRow(20); return true; },
    PageUp: () => { if (!inTree()) return false; stepRow(-20); return true; },
    Home: () => { if (!inTree()) return false; stepRow(-1e9); return true; },
    End: () => { if (!inTree()) return false; stepRow(1e9); return true; },
    Enter: () => { if (inTree()) enterRow(); else if (inFlame()) return false; else { open("why"); by("why").setAttribute("tabindex", "-1"); by("why").focus(); } return true; },
    n: () => { if (inTree()) nextDifference(1); }, p: () => { if (inTree()) nextDifference(-1); },
    "/": () => { const box = inTree() ? tree.find : inFlame() ? fire.find : by("filter"); box.focus(); box.select(); },
    t: turnTheme, "?": showKeys,
    Escape: () => { if (inFlame()) zoomOut(); else return false; return true; },
    1: () => open("why"), 2: () => open("tree"), 3: () => open("flame"), 4: () => open("runs"),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || by("keys").open) return;
    const target = event.target, typing = target instanceof HTMLInputElement || target instanceof HTMLSelectElement;
    if (typing) {
      if (event.key === "Escape" || (event.key === "Enter" && target === by("filter"))) {
        if (event.key === "Escape") { target.value = ""; target.dispatchEvent(new Event("input")); }
        target.blur();
        (state.tab === "tree" && tree.box && target !== by("filter") ? tree.box : list).focus({ preventScroll: true });
        event.preventDefault();
      } else if (target === by("filter") && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
        stepSuspect(event.key === "ArrowDown" ? 1 : -1);
        event.preventDefault();
      }
      return;
    }
    if (target.getAttribute && target.getAttribute("role") === "tab" && event.key.startsWith("Arrow")) {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (move) { const next = TABS[(TABS.indexOf(state.tab) + move + TABS.length) % TABS.length]; open(next); by(`tab-${next}`).focus(); event.preventDefault(); return; }
    }
    if (event.key === "Enter" && target instanceof HTMLButtonElement) return;
    if (event.key.startsWith("Arrow") && target.classList && target.classList.contains("source")) return;
    const act = Object.hasOwn(ACTS, event.key) ? ACTS[event.key] : null;
    if (act && act() !== false) event.preventDefault();
  });
  for (const tab of TABS) by(`tab-${tab}`).addEventListener("click", () => open(tab));
  by("theme").addEventListener("click", turnTheme);
  by("help").addEventListener("click", showKeys);
  by("filter").addEventListener("input", () => { listSuspects(); if (state.shown.length && !state.shown.includes(state.suspect)) choose(state.shown[0]); });

  listSuspects();
  const [tab, rank] = location.hash.slice(1).split("=");
  const asked = data.suspects.findIndex((suspect) => suspect.rank === Number(rank));
  if (asked >= 0) state.suspect = asked;
  buildTree();
  buildFlame();
  buildRuns();
  markSuspect();
  showWhy();
  open(TABS.includes(tab) ? tab : "why");
  document.documentElement.dataset.ready = "1";
})();
