// Charts of the methods in colour: parts, reliability, uncertainty, training.
"use strict";
(() => {
  const { builders, look, shown, axis, layout, plain, short } = charts;
  const MOST_PARTS = 24;

  function bars(study, parts, ticktext, title, spread) {
    const methods = shown(study).filter((m) => parts.cells[m]);
    const traces = methods.map((method) => {
      const cells = parts.names.map((name) => parts.cells[method][name] ?? null);
      const reach = (cell, side) => (cell ? spread(cell)[side] : null);
      return {
        type: "bar", x: parts.names.map((_, i) => i), y: cells.map((c) => c?.mean[0] ?? null), hoverinfo: "text",
        hovertext: cells.map((c, i) => (c ? `${plain(method)}, ${plain(parts.names[i])}: ${Number(c.mean[0].toPrecision(4))}` : "")),
        textposition: "none", marker: { color: look(study, method).colour },
        error_y: { type: "data", symmetric: false, array: cells.map((c) => reach(c, 1)), arrayminus: cells.map((c) => reach(c, 0)),
          thickness: 1.3, width: 0, color: theme.colour("ink") },
      };
    });
    return {
      traces, legend: methods,
      layout: layout({ height: 330, bargap: 0.28, bargroupgap: 0.08, barmode: "group",
        xaxis: axis("", { tickvals: parts.names.map((_, i) => i), ticktext, showgrid: false, range: [-0.6, parts.names.length - 0.4] }),
        yaxis: axis(title, { rangemode: "tozero" }) }),
    };
  }

  const interval = ({ mean: [centre, low, high] }) => (low === null ? [0, 0] : [centre - low, high - centre]);

  builders.parts = (study, state, { number }) => {
    const all = study.parts[number], measure = study.measures.find((m) => m.name === "average") ?? study.measures[0];
    let names = all.names;
    if (names.length > MOST_PARTS) {  // the worst ones of the reference; all are in the numbers
      const score = (name) => (all.cells[study.reference]?.[name]?.mean[0] ?? 0) * (measure.up ? 1 : -1);
      names = [...names].sort((a, b) => score(a) - score(b)).slice(0, MOST_PARTS);
    }
    const ticks = names.map((name) => short(name, 16) + (all.sizes?.[name] ? `<br>(${all.sizes[name].toLocaleString("en")})` : ""));
    const title = measure.label + (measure.percent ? ", %" : "");
    const made = bars(study, { ...all, names }, ticks, title, interval);
    const note = names.length < all.names.length
      ? [tables.element("p", { class: "note" }, `The ${names.length} worst of ${all.names.length}; all are in the numbers.`)] : [];
    return { ...made, controls: note, numbers: {
      caption: `${title}, by ${all.kind}`, head: [all.kind, ...study.methods.flatMap((m) => [m, "low", "high"])],
      rows: all.names.map((name) => [name, ...study.methods.flatMap((m) => all.cells[m]?.[name]?.mean ?? [null, null, null])]),
    } };
  };

  builders.uncertainty = (study) => {
    const parts = study.uncertainty;
    const deviation = ({ values, mean: [centre] }) => {
      const std = values.length > 1
        ? Math.sqrt(values.reduce((sum, v) => sum + (v - centre) ** 2, 0) / (values.length - 1)) : 0;
      return [std, std];
    };
    const ticks = parts.names.map((name) => short(name, 16) + (parts.sizes?.[name] ? `<br>(${parts.sizes[name].toLocaleString("en")})` : ""));
    const made = bars(study, parts, ticks, "share of the largest entropy", deviation);
    return { ...made, numbers: {
      caption: "Mean uncertainty of the rows of each class", head: ["class", parts.counted, ...study.methods],
      rows: parts.names.map((name) => [name, parts.sizes?.[name] ?? null,
        ...study.methods.map((m) => parts.cells[m]?.[name]?.mean[0] ?? null)]),
    } };
  };

  // mean distance of confidence and share of right answers, over rows
  const gap = ({ rows, confidence, accuracy }) =>
    rows.reduce((sum, n, i) => sum + (n ? n * Math.abs(confidence[i] - accuracy[i]) : 0), 0) / rows.reduce((a, b) => a + b, 0);

  builders.reliability = (study) => {
    const methods = shown(study).filter((m) => study.reliability[m]);
    const traces = [{ type: "scatter", mode: "lines", x: [0, 100], y: [0, 100], hoverinfo: "skip",
      line: { color: theme.colour("muted"), width: 1, dash: "dot" } }];
    for (const method of methods) {
      const { rows, confidence, accuracy } = study.reliability[method], style = look(study, method);
      const full = rows.map((n, i) => i).filter((i) => rows[i] > 0), total = rows.reduce((a, b) => a + b, 0);
      traces.push({
        type: "scatter", mode: "lines+markers", x: full.map((i) => 100 * confidence[i]), y: full.map((i) => 100 * accuracy[i]),
        hoverinfo: "text", hovertext: full.map((i) => `${plain(method)}: confidence ${(100 * confidence[i]).toFixed(0)} %, ` +
          `right ${(100 * accuracy[i]).toFixed(0)} %, ${rows[i]} rows`),
        line: { color: style.colour, width: 1.8, dash: style.dash },
        marker: { color: style.colour, symbol: style.symbol, size: full.map((i) => 5 + 11 * Math.sqrt(rows[i] / total)) },
      });
    }
    const percent = (v) => `${(100 * v).toFixed(1)}\u00a0%`;
    const words = methods.map((m) => `${methods.length > 1 ? `${m} ` : ""}${percent(gap(study.reliability[m]))}`).join(", ");
    const note = tables.element("p", { class: "note" }, `Expected calibration error of these bins: ${words}.`);
    const least = Math.min(...traces.flatMap((t) => t.x.slice(t === traces[0] ? 2 : 0)), 100);
    const from = Math.max(0, Math.floor((least - 5) / 10) * 10);
    return {
      traces, legend: methods, isLines: true, controls: [note],
      layout: layout({ height: 350, xaxis: axis("confidence, %", { range: [from, 102] }), yaxis: axis("right, %", { range: [0, 104] }) }),
      numbers: {
        caption: "Reliability, all seeds together", head: ["method", "rows", "mean confidence", "share right"],
        rows: Object.entries(study.reliability).flatMap(([m, b]) => b.rows.map((n, i) => [m, n, b.confidence[i], b.accuracy[i]])
          .filter(([, n]) => n > 0)),
      },
    };
  };

  // mean over seeds at the epochs that all of them have
  function meanCurve(curves, key) {
    const known = curves.filter((c) => c[key]);
    if (!known.length) return { x: [], y: [] };
    const maps = known.map((c) => new Map(c.epochs.map((e, i) => [e, c[key][i]])));
    const x = known[0].epochs.filter((e) => maps.every((m) => m.get(e) !== undefined && m.get(e) !== null));
    return { x, y: x.map((e) => maps.reduce((sum, m) => sum + m.get(e), 0) / maps.length) };
  }

  builders.curves = (study) => {
    const methods = shown(study).filter((m) => study.curves[m]?.length), traces = [];
    const panels = [["loss", "y"], ["validation", "y2"]].filter(([key]) => methods.some((m) => study.curves[m].some((c) => c[key])));
    for (const method of methods) {
      const { colour, dash } = look(study, method), curves = study.curves[method];
      for (const [key, yaxis] of panels) {
        for (const curve of curves.filter((c) => c[key] && curves.length > 1)) traces.push({ type: "scatter", mode: "lines",
          x: curve.epochs, y: curve[key], yaxis, hoverinfo: "skip", opacity: 0.22, line: { color: colour, width: 1 } });
        const mean = meanCurve(curves, key);
        traces.push({ type: "scatter", mode: "lines", ...mean, yaxis, hoverinfo: "text", line: { color: colour, width: 2.2, dash },
          hovertext: mean.x.map((e, i) => `${plain(method)}, epoch ${e}: ${Number(mean.y[i].toPrecision(4))}`) });
        const chosen = curves.filter((c) => c[key] && c.chosen && c.epochs.includes(c.chosen));
        traces.push({ type: "scatter", mode: "markers", yaxis, hoverinfo: "skip", x: chosen.map((c) => c.chosen),
          y: chosen.map((c) => c[key][c.epochs.indexOf(c.chosen)]), marker: { color: colour, size: 6, line: { color: theme.colour("card"), width: 1 } } });
      }
    }
    const isPositive = traces.filter((t) => t.yaxis === "y").every((t) => t.y.every((v) => v === null || v > 0));
    const split = panels.length > 1;
    const log = isPositive ? charts.logTicks(traces.filter((t) => t.yaxis === "y").flatMap((t) => t.y)) : {};
    return {
      traces, legend: methods, isLines: true,
      layout: layout({ height: split ? 430 : 320, xaxis: axis("epoch", { anchor: split ? "y2" : "y", showgrid: false }),
        yaxis: axis("training loss", { domain: split ? [0.54, 1] : [0, 1], ...log }),
        ...(split ? { yaxis2: axis(short(study.scoreLabel, 32), { domain: [0, 0.46] }) } : {}) }),
      numbers: {
        caption: `Training loss and ${study.scoreLabel}, mean over seeds`, head: ["epoch", ...methods.flatMap((m) => panels.map(([key]) => `${m}, ${key}`))],
        rows: (methods.length ? meanCurve(study.curves[methods[0]], panels[0][0]).x : []).map((epoch) => [epoch,
          ...methods.flatMap((m) => panels.map(([key]) => {
            const mean = meanCurve(study.curves[m], key), at = mean.x.indexOf(epoch);
            return at < 0 ? null : mean.y[at];
          }))]),
      },
    };
  };
})();
