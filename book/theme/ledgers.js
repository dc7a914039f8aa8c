// A filter for the tables of a section: where a page has <div class="hn-filter"></div>, a reader types words that
// rows must have. `data-columns="Data, Method"` adds a choice for each of these columns, and `data-headings="Chapter"`
// one for the headings between the tables. A row with an empty first cell belongs to the row above it. The address of
// the page may choose: errata.html?Verdict=loose, or ?Filter=erratum for a word.
const plain = (text) => text.toLowerCase().replace(/[-_]/g, "");  // CIFAR-10 is cifar10
const textOf = (element) => element.textContent.replace(/\s+/g, " ").trim();

function ledgerRows(section, box) {
  const rows = [];
  for (const table of section.querySelectorAll("table:has(thead)")) {
    if (!(box.compareDocumentPosition(table) & Node.DOCUMENT_POSITION_FOLLOWING)) continue;
    const heads = [...table.querySelectorAll("thead tr:last-child > *")].map(textOf);
    const heading = textOf(table.closest("section").querySelector("h2, h3, h4").firstChild);
    for (const tr of table.tBodies[0].rows) {
      const cells = [...tr.cells].map(textOf);
      if (cells[0] === "" && rows.length) rows.at(-1).parts.push(tr);
      else rows.push({ table, heading, parts: [tr], of: Object.fromEntries(heads.map((head, i) => [head, cells[i]])) });
    }
  }
  for (const row of rows) row.words = plain(`${row.heading} ${row.parts.map(textOf).join(" ")}`);
  return rows;
}

function ledger(box) {
  const section = box.closest("section"), rows = ledgerRows(section, box);
  const add = (name, control) => {
    const label = box.appendChild(document.createElement("label"));
    label.append(name, control);
    control.addEventListener("input", apply);
    return control;
  };
  const choice = (name, value) => {
    const select = document.createElement("select");
    const values = [...new Set(rows.map(value))].filter(Boolean).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    select.append(new Option("all", ""), ...values.map((text) => new Option(text, text)));
    return [add(name, select), value];
  };
  const words = add("Filter ", Object.assign(document.createElement("input"), { type: "search", placeholder: "words in a row" }));
  const names = (list) => (list ?? "").split(",").map((name) => name.trim()).filter(Boolean);
  const choices = [
    ...names(box.dataset.headings).map((name) => choice(`${name} `, (row) => row.heading)),
    ...names(box.dataset.columns).map((name) => choice(`${name} `, (row) => row.of[name])),
  ];
  const count = box.appendChild(document.createElement("output"));
  const closed = new Set(section.querySelectorAll("details:not([open])"));

  function apply() {
    const wanted = plain(words.value).split(/\s+/).filter(Boolean);
    const asked = wanted.length > 0 || choices.some(([select]) => select.value);
    const tables = new Map();
    let shown = 0;
    for (const row of rows) {
      const fits = wanted.every((word) => row.words.includes(word)) && choices.every(([select, value]) => !select.value || select.value === value(row));
      row.parts.forEach((part) => { part.hidden = !fits; });
      tables.set(row.table, tables.get(row.table) || fits);
      shown += fits;
    }
    for (const [table, fits] of tables) {
      (table.closest(".pst-scrollable-table-container") ?? table).hidden = !fits;
      const drawer = table.closest("details"), part = table.closest("section");
      if (drawer) {
        drawer.hidden = ![...tables].some(([other, has]) => has && drawer.contains(other));
        drawer.open = asked || !closed.has(drawer);
      }
      if (part !== section) part.hidden = ![...tables].some(([other, has]) => has && part.contains(other));
    }
    count.textContent = `${shown} of ${rows.length}`;
  }
  const chosen = new URLSearchParams(location.search);
  for (const control of [words, ...choices.map(([select]) => select)]) {
    control.value = chosen.get(control.parentElement.firstChild.textContent.trim()) ?? "";
  }
  apply();
}
document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(".hn-filter").forEach(ledger));
