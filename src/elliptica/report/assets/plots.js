// Charts of all methods: every seed, differences from the reference, cost against quality.
"use strict";
(() => {
  const { builders, look, axis, layout, rows, plain, short, measureSelect } = charts;
  const unit = (measure) => (measure.percent ? ", %" : "");
  const show = (measure, value) => (value === null ? "–" : value.toFixed(measure.decimals));
  const rowHeight = (n) => Math.max(190, 64 + 27 * n);

  builders.seeds = (study, state, { figure }) => {
    const names = study.measures.map((m) => m.name);
    const controls = measureSelect(figure, study, state, names);
    const measure = state.measure, columns = study.values[measure.name];
    const traces = study.methods.flatMap((method, i) => {
      const { colour, isShown } = look(study, method);
      const { seeds, values, mean } = columns[i];
      if (!values.length) return [];
      const [centre, low, high] = mean;
      const spread = (k) => i + (values.length > 1 ? 0.36 * (k / (values.length - 1) - 0.5) : 0);
      const dots = {
        type: "scatter", mode: "markers", x: values, y: values.map((_, k) => spread(k)), hoverinfo: "text",
        hovertext: values.map((v, k) => `${plain(method)}, ${study.repetition} ${seeds[k]}: ${show(measure, v)}`),
        marker: { color: colour, size: 7, opacity: isShown ? 0.6 : 0.5, line: { width: 0 } },
      };
      const bar = {
        type: "scatter", mode: "markers", x: [centre], y: [i], hoverinfo: "text",
        hovertext: [`${plain(method)}: mean ${show(measure, centre)}` +
          (low === null ? "" : `, 95 % interval ${show(measure, low)} to ${show(measure, high)}`)],
        error_x: low === null ? undefined : {
          type: "data", symmetric: false, array: [high - centre], arrayminus: [centre - low],
          thickness: 1.6, width: 0, color: theme.colour("ink"),
        },
        marker: { symbol: "line-ns", size: 15, line: { width: 2.4, color: theme.colour("ink") } },
      };
      return [dots, bar];
    });
    const paper = study.paper[measure.name] ?? {};
    const printed = study.methods.map((m, i) => [m, i]).filter(([m]) => paper[m]);
    if (printed.length) traces.push({
      type: "scatter", mode: "markers", hoverinfo: "text", y: printed.map(([, i]) => i), x: printed.map(([m]) => paper[m][0]),
      hovertext: printed.map(([m]) => `${plain(m)}, paper: ${paper[m][0]}${paper[m][1] === null ? "" : ` ± ${paper[m][1]}`}`),
      marker: { symbol: "diamond-open", size: 11, color: theme.colour("ink"), line: { width: 1.6 } },
    });
    return {
      controls, traces,
      layout: layout({ height: rowHeight(study.methods.length), xaxis: axis(measure.label + unit(measure)),
        yaxis: axis("", rows(study.methods)) }),
      numbers: {
        caption: `${measure.label}${unit(measure)}, every ${study.repetition}`,
        head: ["method", "mean", "low", "high", "paper", `${study.repetition}s: values`],
        rows: study.methods.map((m, i) => [m, ...columns[i].mean, paper[m]?.[0] ?? null,
          columns[i].seeds.map((s, k) => `${s}: ${show(measure, columns[i].values[k])}`).join("; ")]),
      },
    };
  };

  // a difference as the table has it: method minus reference, whichever sign is the better one
  builders.differences = (study, state, { figure, narrow }) => {
    const names = [...new Set(study.differences.map((d) => d.measure))];
    const controls = measureSelect(figure, study, state, names);
    const measure = state.measure, unit = measure.relative ? " %" : measure.percent ? " points" : "";
    const decimals = measure.relative || measure.percent ? 1 : measure.decimals;
    const signed = (v) => (v === null ? "–" : (Number(v.toFixed(decimals)) > 0 ? "+" : "") + v.toFixed(decimals).replace("-", "−"));
    const found = study.differences.filter((d) => d.measure === measure.name);
    const order = study.methods.filter((m) => found.some((d) => d.method === m));
    const list = order.map((m) => found.find((d) => d.method === m));
    const colours = { better: theme.colour("good"), worse: theme.colour("bad"), open: theme.colour("other") };
    const symbols = { better: "diamond", worse: "x", open: "circle" };
    const words = { better: "better", worse: "worse", open: "not distinguishable" };
    const ends = (d) => [d.low ?? d.mean, d.high ?? d.mean];
    const dots = {
      type: "scatter", mode: "markers", x: list.map((d) => d.mean), y: list.map((_, i) => i), hoverinfo: "text",
      hovertext: list.map((d) => `${plain(d.method)}: ${signed(d.mean)}${unit} (${ends(d).map(signed).join(" to ")}), ${words[d.result]}`),
      marker: { size: 10, color: list.map((d) => colours[d.result]), symbol: list.map((d) => symbols[d.result]) },
    };
    const bars = list.map((d, i) => ({
      type: "scatter", mode: "lines", x: ends(d), y: [i, i], hoverinfo: "skip", line: { color: colours[d.result], width: 2 },
    }));
    const side = measure.up ? "right" : "left";
    const title = narrow ? `${unit.trim() || short(measure.label, 20)} (${side} is better)`
      : `${plain(measure.label)}${unit ? `,${unit}` : ""} (${side} of the line is better)`;
    return {
      controls, traces: [...bars, dots],
      layout: layout({
        height: rowHeight(order.length), xaxis: axis(title), yaxis: axis("", rows(order, narrow ? 18 : 26)),
        shapes: [{ type: "line", x0: 0, x1: 0, yref: "paper", y0: 0, y1: 1, line: { color: theme.colour("ink"), width: 1 } }],
      }),
      numbers: {
        caption: `${measure.label}${unit ? `,${unit}` : ""}, method minus ${study.reference}`, head: ["method", "difference", "low", "high", "result"],
        rows: list.map((d) => [d.method, d.mean, d.low, d.high, words[d.result]]),
      },
    };
  };

  // methods that no other beats at the same cost or less
  function front(points, up) {
    const better = (a, b) => (up ? a > b : a < b);
    return points.filter((p) => !points.some((q) => q !== p && q.x <= p.x && !better(p.y, q.y) && (q.x < p.x || better(q.y, p.y))))
      .sort((a, b) => a.x - b.x);
  }

  // labels beside their points; labels that would cover another one appear only on hover
  function placed(points, important, spans, width, height) {
    const at = (p) => [(p.x - spans[0][0]) / (spans[0][1] - spans[0][0] || 1) * width,
      (p.y - spans[1][0]) / (spans[1][1] - spans[1][0] || 1) * height];
    const boxes = points.map((p) => { const [x, y] = at(p); return [x - 6, y - 6, x + 6, y + 6]; });
    const hits = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
    const where = new Map();
    for (const p of [...points].sort((a, b) => important.includes(b) - important.includes(a))) {
      const [x, y] = at(p), wide = 7 * Math.min(p.name.length, 22) + 8;
      const options = { right: [x + 7, y - 7, x + wide, y + 7], left: [x - wide, y - 7, x - 7, y + 7],
        top: [x - wide / 2, y + 7, x + wide / 2, y + 21], bottom: [x - wide / 2, y - 21, x + wide / 2, y - 7] };
      const side = Object.keys(options).find((k) => options[k][0] > 0 && options[k][2] < width + 36 &&
        !boxes.some((b) => hits(options[k], b)));
      if (!side) continue;
      boxes.push(options[side]);
      where.set(p, { right: "middle right", left: "middle left", top: "top center", bottom: "bottom center" }[side]);
    }
    return where;
  }

  builders.cost = (study, state, { figure, narrow }) => {
    const titles = { evaluations: "thousand rows through the network", seconds: "seconds of training" };
    const known = Object.keys(titles).filter((k) => study.cost[k]?.some((c) => c.values.length));
    // where all cost the same in one unit, the other one says more
    const differs = (unit) => new Set(study.cost[unit].filter((c) => c.values.length).map((c) => c.mean[0].toPrecision(3))).size > 1;
    state.unit ??= known.find(differs) ?? known[0];
    const controls = known.length > 1 ? [charts.select("Cost", known.map((k) => [k, titles[k]]), state.unit, (name) => {
      state.unit = name;
      charts.draw(figure);
    })] : [];
    const measure = study.measures[0], cost = study.cost[state.unit], quality = study.values[measure.name];
    const points = study.methods.map((name, i) => ({ name, i, x: cost[i].mean[0], y: quality[i].mean[0] }))
      .filter((p) => p.x !== null && p.y !== null && p.x > 0);
    const best = front(points, measure.up);
    const isLog = points.length > 1 && Math.max(...points.map((p) => p.x)) / Math.min(...points.map((p) => p.x)) > 8;
    const across = isLog ? Math.log10 : (v) => v, reach = (v) => [Math.min(...v), Math.max(...v)];
    const spans = [reach(points.flatMap((p) => cost[p.i].values.filter((v) => v > 0).map(across))),
      reach(points.flatMap((p) => quality[p.i].values))];
    const flat = points.map((p) => ({ ...p, x: across(p.x) }));
    const sides = placed(flat, flat.filter((_, i) => best.includes(points[i])), spans, narrow ? 235 : 400, 290);
    const labelled = new Map(points.map((p, i) => [p, sides.get(flat[i])]).filter(([, side]) => side));
    const seeds = points.map(({ name, i }) => {
      const common = quality[i].seeds.filter((s) => cost[i].seeds.includes(s));
      return { type: "scatter", mode: "markers", hoverinfo: "text",
        x: common.map((s) => cost[i].values[cost[i].seeds.indexOf(s)]),
        y: common.map((s) => quality[i].values[quality[i].seeds.indexOf(s)]),
        hovertext: common.map((s) => `${plain(name)}, ${study.repetition} ${s}`),
        marker: { color: look(study, name).colour, size: 5, opacity: 0.4 } };
    });
    const means = points.map((p) => {
      const style = look(study, p.name);
      return { type: "scatter", mode: labelled.has(p) ? "markers+text" : "markers", x: [p.x], y: [p.y], hoverinfo: "text",
        text: [short(p.name, 22)], textposition: labelled.get(p), cliponaxis: false,
        textfont: { color: theme.colour(style.isShown || best.includes(p) ? "ink" : "muted"), size: 12 },
        hovertext: [`${plain(p.name)}: ${show(measure, p.y)} at ${Number(p.x.toPrecision(3))} ${titles[state.unit]}`],
        marker: { color: style.colour, size: 11, symbol: style.symbol, line: { width: 1.5, color: theme.colour("card") } } };
    });
    const line = { type: "scatter", mode: "lines", x: best.map((p) => p.x), y: best.map((p) => p.y), hoverinfo: "skip",
      line: { color: theme.colour("muted"), width: 1.4, dash: "dot" } };
    return {
      controls, traces: [line, ...seeds, ...means],
      layout: layout({ height: 380, margin: { l: 8, r: 40, t: 16, b: 8 },
        xaxis: axis(titles[state.unit], isLog ? charts.logTicks(points.map((p) => p.x)) : {}),
        yaxis: axis(measure.label + unit(measure)) }),
      numbers: {
        caption: `${measure.label} and cost, means over seeds`, head: ["method", titles[state.unit], measure.label, "on the front"],
        rows: points.map((p) => [p.name, p.x, p.y, best.includes(p) ? "yes" : "no"]),
      },
    };
  };
})();
