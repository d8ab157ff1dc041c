// What the pages do in a browser: buttons that copy, one language at a time, and the search. Without
// JavaScript they show everything.
"use strict";

// Copies what a reader would paste: an example without the results that the page shows.
function pasted(text) {
  return text.split("\n").filter((line) => !/^\s*--> /.test(line))
    .map((line) => line.replace(/\s+--> .*$/, "")).join("\n").trim() + "\n";
}

function addCopyButtons() {
  for (const block of document.querySelectorAll("div[class*=highlight-] > div.highlight")) {
    if (/highlight-(text|default|none)/.test(block.parentElement.className)) continue;
    const button = document.createElement("button");
    button.className = "copy";
    button.textContent = "Copy";
    const code = block.querySelector("pre").textContent;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(pasted(code));
        button.textContent = "Copied";
      } catch (error) {
        button.textContent = "Not copied";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
    block.append(button);
  }
}

// After the comment "tabs", each paragraph that begins with a name is a tab, with the code after it, up
// to the next heading.
function addTabs() {
  const comments = document.createTreeWalker(document.body, NodeFilter.SHOW_COMMENT);
  const starts = [];
  while (comments.nextNode()) if (comments.currentNode.data.trim() === "tabs") starts.push(comments.currentNode);
  for (const start of starts) {
    const tabs = [];
    for (let node = start.nextElementSibling; node && !/^(SECTION|H\d)$/.test(node.tagName); node = node.nextElementSibling) {
      const code = node.nextElementSibling;
      if (node.tagName === "P" && code && /highlight-/.test(code.className)) {
        const name = node.textContent.match(/^[\w:-]+(?: \d\b)?/)[0];
        tabs.push({ name, nodes: [node] });
      } else if (tabs.length) tabs[tabs.length - 1].nodes.push(node);
    }
    if (tabs.length > 1) showTabs(start, tabs);
  }
}

function showTabs(start, tabs) {
  const bar = document.createElement("div");
  bar.className = "tabs";
  bar.setAttribute("role", "tablist");
  start.after(bar);
  let last = bar;
  for (const tab of tabs) {
    tab.panel = document.createElement("div");
    tab.panel.className = "tab";
    tab.panel.setAttribute("role", "tabpanel");
    tab.panel.append(...tab.nodes);
    last.after(tab.panel);
    last = tab.panel;
    tab.button = document.createElement("button");
    tab.button.textContent = tab.name;
    tab.button.setAttribute("role", "tab");
    tab.button.addEventListener("click", () => choose(tab.name));
    bar.append(tab.button);
  }
  function choose(name) {
    for (const tab of tabs) {
      tab.panel.hidden = tab.name !== name;
      tab.button.setAttribute("aria-selected", tab.name === name);
    }
    try { localStorage.setItem("idem-tab", name); } catch (error) { /* not remembered */ }
  }
  let before = null;
  try { before = localStorage.getItem("idem-tab"); } catch (error) { /* not remembered */ }
  choose(tabs.some((tab) => tab.name === before) ? before : tabs[0].name);
}

// The search. SECTIONS are those of all pages, [page, anchor, title, text, weight], made by tools/site;
// a message has "..." for what varies in it.
function plain(text) { return text.toLowerCase().replace(/[“”]/g, '"').replace(/[’`]/g, "'").replace(/\s+/g, " ").trim(); }

function matchesMessage(title, query) {
  if (!title.includes("...")) return false;
  const parts = title.split("...").map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return parts.join("").length > 12 && new RegExp(parts.join(".+")).test(query);
}

function score(section, query, words) {
  const [, , title, text, weight] = section;
  const heading = plain(title);
  const body = plain(text);
  const name = heading.replace(/ \([^)]*\)$/, "");
  if (!words.every((word) => heading.includes(word) || body.includes(word)) && !matchesMessage(name, query)) return 0;
  let points = 10;
  if (body.includes(query)) points += 20;
  points += 5 * words.filter((word) => heading.includes(word)).length;
  if (words.every((word) => heading.includes(word))) points += 40;
  if (heading.includes(query)) points += 60;
  if (heading === query || name === query) points += 60;
  if (name.length > 12 && (query.includes(name) || matchesMessage(name, query))) points += 150;
  return points * weight;
}

function search(query) {
  const asked = plain(query).replace(/^error: +(\w{5}: +)?/, "");
  const words = asked.split(" ").filter((word) => word);
  if (!words.length) return [];
  return SECTIONS.map((section) => ({ section, points: score(section, asked, words) }))
    .filter((found) => found.points > 0).sort((a, b) => b.points - a.points).slice(0, 30);
}

function snippet(text, words) {
  const places = words.map((word) => plain(text).indexOf(word)).filter((place) => place >= 0);
  const at = places.length ? Math.max(0, Math.min(...places) - 60) : 0;
  return (at ? "... " : "") + text.slice(at, at + 200) + (at + 200 < text.length ? " ..." : "");
}

function showSearch() {
  const place = document.getElementById("search-results");
  const query = new URLSearchParams(location.search).get("q") || "";
  if (!place || typeof SECTIONS === "undefined") return;
  const box = document.querySelector(".sidebar-search");
  if (box) box.value = query;
  const found = search(query);
  const heading = document.createElement("h1");
  heading.textContent = found.length ? `Results for “${query}”` : `Nothing found for “${query}”`;
  const list = document.createElement("ul");
  list.className = "found";
  for (const { section: [page, anchor, title, text, , of] } of found) {
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = page + (anchor ? "#" + anchor : "");
    link.textContent = title;
    const where = document.createElement("small");
    where.textContent = " " + of;
    const words = document.createElement("p");
    words.textContent = snippet(text, plain(query).split(" "));
    item.append(link, where, words);
    list.append(item);
  }
  place.replaceChildren(heading, list);
}

if (typeof document !== "undefined") {
  document.addEventListener("DOMContentLoaded", () => { addCopyButtons(); addTabs(); showSearch(); });
}
