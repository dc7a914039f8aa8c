// From a file a browser may not fetch other pages, which the search does to show a line of each hit:
// there the hits are shown without it, instead of with an error.
if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined") {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}

// The smallest letters of a figure are 9 pt, 12 px; at five sixths they are 10 px. A figure that is wider still is swiped.
document.addEventListener("DOMContentLoaded", () => {
  for (const img of document.querySelectorAll("figure > img")) {
    const keep = () => { img.style.minWidth = `${Math.ceil(img.naturalWidth * 5 / 6)}px`; reach(); };
    img.complete ? keep() : img.addEventListener("load", keep);
  }
});

// What is swiped can be scrolled from the keyboard too.
function reach() {
  for (const figure of document.querySelectorAll("figure:has(> img)")) {
    if (figure.scrollWidth > figure.clientWidth) figure.tabIndex = 0;
    else figure.removeAttribute("tabindex");
  }
}
addEventListener("load", reach);
addEventListener("resize", reach);

// The theme leaves the title of the book outside of every landmark.
document.addEventListener("DOMContentLoaded", () => {
  const sidebar = document.getElementById("pst-primary-sidebar");
  sidebar?.setAttribute("role", "navigation");
  sidebar?.setAttribute("aria-label", "The book and its chapters");
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
