"use strict";

const report = (() => {
  const root = document.documentElement;
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const views = new Map();
  const callbacks = [];

  const isDark = () => (root.dataset.theme ?? (prefersDark.matches ? "dark" : "light")) === "dark";

  /** Return the content of a script element of type application/json. */
  const data = (id) => JSON.parse(document.getElementById(id).textContent);

  /** Call `callback(view)` with the Vega view of a chart now and each time that it is drawn again. */
  function onDraw(name, callback) {
    callbacks.push([name, callback]);
    if (views.has(name)) callback(views.get(name));
  }

  /** Vega-Lite's configuration, in the colours that the page has now. */
  function config(width) {
    const style = getComputedStyle(root);
    const [ink, quiet, line] = ["--ink", "--quiet", "--line"].map((name) => style.getPropertyValue(name));
    const text = { labelColor: quiet, titleColor: ink, labelFontSize: 12, titleFontSize: 12, titleFontWeight: 600 };
    return {
      aria: false, // the caption says what a chart shows; thousands of labelled points would be read one by one
      background: "transparent",
      font: "system-ui, sans-serif",
      padding: { left: 4, right: 12, top: 8, bottom: 4 },
      view: { stroke: null },
      axis: { ...text, gridColor: line, domainColor: line, tickColor: line, labelLimit: Math.min(240, 0.4 * width) },
      legend: { ...text, labelColor: ink, orient: "top", title: null, labelLimit: Math.min(240, 0.8 * width), columns: Math.max(1, Math.floor(width / 180)) },
      header: text,
      title: { color: ink, subtitleColor: quiet, anchor: "start", fontSize: 13 },
      text: { color: ink },
      rule: { color: quiet },
    };
  }

  const MANY = 1500; // rows above which a chart is a canvas: quicker than SVG

  function rows(spec) {
    const named = Object.values(spec.datasets ?? {});
    return [...named, spec.data?.values ?? []].reduce((sum, values) => sum + values.length, 0);
  }

  /** Return a specification; a chart of one view is as wide as the page, several views keep their width. */
  function responsive(spec) {
    const { row, column, facet } = spec.encoding ?? {};
    const isOne = (spec.mark || spec.layer) && !row && !column && !facet;
    return isOne ? { ...spec, width: "container" } : spec;
  }

  async function draw(element) {
    if (!element.clientWidth) return; // in a closed <details>: drawn when it is opened
    const spec = responsive(data(`${element.id}-spec`));
    views.get(element.id)?.finalize();
    const { view } = await vegaEmbed(element, spec, {
      actions: { export: true, source: false, compiled: false, editor: false },
      mode: "vega-lite", // not guessed
      ast: true, // expressions are interpreted: the page's policy forbids eval
      config: config(element.clientWidth),
      downloadFileName: element.id,
      renderer: rows(spec) > MANY ? "canvas" : "svg",
      tooltip: { theme: isDark() ? "dark" : "light" },
    });
    element.querySelector(".marks").setAttribute("aria-hidden", "true");
    views.set(element.id, view);
    for (const [name, callback] of callbacks) if (name === element.id) callback(view);
  }

  const charts = (inside = document) => [...inside.querySelectorAll(".drawing")];

  /** Draw all charts, from the top of the page; the browser may paint in between. */
  async function drawAll() {
    for (const element of charts()) {
      await draw(element);
      await new Promise((resume) => setTimeout(resume));
    }
  }

  const button = document.getElementById("theme");
  function label() {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
  }

  function theme(name) {
    if (name) root.dataset.theme = name;
    else delete root.dataset.theme;
    label();
  }

  button.hidden = false;
  button.addEventListener("click", () => { theme(isDark() ? "light" : "dark"); drawAll(); });
  prefersDark.addEventListener("change", () => { label(); drawAll(); });
  document.addEventListener("toggle", (event) => charts(event.target).forEach(draw), true);

  // Paper is white. Vega draws without waiting for timers, so that charts are ready when the page is printed.
  let before;
  addEventListener("beforeprint", () => { before = root.dataset.theme; theme("light"); charts().forEach(draw); });
  addEventListener("afterprint", () => { theme(before); drawAll(); });

  /** Mark the section that is read in the table of contents. */
  function follow() {
    const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
    const observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) continue;
        for (const link of links.values()) link.removeAttribute("aria-current");
        links.get(target.id).setAttribute("aria-current", "true");
      }
    }, { rootMargin: "-20% 0px -75% 0px" });
    for (const id of links.keys()) observer.observe(document.getElementById(id));
  }

  label();
  follow();
  addEventListener("DOMContentLoaded", drawAll); // after the scripts of the sections
  return { data, onDraw };
})();
