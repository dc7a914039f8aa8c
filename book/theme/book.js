// From a file a browser may not fetch other pages, which the search does to show a line of each hit:
// there the hits are shown without it, instead of with an error.
if (location.protocol === "file:" && typeof DOCUMENTATION_OPTIONS !== "undefined") {
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
}

// Figures of several panels are wider than the column (640 px is 6.7 inches); on a phone they may leave the screen.
document.addEventListener("DOMContentLoaded", () => {
  for (const img of document.querySelectorAll("figure > img")) {
    const mark = () => img.classList.toggle("hn-wide", img.naturalWidth > 640);
    img.complete ? mark() : img.addEventListener("load", mark);
  }
});
