// The loss as a surface that can be turned, as a map, and along bridges between the data.
"use strict";
(() => {
  const { builders, axis, layout, plain, select, logTicks } = charts;
  const shared = new Map();  // by study: which model, plane and scale the surface and the map show
  const choice = (study) => {
    if (!shared.has(study)) shared.set(study, { model: 0, plane: 0, scale: "log" });
    return shared.get(study);
  };
  const CAMERA = { eye: { x: 1.42, y: -1.52, z: 1.05 }, center: { x: 0, y: 0, z: -0.12 }, up: { x: 0, y: 0, z: 1 } };

  function controls(study) {
    const now = choice(study), found = study.landscapes[now.model];
    const set = (key) => (value) => {
      now[key] = key === "scale" ? value : Number(value);
      if (key === "model") now.plane = Math.min(now.plane, study.landscapes[now.model].planes.length - 1);
      charts.figuresOf(study.name).filter((f) => ["surface", "contour", "bridges"].includes(f.dataset.chart)).forEach(charts.draw);
    };
    const numbered = (list, text) => list.map((each, i) => [i, text(each)]);
    const made = [];
    if (study.landscapes.length > 1) made.push(select("Model", numbered(study.landscapes, (l) => l.name), now.model, set("model")));
    if (found.planes.length > 1) made.push(select("Plane", numbered(found.planes, (p) => p.title), now.plane, set("plane")));
    made.push(select("Heights", [["log", "logarithmic"], ["linear", "linear"]], now.scale, set("scale")));
    return made;
  }

  const which = (study) => (study.landscapes.length > 1 ? `${study.landscapes[choice(study).model].name}. ` : "");

  // losses may be zero up to rounding: what is a millionth of the largest lies on the floor
  function heights(study, plane) {
    const all = plane.loss.flat().concat(plane.points.loss);
    const top = Math.max(...all, 1e-12), floor = top / 1e6;
    const isLog = choice(study).scale === "log";
    const height = (v) => (isLog ? Math.log10(Math.max(v, floor)) : v);
    const ticks = isLog ? logTicks([Math.max(Math.min(...all), floor), top]) : null;
    return { height, ticks: ticks && { tickvals: ticks.tickvals.map(Math.log10), ticktext: ticks.ticktext } };
  }

  const marks = (plane) => plane.points.label.map((label, i) => `${plain(label)}: loss ${plane.points.loss[i].toPrecision(3)}`);

  function numbers(study, plane) {
    return {
      caption: `Loss at the data shown; ${plane.title}`, head: ["label", plane.axes[0], plane.axes[1], "loss"],
      rows: plane.points.label.map((label, i) => [label, plane.points.x[i], plane.points.y[i], plane.points.loss[i]]),
    };
  }

  function turn(plot, angle, lift) {
    const camera = structuredClone(plot._fullLayout.scene.camera ?? CAMERA), { x, y, z } = camera.eye;
    const flat = Math.hypot(x, y), size = Math.hypot(flat, z);
    const round = Math.atan2(y, x) + angle, up = Math.min(1.5, Math.max(-0.2, Math.atan2(z, flat) + lift));
    camera.eye = { x: size * Math.cos(up) * Math.cos(round), y: size * Math.cos(up) * Math.sin(round), z: size * Math.sin(up) };
    Plotly.relayout(plot, { "scene.camera": camera });
  }

  builders.surface = (study, state, { narrow }) => {
    const now = choice(study), found = study.landscapes[now.model], plane = found.planes[now.plane];
    const { height, ticks } = heights(study, plane);
    const tops = plane.loss.flat().map(height), lift = 0.012 * (Math.max(...tops) - Math.min(...tops));  // just above the surface
    const ink = theme.colour("muted"), side = { color: ink, gridcolor: theme.colour("line"), zeroline: false, showspikes: false,
      showbackground: false, tickfont: { size: 10 } };
    const traces = [{
      type: "surface", x: plane.x, y: plane.y, z: plane.loss.map((row) => row.map(height)), colorscale: "Viridis", showscale: false,
      hoverinfo: "text", hovertext: plane.loss.map((row) => row.map((v) => `loss ${v.toPrecision(3)}`)),
      lighting: { ambient: 0.78, diffuse: 0.45, specular: 0.06, roughness: 0.8 }, contours: { z: { show: true, usecolormap: false,
        color: "rgba(255,255,255,0.35)", width: 1 } },
    }];
    if (plane.points.inPlane) traces.push({
      type: "scatter3d", mode: "markers", x: plane.points.x, y: plane.points.y, z: plane.points.loss.map((v) => height(v) + lift),
      hoverinfo: "text", hovertext: marks(plane), marker: { size: plane.points.x.length > 3 ? 2.6 : 5, color: theme.colour("s2"),
        line: { color: theme.colour("card"), width: 0.5 } },
    });
    const title = (text) => ({ text: plain(text), font: { size: 11, color: ink } });
    return {
      traces, controls: controls(study), numbers: numbers(study, plane),
      layout: layout({
        height: narrow ? 340 : 430, margin: { l: 0, r: 0, t: 0, b: 0 }, dragmode: "turntable",
        scene: { xaxis: { ...side, title: title(plane.axes[0]) }, yaxis: { ...side, title: title(plane.axes[1]) },
          zaxis: { ...side, title: title(""), ...(ticks ?? {}) }, aspectmode: "manual", aspectratio: { x: 1.25, y: 1.25, z: 0.72 },
          camera: state.camera ?? (narrow ? { ...CAMERA, eye: { x: 1.8, y: -1.93, z: 1.3 } } : CAMERA) },
        uirevision: "keep",
      }),
      after: (plot) => {
        if (state.hasKeys) return;
        state.hasKeys = true;
        plot.tabIndex = 0;
        plot.addEventListener("keydown", (event) => {
          const move = { ArrowLeft: [-0.15, 0], ArrowRight: [0.15, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] }[event.key];
          if (!move) return;
          event.preventDefault();
          turn(plot, ...move);
        });
      },
    };
  };

  builders.contour = (study) => {
    const now = choice(study), found = study.landscapes[now.model], plane = found.planes[now.plane];
    const { height, ticks } = heights(study, plane);
    const traces = [{
      type: "contour", x: plane.x, y: plane.y, z: plane.loss.map((row) => row.map(height)), colorscale: "Viridis", ncontours: 16,
      hoverinfo: "text", hovertext: plane.loss.map((row) => row.map((v) => `loss ${v.toPrecision(3)}`)),
      line: { width: 0.6, color: "rgba(255,255,255,0.5)" },
      colorbar: { thickness: 10, outlinewidth: 0, len: 0.9, title: { text: "loss", side: "right" }, ...(ticks ?? {}) },
    }];
    for (const path of (found.bridges.path ?? []).slice(0, 10)) traces.push({
      type: "scatter", mode: "lines", x: path.map((p) => p[0]), y: path.map((p) => p[1]), hoverinfo: "skip",
      line: { color: "rgba(255,255,255,0.75)", width: 1.1 },
    });
    const labels = [...new Set(plane.points.label)], few = labels.length <= 6 && plane.points.x.length > 3;
    const symbols = ["circle", "square", "diamond", "triangle-up", "cross", "x"];
    traces.push({
      type: "scatter", mode: plane.points.x.length === 3 ? "markers+text" : "markers", x: plane.points.x, y: plane.points.y,
      text: plane.points.label.map(plain), textposition: "top center", textfont: { color: "#ffffff" },
      hoverinfo: "text", hovertext: marks(plane), marker: { size: plane.points.x.length > 3 ? 6 : 10, color: "#ffffff",
        symbol: plane.points.label.map((l) => (few ? symbols[labels.indexOf(l)] : "circle")), line: { color: "#1b1f27", width: 1.2 } },
    });
    const far = plane.points.inPlane ? "" : " Data are projected: they do not lie in this plane.";
    const paths = found.bridges.path ? " White lines are bridges." : "";
    const note = tables.element("p", { class: "note" }, `${which(study)}${plane.note}${far}${paths}`);
    return {
      traces, controls: [note], numbers: numbers(study, plane),
      layout: layout({ height: 400, xaxis: axis(plain(plane.axes[0]), { showgrid: false }), yaxis: axis(plain(plane.axes[1]), { showgrid: false }) }),
    };
  };

  builders.bridges = (study) => {
    const found = study.landscapes[choice(study).model], { s, loss, from, to } = found.bridges, [low, high] = found.band;
    const top = Math.max(high, ...loss.flat()), floor = top / 1e6, isLog = choice(study).scale === "log";
    const value = (v) => (isLog ? Math.max(v, floor) : v);
    const above = loss.map((line) => Math.max(...line) > high);
    const traces = loss.map((line, i) => ({
      type: "scatter", mode: "lines", x: s, y: line.map(value), hoverinfo: "text", opacity: 0.75,
      hovertext: line.map((v) => `${plain(from[i])} to ${plain(to[i])}: loss ${v.toPrecision(3)}`),
      line: { color: theme.colour(above[i] ? "s2" : "s1"), width: above[i] ? 1.8 : 1.3 },
    }));
    const share = (v) => `${(100 * v).toFixed(1)}\u00a0%`;
    const words = `${which(study)}${above.filter(Boolean).length} of the ${loss.length} bridges shown leave the band ` +
      `upwards (orange). Of ${found.above.n} single points on bridges between ${found.rows}, ${share(found.above.share)} lie above every loss at these rows ` +
      `(95 % interval ${share(found.above.low)} to ${share(found.above.high)}).`;
    const line = (y) => ({ type: "line", xref: "paper", x0: 0, x1: 1, y0: value(y), y1: value(y), line: { color: theme.colour("ink"), width: 1.2, dash: "dash" } });
    return {
      traces, controls: [tables.element("p", { class: "note" }, words)],
      layout: layout({
        height: 360, xaxis: axis("from one data point (0) to the other (1)", { range: [0, 1], showgrid: false }),
        yaxis: axis("loss", isLog ? logTicks([value(Math.min(low, ...loss.flat())), top]) : { rangemode: "tozero" }),
        shapes: [{ type: "rect", xref: "paper", x0: 0, x1: 1, y0: value(low), y1: value(high), layer: "below", line: { width: 0 },
          fillcolor: theme.colour("accent-soft") }, line(high)],
        annotations: [{ xref: "paper", x: 1, y: isLog ? Math.log10(value(high)) : high, text: "largest loss at the data", showarrow: false,
          xanchor: "right", yanchor: "bottom", bgcolor: theme.colour("card"), borderpad: 2, font: { size: 11, color: theme.colour("ink") } }],
      }),
      numbers: {
        caption: "Bridges shown", head: ["from", "to", "loss at the start", "at the end", "largest on the way", "above the band"],
        rows: loss.map((l, i) => [from[i], to[i], l[0], l[l.length - 1], Math.max(...l), above[i] ? "yes" : "no"]),
      },
    };
  };
})();
