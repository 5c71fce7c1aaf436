// Tables that can be sorted by click and by keyboard, and copied as Markdown, LaTeX or CSV.
"use strict";
const tables = (() => {
  const number = (text) => (text === "" || text === "nan" || text === "None" ? NaN : Number(text));

  function sort(table, column) {
    const heads = [...table.tHead.rows[0].cells];
    const before = heads[column].getAttribute("aria-sort");
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const keys = rows.map((row) => row.cells[column].dataset.value ?? row.cells[column].textContent);
    const numeric = keys.every((key) => key === "nan" || key === "None" || key.trim() === "" || !Number.isNaN(Number(key)));
    // numbers first from the largest, words from A
    const direction = before === "none" ? (numeric ? -1 : 1) : before === "ascending" ? -1 : 1;
    const order = rows.map((row, i) => [row, keys[i]]);
    order.sort(([, a], [, b]) => {
      if (!numeric) return direction * a.localeCompare(b, undefined, { numeric: true });
      const [x, y] = [number(a), number(b)];
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);  // gaps last
      return direction * (x - y);
    });
    for (const [row] of order) body.append(row);
    for (const head of heads) head.setAttribute("aria-sort", "none");
    heads[column].setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
  }

  const clean = (text) => text.replace(/\s+/g, " ").trim();

  function content(table) {
    const head = [...table.tHead.rows[0].cells].map((cell) => clean(cell.textContent));
    const rows = [...table.tBodies[0].rows].map((row) =>
      [...row.cells].map((cell) => ({ text: clean(cell.textContent), best: cell.classList.contains("best") })));
    return { head, rows };
  }

  // no HTML, links, pictures, tables, emphasis
  const inMarkdown = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;")
    .replace(/([\\`*_[\]!|#~])/g, "\\$1");
  const LATEX = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}",
    "±": "$\\pm$", "−": "$-$", "–": "--", "×": "$\\times$", "<": "$<$", ">": "$>$" };
  const inLatex = (text) => text.replace(/[\\~^&%$#_{}±−–×<>]/g, (c) => LATEX[c] ?? `\\${c}`);

  // a text that a spreadsheet would take for a formula gets an apostrophe; numbers stay numbers
  function inCsv(text) {
    const minus = text.replace(/−/g, "-");
    const plain = /^[+-]?\d{1,3}(,\d{3})+(\.\d+)?$/.test(minus) ? minus.replace(/,/g, "") : minus;  // 1,234 is 1234
    const isNumber = /^[+-]?[\d.,]+(e[+-]?\d+)?( ± [\d.,]+)?$/i.test(plain);
    const safe = !isNumber && /^[=+\-@\t\r]/.test(plain) ? `'${plain}` : plain;
    return /[",\n\r;]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
  }

  const forms = {
    markdown({ head, rows }) {
      const line = (cells) => `| ${cells.join(" | ")} |`;
      const mark = ({ text, best }) => (best ? `**${inMarkdown(text)}**` : inMarkdown(text));
      const rule = `|---|${"--:|".repeat(head.length - 1)}`;
      return [line(head.map(inMarkdown)), rule, ...rows.map((row) => line(row.map(mark)))].join("\n");
    },
    latex({ head, rows }) {
      const mark = ({ text, best }) => (best ? `\\textbf{${inLatex(text)}}` : inLatex(text));
      return [
        `\\begin{tabular}{l${"r".repeat(head.length - 1)}}`, "\\toprule",
        `${head.map(inLatex).join(" & ")} \\\\ \\midrule`,
        ...rows.map((row) => `${row.map(mark).join(" & ")} \\\\`), "\\bottomrule", "\\end{tabular}",
      ].join("\n");
    },
    csv: ({ head, rows }) => [head.map(inCsv), ...rows.map((row) => row.map(({ text }) => inCsv(text)))]
      .map((cells) => cells.join(",")).join("\n"),
  };

  async function copy(text) {
    if (navigator.clipboard && window.isSecureContext) return navigator.clipboard.writeText(text);
    const area = document.createElement("textarea");  // pages that came over plain http
    area.value = text;
    area.style.cssText = "position:fixed;opacity:0";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) throw new Error("the browser denied it");
    return undefined;
  }

  async function copyAndSay(text, what, status) {
    try {
      await copy(text);
      status(`${what} copied.`);
    } catch (error) {
      status(`Not copied: ${error.message}. Select the text instead.`);
    }
  }

  document.addEventListener("click", (event) => {
    const target = event.target.closest("button");
    if (!target) return;
    if (target.dataset.sort !== undefined) sort(target.closest("table"), Number(target.dataset.sort));
    if (target.dataset.copy) {
      const box = target.closest("[data-table]");
      const text = forms[target.dataset.copy](content(box.querySelector("table")));
      copyAndSay(text, target.textContent, (said) => { box.querySelector(".said").textContent = said; });
    }
    if (target.dataset.copyText !== undefined) {
      const text = target.parentElement.querySelector("code").textContent;
      copyAndSay(text, "Command", (said) => { target.textContent = said.startsWith("Not") ? "Not copied" : "Copied"; });
    }
  });

  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };

  // a table of numbers beside a chart; texts are put in as text, never as HTML
  function make(caption, head, rows) {
    const title = element("p", { class: "caption" }, caption);
    const tools = element("div", { class: "tools", role: "group", "aria-label": "Copy this table" });
    for (const name of ["Markdown", "LaTeX", "CSV"])
      tools.append(element("button", { type: "button", "data-copy": name.toLowerCase() }, name));
    const heads = head.map((text, i) => element("th", { scope: "col", "aria-sort": "none" },
      element("button", { type: "button", "data-sort": i }, text, element("span", { class: "arrow", "aria-hidden": "true" }))));
    const lines = rows.map((row) => element("tr", {}, ...row.map((cell, i) => {
      const isNumber = typeof cell === "number";
      const text = cell === null || cell === undefined ? "–" : isNumber ? String(Number(cell.toPrecision(4))) : String(cell);
      return element(i ? "td" : "th", { "data-value": isNumber ? cell : cell ?? "nan", ...(i ? {} : { scope: "row" }) }, text);
    })));
    const table = element("table", { "aria-label": caption }, element("thead", {}, element("tr", {}, ...heads)),
      element("tbody", {}, ...lines));
    return element("div", { class: "table-box", "data-table": "" }, element("div", { class: "table-bar" }, title, tools),
      element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table),
      element("p", { class: "said", role: "status", "aria-live": "polite" }));
  }

  return { make, element };
})();
