const CUT = 300; // characters of a text that are shown at first
const HEADING = 160; // and in the heading of a query
const ROWS = 20; // entries that are shown at first

const list = document.getElementById("queries-list");
if (list) start(report.data("queries-data"));

function start({ models, texts, tasks }) {
  const [task, model, outcome, search, count] = ["task", "model", "outcome", "search", "count"].map((name) => document.getElementById(`queries-${name}`));
  const number = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
  const cosine = (value) => (value === null ? "–" : value.toFixed(3));

  /** Return an element; strings among its children become text, never markup. */
  function make(name, properties, ...children) {
    const element = Object.assign(document.createElement(name), properties);
    element.append(...children);
    return element;
  }

  /** Return the first characters of a text, without halves of surrogate pairs. */
  const first = (text, length) => Array.from(text.slice(0, 2 * length)).slice(0, length).join("");

  const nameOf = (item) => texts[item][0];
  const contentOf = (item) => texts[item][1];

  /** Return a text by its number: its beginning, and a button that shows all that is stored. */
  function shownText(item) {
    const [name, content, length] = texts[item];
    const id = name ? [make("bdi", { className: "quiet id", textContent: name })] : [];
    if (content === null) return make("div", {}, ...id);
    const start = first(content, CUT);
    const words = make("p", { dir: "auto", textContent: content.trim() ? start : "(empty text)" });
    if (start.length === content.length) return make("div", {}, ...id, words);
    words.append("…");
    const total = number.format(length ?? Array.from(content).length);
    const more = make("button", { type: "button", textContent: `Show more (${total} characters)` });
    more.addEventListener("click", () => {
      words.textContent = content;
      more.replaceWith(...(length ? [`The first ${number.format(Array.from(content).length)} of ${total} characters.`] : []));
    });
    return make("div", {}, ...id, words, more);
  }

  function sign(won) {
    return make("span", { className: won ? "better" : "worse", textContent: won ? "▲ won" : "▼ lost" });
  }

  function rank(value, depth) {
    if (depth === 1) return value === 1 ? "answer in the nearest document" : "no answer in the nearest document";
    return value === null ? `not in the first ${depth}` : `rank ${value}`;
  }

  function side(name, entry, k, depth) {
    const items = entry.tops[k].map((item) => {
      const right = entry.right.includes(item);
      const mark = right ? [make("strong", { className: "mark", textContent: depth === 1 ? "✓ has an answer" : "✓ relevant" })] : [];
      return make("li", { className: right ? "right" : "" }, ...mark, shownText(item));
    });
    return make("div", {}, make("h4", {}, make("bdi", { textContent: name }), `: ${rank(entry.ranks[k], depth)}`), make("ol", {}, ...items));
  }

  function queryEntry(entry, chosen, names) {
    const content = contentOf(entry.query);
    const heading = content === null ? nameOf(entry.query) : first(content, HEADING) + (content.length > HEADING ? "…" : "");
    const short = (value) => (value === null ? (chosen.depth === 1 ? "not found" : `beyond ${chosen.depth}`) : chosen.depth === 1 ? "found" : value);
    const ranks = `${chosen.depth === 1 ? "answer" : "rank"} ${short(entry.ranks[0])} → ${short(entry.ranks[1])}`;
    const summary = make("summary", {}, sign(entry.won), " ", make("bdi", { className: "query", textContent: heading }), " ", make("span", { className: "number quiet", textContent: ranks }));
    const details = make("details", { className: "change" }, summary);
    details.addEventListener("toggle", () => {
      const missed = entry.missed.map((item) => make("div", { className: "missed" }, make("h4", {}, "Relevant, and in neither list"), shownText(item)));
      details.append(make("div", { className: "asked" }, shownText(entry.query)), ...missed,
        make("div", { className: "sides" }, ...names.map((name, k) => side(name, entry, k, chosen.depth))));
    }, { once: true });
    return details;
  }

  const cell = (...children) => make("td", {}, ...children);
  const numeric = (...children) => make("td", { className: "number" }, ...children);

  function pairEntry(entry, chosen) {
    const both = [...new Set(entry.texts)].map(shownText);
    const ranked = (value, k) => numeric(value, ...(chosen.scored ? [make("br"), make("span", { className: "quiet", textContent: `rank ${number.format(entry.ranks[k])}` })] : []));
    return make("tr", {}, cell(sign(entry.won)), make("td", { className: "pair" }, ...both),
      ...[number.format(entry.gold), ...entry.cosines.map(cosine)].map(ranked));
  }

  function classEntry(entry) {
    const [gold, predicted] = entry.classes.map((name) => cell(make("bdi", { textContent: name })));
    return make("tr", {}, cell(sign(entry.won)), gold, predicted, ...entry.counts.map((value) => numeric(String(value))), numeric(String(entry.total)));
  }

  function table(headings, rows, numbers) {
    const head = headings.map((name, i) => make("th", { scope: "col", className: i >= numbers ? "number" : "" }, make("bdi", { textContent: name })));
    return make("div", { className: "scroll" }, make("table", { className: "grid" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)));
  }

  const kinds = {
    queries: {
      texts: (entry) => [entry.query, ...entry.tops.flat(), ...entry.missed],
      noun: "queries",
      changed: "changed rank",
      show: (chosen, entries, names) => entries.map((entry) => queryEntry(entry, chosen, names)),
    },
    pairs: {
      texts: (entry) => entry.texts,
      noun: "pairs",
      changed: "changed",
      show: (chosen, entries, [base, other]) => {
        const headings = ["", "Pair", chosen.scored ? "Human score" : "Label", `Cosine, ${base}`, `Cosine, ${other}`];
        return [table(headings, entries.map((entry) => pairEntry(entry, chosen)), 2)];
      },
    },
    classes: {
      texts: () => [],
      noun: "texts",
      changed: "pairs of classes are confused more or less often",
      show: (_, entries, [base, other]) => [table(["", "Class", "Predicted as", `Texts, ${base}`, `Texts, ${other}`, "Texts of the class"], entries.map(classEntry), 3)],
    },
  };

  const plain = (text) => text.normalize("NFKC").toLowerCase();
  const searched = new Map(); // text of an entry that is searched, by entry

  function matches(entry, kind, wanted) {
    if (!wanted) return true;
    if (!searched.has(entry)) {
      const parts = kind.texts(entry).flatMap((item) => [nameOf(item), contentOf(item) ?? ""]);
      searched.set(entry, plain([...parts, ...(entry.classes ?? [])].join("\n")));
    }
    return searched.get(entry).includes(wanted);
  }

  function update() {
    const chosen = tasks[task.value];
    const kind = kinds[chosen.kind];
    const { entries, changed, won } = chosen.lists[model.value];
    const wanted = plain(search.value.trim());
    const shown = entries.filter((entry) => (outcome.value === "all" || entry.won === (outcome.value === "won")) && matches(entry, kind, wanted));
    const counts = `${number.format(won)} won, ${number.format(changed - won)} lost`;
    const total = chosen.kind === "classes"
      ? `${number.format(changed)} ${kind.changed} (${counts})`
      : `${number.format(changed)} of ${number.format(chosen.total)} ${kind.noun} ${kind.changed} (${counts})`;
    count.textContent = `${total}. ${number.format(shown.length)} of the ${number.format(entries.length)} listed match.`;
    for (const help of document.querySelectorAll("#queries [data-kind]")) help.hidden = help.dataset.kind !== chosen.kind;
    const names = [models[0], models[Number(model.value) + 1]];
    const show = (entries) => list.replaceChildren(...(entries.length ? kind.show(chosen, entries, names) : []));
    show(shown.slice(0, ROWS));
    if (shown.length <= ROWS) return;
    const all = make("button", { type: "button", textContent: `Show all ${number.format(shown.length)}` });
    all.addEventListener("click", () => show(shown));
    list.append(all);
  }

  const option = (textContent, value) => make("option", { textContent, value });
  task.append(...tasks.map(({ label }, i) => option(label, i)));
  model.append(...models.slice(1).map(option));
  for (const control of [task, model, outcome]) control.addEventListener("change", update);
  search.addEventListener("input", update);
  document.getElementById("queries-controls").hidden = false;
  update();
}
