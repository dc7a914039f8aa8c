// All pages as one document (book/builder/pdf.py): names get their page's in front, links lead to them within the document,
// and what is folded is opened, but checks and what stands under a line of a ledger, which says where that is.
const FOLDED = "Paper leaves out what a line opens, and long lists of commands; this page of the book on screen has both.";
{
  const sheets = [...document.querySelectorAll(".hn-sheet[data-page]")];
  const pages = new Set(sheets.map((sheet) => sheet.dataset.page));
  const contents = document.querySelector(".hn-contents ul");
  for (const sheet of sheets) {
    const page = sheet.dataset.page;
    const title = sheet.querySelector("h1").cloneNode(true);
    title.querySelector(".headerlink")?.remove();
    contents?.insertAdjacentHTML("beforeend", `<li><a href="#${page}">${title.innerHTML}</a></li>`);
    for (const e of sheet.querySelectorAll("[id]")) e.id = `${page}--${e.id}`;
    if (sheet.querySelector(".hn-filter")) sheet.querySelector("h1")?.insertAdjacentHTML("afterend", `<p>${FOLDED}</p>`);
    sheet.querySelectorAll("details.hide.above-input").forEach((e) => e.remove());
    for (const e of sheet.querySelectorAll("details")) {
      if (!e.matches(".hn-checks:not(.hn-more)") && !("folded" in sheet.dataset)) e.open = true;
    }
    for (const link of sheet.querySelectorAll("a[href]")) {
      const url = new URL(link.getAttribute("href"), `https://book/${page}.html`);
      if (url.host !== "book") continue;
      const target = url.pathname.slice(1).replace(/\.html$/, "");
      if (!pages.has(target)) link.removeAttribute("href");
      else link.href = url.hash ? `#${target}--${decodeURIComponent(url.hash.slice(1))}` : `#${target}`;
    }
  }
}

// On sheets of A4: narrow letters for tables that are too wide.
function tighten() {
  for (const table of document.querySelectorAll("article table")) {
    if (table.offsetWidth > table.parentElement.clientWidth + 1) table.classList.add("hn-tight");
  }
}

// Of a leaflet: some sections alone, by the ends of their names.
function keep(sections) {
  document.querySelectorAll("article details").forEach((e) => e.remove());
  for (const part of document.querySelectorAll("article section section")) {
    if (!sections.some((id) => part.closest(`[id$="${id}"]`))) part.remove();
  }
}
