// The smallest letters of a figure are 9 pt, 12 px; at five sixths they are 10 px. A figure that is wider still is swiped.
document.addEventListener("DOMContentLoaded", () => {
  for (const img of document.querySelectorAll("figure img")) {
    const keep = () => { img.style.minWidth = `${Math.ceil(img.naturalWidth * 5 / 6)}px`; };
    if (img.complete) keep();
    img.addEventListener("load", keep);  // again where a narrow picture takes the place of the wide one
  }
});

// What is wider than its box fades at the edges beyond which there is more, and can be scrolled from the keyboard.
const WIDE = 'figure, div.math, span.math, mjx-container[display="true"], pre, .pst-scrollable-table-container, .text_html';
function fade(box) {
  const beyond = box.scrollWidth - box.clientWidth;
  const inLine = box.matches("span.math");  // where an accent may be a few pixels wider than its letter
  const swiped = inLine ? beyond > 8 : beyond > 2 && getComputedStyle(box).overflowX !== "visible";
  box.classList.toggle("hn-swiped", swiped);
  box.classList.toggle("hn-before", swiped && box.scrollLeft > 2);
  box.classList.toggle("hn-beyond", swiped && box.scrollLeft < beyond - 2);
  if (swiped || (box.matches(".pst-scrollable-table-container, .text_html") && (beyond > 0 || box.scrollHeight > box.clientHeight))) box.tabIndex = 0;
  else box.removeAttribute("tabindex");
}
addEventListener("load", async () => {
  await window.MathJax?.startup?.promise;
  const sizes = new ResizeObserver((changed) => changed.forEach(({ target }) => fade(target.closest(WIDE))));
  for (const box of document.querySelectorAll(`article :is(${WIDE})`)) {
    sizes.observe(box);
    for (const inside of box.querySelectorAll("img, table")) sizes.observe(inside);
    box.addEventListener("scroll", () => fade(box), { passive: true });
  }
});

// Columns of words are marked: on a phone they keep a width in which words fit; codes and numbers need none. A table
// with two columns of sentences is stacked there.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table:has(thead)")) {
    const cells = [...table.tBodies[0].rows].flatMap((row) => [...row.cells]);
    const columns = (fits) => new Set(cells.filter((cell) => fits(cell.textContent)).map((cell) => cell.cellIndex));
    const words = columns((text) => text.length > 12 && /\p{L}.*\s/u.test(text));
    for (const cell of cells) cell.classList.toggle("hn-words", words.has(cell.cellIndex));
    const intervals = columns((text) => /\[[+\u2212]\d/.test(text));
    for (const cell of cells) cell.classList.toggle("hn-interval", intervals.size > 3 && intervals.has(cell.cellIndex));
    if (columns((text) => text.length > 30).size < 2) continue;
    table.classList.add("hn-stacked");
    const heads = table.tHead.rows[table.tHead.rows.length - 1].cells;
    for (const cell of cells) cell.dataset.head = (cell.textContent.trim() && heads[cell.cellIndex]?.textContent.trim()) ?? "";
  }
});

// The sidebar keeps its place from page to page; the page that is shown stays in sight.
addEventListener("load", () => {
  const sidebar = document.getElementById("pst-primary-sidebar");
  const here = sidebar?.querySelector("li.current.active > a");
  if (!here) return;
  const [box, frame] = [here, sidebar].map((e) => e.getBoundingClientRect());
  if (box.top < frame.top || box.bottom > frame.bottom) here.scrollIntoView({ block: "center" });
});

// The theme leaves the title of the book outside of every landmark.
document.addEventListener("DOMContentLoaded", () => {
  const sidebar = document.getElementById("pst-primary-sidebar");
  sidebar?.setAttribute("role", "navigation");
  sidebar?.setAttribute("aria-label", "The book and its chapters");
  sidebar?.querySelectorAll("summary").forEach((part) => part.setAttribute("aria-label", "Pages of this part"));
});

// On paper the page is light, proofs and solutions are open; checks stay one line each.
addEventListener("beforeprint", () => {
  const page = document.documentElement.dataset, theme = page.theme;
  page.theme = "light";
  addEventListener("afterprint", () => { page.theme = theme; }, { once: true });
  for (const fold of document.querySelectorAll("article details:not([open], .hn-checks:not(.hn-more), .hide)")) {
    fold.open = true;
    addEventListener("afterprint", () => { fold.open = false; }, { once: true });
  }
});

// A link to a check in a strip that is closed opens it; not every browser does this by itself.
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const closed = [];
  for (let e = target?.parentElement; e; e = e.parentElement) {
    if (e.tagName === "DETAILS" && !e.open) closed.push(e);
  }
  closed.forEach((e) => (e.open = true));
  if (closed.length) target.scrollIntoView();
}
addEventListener("hashchange", openTarget);
addEventListener("DOMContentLoaded", openTarget);
addEventListener("click", (event) => event.target.closest?.(".hn-tick") && setTimeout(openTarget));  // a second time, too
