"use strict";
// What is chosen on the page, and drawing it again whenever that, its width or its colours change.

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const CLASSES = 10;
  const SHOWS = {
    score: ["rounds", "sent", "training_seconds", "device_seconds", "flops"],
    range: ["rounds", "sent", "training_seconds", "device_seconds", "flops", "worst"],
    bits: ["sent", "ledger"],
    scale: ["sent", "training_seconds", "device_seconds", "flops"],
    ledger: ["ledger"],
    layer: ["layers"],
  };
  const PRINTED = { width: 330, whole: 680, height: 240 };

  const hidden = new Set();
  const chosen = {
    score: data.score, range: "auto", bits: "sent", scale: "auto", ledger: "bits", layer: "density",
  };
  const charts = [...document.querySelectorAll("[data-chart]")].map((element) => ({
    element, name: element.dataset.chart, which: Number(element.dataset.which), drawn: null, zoom: null,
  }));

  // A custom property may be a function of the colour scheme; only a real colour is resolved.
  function resolve(name) {
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = `var(${name})`;
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  function theme() {
    const several = (name, count) => Array.from({ length: count }, (_, at) => resolve(`--${name}-${at}`));
    return {
      ink: resolve("--ink"), faint: resolve("--faint"), line: resolve("--line"), paper: resolve("--paper"),
      ground: resolve("--ground"), colours: several("colour", Charts.colours), classes: several("class", CLASSES),
    };
  }

  let colours = theme();
  let printing = false;

  function draw(chart) {
    const { element, name, which } = chart;
    if (!element.closest("details").open) {
      chart.width = 0; // drawn when it is opened, whatever has changed by then
      return;
    }
    const width = printing ? PRINTED[element.closest(".whole") ? "whole" : "width"] : element.clientWidth;
    if (!width) return;
    const view = { data, chosen, hidden, theme: colours, width, zoom: chart.zoom };
    const height = Charts.heights[name] ? Charts.heights[name](view, which) : printing ? PRINTED.height : 0;
    element.style.height = height ? `${height}px` : "";
    if (!chart.drawn) {
      const renderer = Charts.many(view, name, which) ? "canvas" : "svg";
      chart.drawn = echarts.init(element, null, { renderer, devicePixelRatio: 2 });
    }
    chart.width = width;
    chart.drawn.resize({ width, height: element.clientHeight });
    chart.drawn.setOption(Charts.option(view, name, which), { notMerge: true });
    if (printing) chart.drawn.getZr().flush();
  }

  const drawAll = () => charts.forEach(draw);

  // runs ------------------------------------------------------------------------------------------

  for (const button of document.querySelectorAll("[data-group]")) {
    button.addEventListener("click", () => {
      const place = Number(button.dataset.group);
      if (!hidden.delete(place)) hidden.add(place);
      button.setAttribute("aria-pressed", String(!hidden.has(place)));
      drawAll();
    });
  }

  // what is shown ---------------------------------------------------------------------------------

  function show(name) {
    for (const other of document.querySelectorAll(`[data-choice="${name}"]`)) {
      other.setAttribute("aria-pressed", String(other.value === chosen[name]));
    }
  }

  for (const button of document.querySelectorAll("[data-choice]")) {
    button.addEventListener("click", () => {
      chosen[button.dataset.choice] = button.value;
      show(button.dataset.choice);
      const shown = charts.filter((chart) => SHOWS[button.dataset.choice].includes(chart.name));
      shown.forEach((chart) => zoomTo(chart, null));
    });
  }
  if (Charts.wide({ data, chosen, hidden })) chosen.ledger = "share";
  Object.keys(chosen).forEach(show);

  // zoom and downloads ----------------------------------------------------------------------------

  function zoomTo(chart, selected) {
    chart.zoom = selected;
    const button = chart.element.closest("figure").querySelector("[data-tool=zoom]");
    if (button) {
      button.textContent = selected ? "Reset" : "Zoom";
      button.setAttribute("aria-pressed", "false");
    }
    draw(chart);
  }

  /** A view for a figure on white paper, whatever the page looks like. */
  function printed(chart) {
    const before = root.dataset.theme;
    root.dataset.theme = "light";
    const view = { data, chosen, hidden, theme: theme(), zoom: chart.zoom };
    if (before) root.dataset.theme = before;
    else delete root.dataset.theme;
    return view;
  }

  for (const chart of charts) {
    const figure = chart.element.closest("figure");
    const zoom = figure.querySelector("[data-tool=zoom]");
    if (zoom) {
      const armed = () => zoom.getAttribute("aria-pressed") === "true";
      zoom.addEventListener("click", () => {
        if (chart.zoom) zoomTo(chart, null);
        else zoom.setAttribute("aria-pressed", String(!armed()));
        chart.element.classList.toggle("armed", armed());
      });
      Zoom.watch(chart, armed, (selected) => {
        zoomTo(chart, selected);
        chart.element.classList.remove("armed");
      });
    }
    for (const button of figure.querySelectorAll("[data-download]")) {
      const name = figure.querySelector("figcaption b").textContent;
      const whole = Boolean(chart.element.closest(".whole"));
      button.addEventListener("click", () => Downloads[button.value](name, printed(chart), { ...chart, whole }));
    }
  }

  // colours ---------------------------------------------------------------------------------------

  function paint(scheme) {
    if (scheme) root.dataset.theme = scheme;
    else delete root.dataset.theme;
    colours = theme();
    drawAll();
  }

  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
    paint(dark ? "light" : "dark");
  });
  system.addEventListener("change", () => paint(root.dataset.theme));

  // size and paper --------------------------------------------------------------------------------

  const watch = new ResizeObserver((entries) => {
    if (printing) return;
    for (const entry of entries) {
      const chart = charts.find((each) => each.element === entry.target);
      if (entry.contentRect.width && entry.contentRect.width !== chart.width) draw(chart);
    }
  });
  charts.forEach((chart) => watch.observe(chart.element));

  for (const section of document.querySelectorAll("section > details")) {
    section.addEventListener("toggle", () => {
      charts.filter((chart) => section.contains(chart.element) && !chart.width).forEach(draw);
    });
  }

  let before = null;
  window.addEventListener("beforeprint", () => {
    before = { theme: root.dataset.theme, closed: [...document.querySelectorAll("details:not([open])")] };
    before.closed.forEach((each) => { each.open = true; });
    printing = true;
    paint("light");
  });
  window.addEventListener("afterprint", () => {
    if (!before) return;
    printing = false;
    before.closed.forEach((each) => { each.open = false; });
    paint(before.theme);
    before = null;
  });

  drawAll();
  root.dataset.drawn = String(charts.filter((chart) => chart.drawn).length);
})();
