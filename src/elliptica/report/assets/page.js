// Draw each chart when it comes into view, in the colours of the page.
"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const plots = [...document.querySelectorAll(".plot")];

function draw(plot) {
  const source = document.getElementById("plotly");
  if (source) {  // plotly.js is read with the first chart: words and tables do not wait for it
    const script = document.createElement("script");
    script.textContent = source.textContent;
    source.remove();
    document.head.append(script);
  }
  watcher.unobserve(plot);
  const { data, layout } = figures[plots.indexOf(plot)];
  const { color, fontFamily } = getComputedStyle(plot);
  plot.style.height = `${layout.height ?? 320}px`;
  Plotly.newPlot(plot, data, { ...layout, font: { color, family: fontFamily, size: 12 } }, { displayModeBar: false, responsive: true });
}

const watcher = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target)),
  { rootMargin: "300px" },
);
plots.forEach((plot) => watcher.observe(plot));
addEventListener("beforeprint", () => plots.filter((plot) => !plot._fullLayout).forEach(draw));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.filter((plot) => plot._fullLayout).forEach(draw));
document.documentElement.dataset.ready = "true";
performance.mark("report-ready");
