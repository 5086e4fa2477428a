// Tables with sorting, filter and pages; charts; search; the theme. Values are set as text, never as markup.
(function () {
  "use strict";
  var PAGE = 50;
  var collator = new Intl.Collator("en", { numeric: true });
  var root = document.documentElement.dataset.root || "";

  function data(id) { return JSON.parse(document.getElementById(id).textContent); }
  function text(cell) { return Array.isArray(cell) ? cell[0] : cell; }
  function value(cell) {
    var found = Array.isArray(cell) && cell[1] !== null ? cell[1] : text(cell), number = Number(found);
    return found === "" || isNaN(number) ? found : number;
  }

  function compare(a, b) {
    var numbers = typeof a === "number" && typeof b === "number";
    if (numbers) return a - b;
    if (typeof a === "number") return -1;
    if (typeof b === "number") return 1;
    return collator.compare(a, b);
  }

  function element(name, content, owner) {
    var made = document.createElement(name);
    if (content !== undefined) made.textContent = content;
    if (owner) owner.appendChild(made);
    return made;
  }

  // A row as {cells, line}: rows in the HTML have their element, others get it when they are first drawn.
  function rowInPage(line) {
    return { line: line, cells: Array.from(line.cells, function (td) {
      return [td.textContent, td.dataset.s === undefined ? null : td.dataset.s];
    }) };
  }

  function rowElement(row, heads) {
    if (row.line) return row.line;
    row.line = document.createElement("tr");
    row.cells.forEach(function (cell, column) {
      var td = element("td", undefined, row.line);
      td.className = heads[column].className;
      if (Array.isArray(cell) && cell[3]) td.classList.add("greyed");
      if (Array.isArray(cell) && cell[2]) element("a", cell[0], td).href = cell[2];
      else td.textContent = text(cell);
    });
    return row.line;
  }

  function sortableTable(box) {
    var heads = box.querySelectorAll("th"), body = box.querySelector("tbody"), page = 0;
    var filter = box.querySelector(".filter"), count = box.querySelector(".count"), pager = box.querySelector(".pager");
    var rows = Array.from(body.rows, rowInPage);
    if (document.getElementById(box.dataset.grid)) {
      rows = rows.concat(data(box.dataset.grid).map(function (cells) { return { cells: cells }; }));
    }
    var order = rows.map(function (_, i) { return i; }), shown = order, searchTexts = null;

    function draw() {
      var here = shown.slice(page * PAGE, (page + 1) * PAGE);
      body.replaceChildren.apply(body, here.map(function (i) { return rowElement(rows[i], heads); }));
      var pages = Math.max(1, Math.ceil(shown.length / PAGE));
      pager.hidden = pages === 1;
      pager.querySelector("span").textContent = "page " + (page + 1) + " of " + pages;
      pager.querySelector(".back").disabled = page === 0;
      pager.querySelector(".next").disabled = page >= pages - 1;
      if (count) count.textContent = shown.length + (shown.length === rows.length ? " rows" : " of " + rows.length + " rows");
    }

    function applyFilter() {
      var wanted = filter ? filter.value.toLowerCase().split(/\s+/).filter(Boolean) : [];
      searchTexts = searchTexts || rows.map(function (row) { return row.cells.map(text).join(" ").toLowerCase(); });
      shown = order.filter(function (i) { return wanted.every(function (w) { return searchTexts[i].indexOf(w) >= 0; }); });
      page = 0;
      draw();
    }

    function sort(column) {
      var up = heads[column].getAttribute("aria-sort") !== "ascending";
      heads.forEach(function (head) { head.setAttribute("aria-sort", "none"); });
      heads[column].setAttribute("aria-sort", up ? "ascending" : "descending");
      var values = rows.map(function (row) { return value(row.cells[column]); });
      order = order.slice().sort(function (a, b) {
        var difference = compare(values[a], values[b]);
        return (up ? difference : -difference) || a - b;
      });
      applyFilter();
    }

    heads.forEach(function (head, column) {
      head.querySelector("button").addEventListener("click", function () { sort(column); });
    });
    if (filter) filter.addEventListener("input", applyFilter);
    pager.querySelector(".back").addEventListener("click", function () { page -= 1; draw(); });
    pager.querySelector(".next").addEventListener("click", function () { page += 1; draw(); });
    if (rows.length > PAGE) draw();
  }

  function trialsTable(box) {
    box.addEventListener("toggle", function () {
      if (!box.open || box.querySelector("table")) return;
      var scroll = element("div", undefined, box), table = element("table", undefined, scroll);
      scroll.className = "scroll";
      var head = element("tr", undefined, element("thead", undefined, table)), body = element("tbody", undefined, table);
      var found = data(box.dataset.trials);
      found.columns.forEach(function (name) { element("th", name, head).style.padding = "8px 12px"; });
      found.rows.forEach(function (row) {
        var line = element("tr", undefined, body);
        row.forEach(function (cell) { element("td", cell === null ? "–" : String(cell).replace("_", " "), line); });
      });
    });
  }

  function isDark() {
    var chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  var NARROW = 560;

  // The datasets of a box without the architectures that its legend hides, and without names of lines where it is narrow.
  function shownData(box) {
    var all = box.datasets || data(box.dataset.source), hidden = box.hiddenNames || [], found = {};
    Object.keys(all).forEach(function (name) {
      var isLeftOut = name === "labels" && box.dataset.chart === "bits" && box.clientWidth < NARROW;
      found[name] = isLeftOut ? [] : all[name].filter(function (row) { return hidden.indexOf(row.architecture) < 0; });
    });
    return found;
  }

  function chart(box) {
    var spec = window.CAPBENCH_SPECS[box.dataset.chart], soft = isDark() ? "#9aa4b2" : "#5b6472";
    var line = isDark() ? "#303640" : "#e4e7ec";
    var axis = { labelColor: soft, titleColor: soft, gridColor: line, domainColor: soft, tickColor: soft, titleFontWeight: 500 };
    var config = { background: null, view: { stroke: null }, font: "system-ui, sans-serif", axis: axis, legend: { labelColor: soft } };
    var full = Object.assign({}, spec, { datasets: shownData(box), height: Number(box.dataset.height), config: config });
    // A layer without data has no extent, which breaks the axes.
    full.layer = full.layer.filter(function (each) { return !each.data || full.datasets[each.data.name].length; });
    var many = Object.values(full.datasets).some(function (rows) { return rows.length > 1500; });
    // The interpreter (ast) needs no eval, which the page's policy forbids.
    window.vegaEmbed(box, full, { actions: false, ast: true, renderer: many ? "canvas" : "svg", loader: { target: "_self" } })
      .catch(function (error) { box.textContent = "The chart could not be drawn: " + error.message; });
  }

  // Buttons that hide and show architectures; a family's button switches all of its own.
  function legend(box) {
    var target = document.querySelector('[data-source="' + box.dataset.legend + '"]');
    var keys = Array.from(box.querySelectorAll(".key"));
    function isOn(button) { return button.getAttribute("aria-pressed") === "true"; }
    function set(button, on) { button.setAttribute("aria-pressed", String(on)); }
    function apply() {
      target.hiddenNames = keys.filter(function (key) { return !isOn(key); }).map(function (key) { return key.textContent; });
      box.querySelectorAll(".family").forEach(function (family) {
        set(family, Array.from(family.parentNode.querySelectorAll(".key")).every(isOn));
      });
      chart(target);
    }
    box.addEventListener("click", function (event) {
      var button = event.target.closest("button");
      if (!button) return;
      var on = !isOn(button), own = button.className === "family" ? button.parentNode.querySelectorAll(".key") : [button];
      own.forEach(function (key) { set(key, on); });
      apply();
    });
  }

  function theme(button) {
    function setLabel() { button.textContent = isDark() ? "Light" : "Dark"; }
    button.addEventListener("click", function () {
      var next = isDark() ? "light" : "dark";
      document.documentElement.dataset.theme = next;
      try { localStorage.setItem("capbench-theme", next); } catch (refused) { /* storage refused: the choice is not kept */ }
      setLabel();
      document.querySelectorAll("[data-drawn]").forEach(chart);
    });
    setLabel();
  }

  function search(input) {
    var list = document.getElementById("found"), isLoading = false;

    function show() {
      var wanted = input.value.toLowerCase().split(/\s+/).filter(Boolean), index = window.CAPBENCH_SEARCH || [];
      list.replaceChildren();
      list.hidden = !wanted.length;
      if (!wanted.length) return;
      var n = 0;
      for (var i = 0; i < index.length && n < 30; i += 1) {
        var low = index[i][0].toLowerCase();
        if (!wanted.every(function (word) { return low.indexOf(word) >= 0; })) continue;
        element("a", index[i][0], element("li", undefined, list)).href = root + index[i][1];
        n += 1;
      }
      if (!n) element("li", window.CAPBENCH_SEARCH ? "Nothing found" : "Loading", list).className = "none";
    }

    input.addEventListener("focus", function () {
      if (isLoading) return;
      isLoading = true;
      var script = element("script", undefined, document.head);
      script.src = root + "assets/search.js";
      script.onload = show;
    });
    input.addEventListener("input", show);
    input.form.addEventListener("submit", function (event) {
      event.preventDefault();
      var first = list.querySelector("a");
      if (first) first.click();
    });
    input.form.addEventListener("keydown", function (event) {
      var links = Array.from(list.querySelectorAll("a")), at = links.indexOf(document.activeElement);
      if (event.key === "Escape") { list.hidden = true; input.focus(); }
      if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
      event.preventDefault();
      var next = links[at + (event.key === "ArrowDown" ? 1 : -1)];
      (next || input).focus();
    });
  }

  document.querySelectorAll("[data-grid]").forEach(sortableTable);
  document.querySelectorAll("[data-trials]").forEach(trialsTable);
  document.querySelectorAll("[data-legend]").forEach(legend);
  function draw(box) {
    near.unobserve(box);
    box.dataset.drawn = "yes";
    chart(box);
  }

  // A chart is drawn when it comes near the viewport, so that a page of many tasks opens fast.
  var near = new IntersectionObserver(function (found) {
    found.filter(function (each) { return each.isIntersecting; }).forEach(function (each) {
      draw(each.target);
    });
  }, { rootMargin: "400px" });
  document.querySelectorAll("[data-chart]").forEach(function (box) { near.observe(box); });
  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("[data-chart]:not([data-drawn])").forEach(draw);
  });
  theme(document.getElementById("theme"));
  window.CAPBENCH = { chart: chart, element: element };
  var input = document.getElementById("search");
  if (input) search(input);
})();
