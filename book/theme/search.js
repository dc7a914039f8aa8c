// What the search finds, the page that is about it first. The index (book/ext/search.py) is
// [page, its title, [[anchor, title, text], …]] for each page.
const escapeRegExp = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
const startOfWord = (text, flags) => new RegExp(`(?<![\\p{L}\\d.])${escapeRegExp(text)}`, flags);
const wholeWord = (text, flags) => new RegExp(`${startOfWord(text).source}(?![\\p{L}\\d]|\\.\\d)`, flags);

// Chapters before fine print before ledgers; the API last.
const isAPI = (page) => /^book\/api/.test(page);
const weightOf = (page) => (/^book\/|errata|verdicts/.test(page) ? 0.3 : /-(more|cost|finite|simulated)\./.test(page) ? 0.6 : 1);

// A number of a statement belongs to the word before it.
const split = (query) => query.trim().split(/\s+(?!\d+\.\d*$)/).filter(Boolean);
function findIn(index, query, match = wholeWord) {
  const words = split(query);
  if (!words.length) return [];
  const phrase = match(words.join(" "), "giu"), each = words.map((word) => match(word, "iu"));
  const hits = [];
  for (const [page, about, parts] of index) {
    const here = parts.map(([, title, text]) => `${title} ${text}`.match(phrase)?.length ?? 0);
    const opening = match === wholeWord && parts[0]?.[2].match(phrase) ? 8 : 0;  // what a page begins with is what it is about
    const onPage = Math.log2(1 + here.reduce((a, b) => a + b, 0)) + opening + (about.match(phrase) ? 8 : 0);
    const found = parts.map(([anchor, title, text], i) => {
      if (!each.every((word) => word.test(title) || word.test(text))) return null;
      const at = title.search(phrase);
      const inTitle = at < 0 ? 4 * each.filter((word) => word.test(title)).length : (at ? 12 : 30) + 20 * query.length / title.length;
      return { score: weightOf(page) * (inTitle + onPage + Math.log2(1 + here[i])), page, about, anchor, title, text };
    });
    hits.push(...found.filter(Boolean).sort((a, b) => b.score - a.score).slice(0, 2));
  }
  return hits.sort((a, b) => isAPI(a.page) - isAPI(b.page) || b.score - a.score).slice(0, 40);
}

// What begins like the words; else, for a number that no statement has, the others of its chapter.
function findNear(index, query) {
  const near = findIn(index, query, startOfWord);
  if (near.length) return near;
  const chapter = query.replace(/(\d\.)\d+$/, "$1"), others = findIn(index, chapter, startOfWord);
  const stated = others.filter(({ title }) => startOfWord(chapter, "iu").test(title));
  return stated.length ? stated : others.length ? others : findMost(index, query);
}

// Else, for a whole question, what has most of its words: a rare word counts more, and a title's most.
function findMost(index, query) {
  if (split(query).length < 4) return [];
  const words = split(query).map((word) => word.replace(/[.,;:!?"()]+$|^["(]+/g, "").replace(/(?<=\p{L}{3})(?:ing|ed|es|s|'s)$/u, ""));
  const parts = index.flatMap(([page, about, parts]) => parts.map(([anchor, title, text]) => ({ page, about, anchor, title, text, score: 0 })));
  for (const word of new Set(words.filter((word) => word.length > 2 || /\d/.test(word)))) {
    const begins = startOfWord(word, "iu"), having = parts.filter(({ title, text }) => begins.test(title) || begins.test(text));
    const rare = Math.log(parts.length / having.length) ** 2;  // infinite if none has it, and then there is no part to count it
    for (const part of having) part.score += rare * (begins.test(part.title) ? 2 : 1);
  }
  for (const part of parts) part.score *= isAPI(part.page) || /^book\/(?!questions)/.test(part.page) ? 0.5 : 1;
  return parts.filter(({ score }) => score > 0).sort((a, b) => b.score - a.score).slice(0, 10);
}

// A whole question that has few hits gets the nearest sections below them.
function findMore(index, query, exact) {
  const isNew = ({ page, anchor }) => !exact.some((hit) => hit.page === page && hit.anchor === anchor);
  return exact.length < 5 ? findMost(index, query).filter(isNew) : [];
}

function line(text, words) {
  const at = Math.max(0, text.search(new RegExp(words.map(escapeRegExp).join("|"), "i")) - 70);
  const start = at && text.indexOf(" ", at) + 1;
  const end = text.length > start + 200 ? text.lastIndexOf(" ", start + 200) : text.length;
  return (start ? "… " : "") + text.slice(start, end) + (end < text.length ? " …" : "");
}

document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return;
  Search.query = (query) => {
    const root = document.documentElement.dataset.content_root, exact = findIn(Search._index, query);
    const hits = exact.length ? [...exact, ...findMore(Search._index, query, exact)] : findNear(Search._index, query);
    Search.stopPulse();
    Search.title.innerText = "Search results";
    const none = hits.length ? `Nothing has exactly “${query}”. Near it:` : `Nothing is found for “${query}”.`;
    Search.status.textContent = exact.length ? "" : none;
    for (const { page, about, anchor, title, text } of hits) {
      const item = Search.output.appendChild(document.createElement("li"));
      const link = item.appendChild(document.createElement("a"));
      link.href = `${root}${page}#${anchor}`;
      link.textContent = title;
      if (title.replace(/^[\d.]+ /, "") !== about) item.append(` · ${about}`);
      item.appendChild(document.createElement("p")).textContent = line(text, split(query));
    }
  };
});
