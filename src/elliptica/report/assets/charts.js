// Shared by all charts: data, colours of methods, lazy drawing, labels that are safe from HTML.
"use strict";
const charts = (() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const studies = new Map(data.studies.map((study) => [study.name, study]));
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "hexagon"];
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
  const STROKES = { solid: "none", dash: "6 3", dot: "2 2", dashdot: "6 2 2 2", longdash: "10 3", longdashdot: "10 2 2 2" };
  const slots = new Map();  // by study: method -> number of its colour
  const builders = {};
  const drawn = new Map();  // figure -> what it shows, to draw it again

  // plotly reads labels as HTML, and knows these entities
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text, most = 26) => plain(text.length > most ? `${text.slice(0, most - 1)}…` : text);

  for (const study of data.studies) slots.set(study, new Map(study.shown.map((method, i) => [method, i])));

  function look(study, method) {
    const slot = slots.get(study).get(method);
    const isShown = slot !== undefined;
    return {
      isShown,
      colour: theme.colour(isShown ? `s${slot + 1}` : "other"),
      symbol: isShown ? SYMBOLS[slot] : "circle",
      dash: isShown ? DASHES[slot] : "solid",
    };
  }
  // in the order of the table
  const shown = (study) => study.methods.filter((method) => slots.get(study).has(method));

  function axis(title, more = {}) {
    return {
      title: { text: title, font: { size: 12 }, standoff: 8 }, automargin: true, fixedrange: true, zeroline: false,
      gridcolor: theme.colour("grid"), linecolor: theme.colour("line"), ticks: "", ...more,
    };
  }

  function layout(more) {
    return {
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: theme.colour("muted") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 8, r: 14, t: 8, b: 8 },
      showlegend: false, dragmode: false, hovermode: "closest",
      hoverlabel: { bgcolor: theme.colour("card"), bordercolor: theme.colour("line"), font: { color: theme.colour("ink") } },
      ...more,
    };
  }

  // ticks of a logarithmic axis: powers of ten, with 2 and 5 where there is room
  function logTicks(values) {
    const logs = values.filter((v) => v > 0).map(Math.log10), low = Math.min(...logs), high = Math.max(...logs);
    const steps = high - low > 2.5 ? [1] : [1, 2, 5];
    const vals = [];
    for (let e = Math.floor(low) - 1; e <= Math.ceil(high); e += Math.max(1, Math.round((high - low) / 6)))
      for (const step of steps) vals.push(step * 10 ** e);
    return { type: "log", tickvals: vals, ticktext: vals.map((v) => (v >= 1e-4 && v < 1e7 ? Number(v.toPrecision(1)).toLocaleString("en", { maximumFractionDigits: 6 }) : v.toExponential(0))) };
  }

  // methods along the side, the first one on top
  const rows = (names, most = 26) => ({
    tickvals: names.map((_, i) => i), ticktext: names.map((name) => `${short(name, most)} `),
    range: [names.length - 0.4, -0.6], showgrid: false,
  });

  // dots for bars; lines also differ by their dashes, for readers who cannot tell colours
  function legend(study, methods, isLines) {
    const box = tables.element("p", { class: "legend" });
    for (const method of methods) {
      const { colour, dash } = look(study, method);
      const mark = tables.element("span", { class: isLines ? "stroke" : "swatch", "aria-hidden": "true" });
      if (isLines) mark.innerHTML = `<svg width="26" height="8"><line x2="26" y1="4" y2="4" stroke="${colour}" stroke-width="2.2" stroke-dasharray="${STROKES[dash]}"/></svg>`;
      else mark.style.background = mark.style.borderColor = colour;
      box.append(tables.element("span", {}, mark, method));
    }
    return box;
  }

  function select(label, options, value, change) {
    const box = tables.element("select");
    options.forEach(([key, text]) => box.append(new Option(text, key, false, String(key) === String(value))));
    box.addEventListener("change", () => change(box.value));
    return tables.element("label", {}, label, box);
  }

  // one choice of a measure for each figure that has several
  function measureSelect(figure, study, state, names) {
    const known = study.measures.filter((m) => names.includes(m.name));
    state.measure = known.find((m) => m.name === state.measure?.name) ?? known[0];
    if (known.length < 2) return [];
    return [select("Measure", known.map((m) => [m.name, m.label]), state.measure.name, (name) => {
      state.measure = known.find((m) => m.name === name);
      draw(figure);
    })];
  }

  // plotly.js is read when the first chart comes into view: words and tables do not wait for it
  function ready() {
    const source = document.getElementById("plotly-source");
    if (!source) return;
    const script = document.createElement("script");
    script.textContent = source.textContent;
    source.remove();
    document.head.append(script);
  }

  const CONFIG = { displayModeBar: false, responsive: true, scrollZoom: false };

  // cards grow and shrink with their neighbours; what is drawn follows
  const filling = new ResizeObserver((entries) => {
    for (const { target: plot } of entries) {
      const { width, height } = plot._fullLayout ?? {}, { clientWidth, clientHeight } = plot;
      const differs = Math.abs(width - clientWidth) > 1 || Math.abs(height - clientHeight) > 1;
      if (width && clientWidth && clientHeight && differs) Plotly.Plots.resize(plot);
    }
  });

  function draw(figure) {
    ready();
    const study = studies.get(figure.dataset.study);
    const [kind, number] = figure.dataset.chart.split("-");
    const state = drawn.get(figure) ?? {};
    drawn.set(figure, state);
    const plot = figure.querySelector(".plot");
    let made;
    try {
      made = builders[kind](study, state, { figure, number: Number(number ?? 0), narrow: plot.clientWidth < 420 });
    } catch (error) {
      plot.replaceChildren(tables.element("p", { class: "waiting" }, "This chart cannot be drawn; see the numbers below."));
      console.error(error);
      return;
    }
    plot.querySelector(".waiting")?.remove();
    const active = document.activeElement?.closest?.("[data-controls]") === figure.querySelector("[data-controls]");
    if (!active) figure.querySelector("[data-controls]").replaceChildren(...(made.controls ?? []));
    figure.querySelector(".legend")?.remove();
    if (made.legend && study.methods.length > 1) plot.before(legend(study, made.legend, made.isLines));
    plot.style.minHeight = `${made.layout.height ?? 320}px`;
    delete made.layout.height;  // a card is as high as its neighbour, and its chart fills it
    Plotly.react(plot, made.traces, made.layout, CONFIG);
    filling.observe(plot);
    made.after?.(plot);
    state.numbers = made.numbers;
    if (figure.querySelector("details.numbers").open) showNumbers(figure);
  }

  function showNumbers(figure) {
    if (!drawn.has(figure)) draw(figure);
    const { caption, head, rows: lines } = drawn.get(figure).numbers;
    figure.querySelector("[data-numbers]").replaceChildren(tables.make(caption, head, lines));
  }

  const figuresOf = (name) => [...drawn.keys()].filter((figure) => figure.dataset.study === name);

  function start() {
    const figures = [...document.querySelectorAll("figure[data-chart]")];
    const watcher = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (entry.isIntersecting && !drawn.has(entry.target)) draw(entry.target);
      }
    }, { rootMargin: "300px" });
    for (const figure of figures) {
      watcher.observe(figure);
      figure.querySelector("details.numbers").addEventListener("toggle", (event) => {
        if (event.target.open) showNumbers(figure);
      });
    }
    for (const box of document.querySelectorAll("[data-chips]")) startChips(box);
    theme.onChange(() => {
      [...drawn.keys()].forEach(draw);
      for (const box of document.querySelectorAll("[data-chips]")) paintChips(box);
    });
    let opened = [];
    addEventListener("beforeprint", () => {
      opened = [...document.querySelectorAll("details.why:not([open]), details.words:not([open]), details.run-with:not([open])")];
      for (const details of opened) details.open = true;
      document.documentElement.classList.add("paper");  // as wide as a page: charts cannot be scaled afterwards
      theme.forPaper(true);
      figures.forEach(draw);
    });
    addEventListener("afterprint", () => {
      for (const details of opened) details.open = false;
      document.documentElement.classList.remove("paper");
      theme.forPaper(false);
    });
  }

  function paintChips(box) {
    const study = studies.get(box.dataset.chips);
    const isFull = slots.get(study).size >= SYMBOLS.length;
    for (const input of box.querySelectorAll("input")) {
      const { isShown, colour } = look(study, study.methods[input.value]);
      input.checked = isShown;
      input.disabled = isFull && !isShown;
      const dot = input.nextElementSibling;
      dot.style.background = isShown ? colour : "transparent";
      dot.style.borderColor = isShown ? colour : "";
    }
  }

  function startChips(box) {
    const study = studies.get(box.dataset.chips), taken = slots.get(study);
    box.addEventListener("change", (event) => {
      const method = study.methods[event.target.value];
      if (!event.target.checked) taken.delete(method);
      else taken.set(method, SYMBOLS.findIndex((_, i) => ![...taken.values()].includes(i)));
      paintChips(box);
      figuresOf(study.name).forEach(draw);
    });
    paintChips(box);
  }

  return { builders, look, shown, axis, layout, logTicks, rows, plain, short, select, measureSelect, draw, start, studies, figuresOf };
})();
